"""Where the server of a data directory is found: `stratalog-server.json` at its root.

    {"version": 1, "url": "http://127.0.0.1:9750", "process_id": 4711, "instance": "5f0c...", ...}

The server writes it once its port is bound and takes it away when it stops. What a crash leaves
lies there until the next server replaces it, so the file is a hint and never a proof.

Invariants
- I1  An address is believed only if what answers there says the same `instance`: a port may have
      gone to another program since.
- I2  Only addresses of this machine's own loopback interface are looked at: whoever can write into
      the directory cannot send commands elsewhere.
- I3  A file that cannot be read, or is not this, is the same as none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from stratalog.base.errors import StorageIOError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.web.hosts import is_loopback

ADDRESS_FILE = "stratalog-server.json"
_VERSION = 1
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server: `url` without a path, its process, and the name of this one run of it."""

    url: str
    process_id: int
    instance: str
    started_ms: int
    version: int = _VERSION

    @property
    def host(self) -> str:
        """The name or number that it listens at, IPv6 without brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return urlsplit(self.url).port or 0


def encode_address(address: ServerAddress) -> bytes:
    """The file's content."""
    return json.dumps(asdict(address)).encode() + b"\n"


def decode_address(content: bytes) -> ServerAddress | None:
    """The address that a file's content tells; None if it is none, or not of this machine."""
    try:
        found = json.loads(content)
        address = ServerAddress(
            found["url"],
            found["process_id"],
            found["instance"],
            found["started_ms"],
            found["version"],
        )
        parts = urlsplit(address.url)
        is_ours = (
            address.version == _VERSION
            and type(found["process_id"]) is int
            and address.process_id > 1
            and type(found["started_ms"]) is int
            and type(found["instance"]) is str
            and (parts.scheme, parts.path, parts.query, parts.fragment) == ("http", "", "", "")
            and parts.username is None
            and is_loopback(address.host)
            and address.port > 0
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return address if is_ours else None


def read_address(log_dir: str, filesystem: FileSystem) -> ServerAddress | None:
    """What the file in a data directory tells; None if there is none that can be used."""
    try:
        content = read_file(filesystem, os.path.join(log_dir, ADDRESS_FILE), _MAX_BYTES)
    except (StorageIOError, FileNotFoundError):
        return None
    return decode_address(content)


def write_addresses(
    log_dirs: Iterable[str], address: ServerAddress, filesystem: FileSystem
) -> None:
    """Tell an address in all of a server's directories. Raises `StorageIOError`."""
    for log_dir in log_dirs:
        path = os.path.join(log_dir, ADDRESS_FILE)
        write_file_atomically(filesystem, path, encode_address(address))


def remove_addresses(
    log_dirs: Iterable[str], address: ServerAddress, filesystem: FileSystem
) -> None:
    """Take an address away, where it is still this one. A disk that fails keeps it: see I1."""
    for log_dir in log_dirs:
        if read_address(log_dir, filesystem) == address:
            with suppress(StorageIOError, FileNotFoundError):
                filesystem.unlink(os.path.join(log_dir, ADDRESS_FILE))
