"""Logs on object storage: a file system that only reads, over pyarrow's S3 client (SPK-9).

    ObjectStore       how to reach a store: a small value that workers get and connect from
    ObjectFileSystem  `base.filesystem.FileSystem` over paths like `s3://bucket/logs/orders-0`
    ObjectFile        an object: ranged reads, and a chunk read ahead of whoever reads in order

Nobody locks anything on object storage, and nothing there can be appended to or renamed. So what
is read is taken for a copy that nobody changes: of a log that was closed, or a generation that a
manifest names (`admin.location_manifest`). A file system lists each directory once and answers from
that: it sees one moment, and asks no head of every object. Make a new one to look again.

Invariants
- O1  Nothing is written: what would change something raises `StorageIOError`.
- O2  An object's identity is its path, size and time of modification: one that was replaced has
      another one, wherever that is asked.
- O3  Names that cannot be those of files are passed over; the bytes are checked by who reads them.
- O4  Whatever the client raises comes as `FileNotFoundError` or one line of `StorageIOError`.
- O5  Secrets that were given travel to workers in the value and are never printed.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stratalog.base.errors import MissingExtraError, StorageIOError, UsageError
from stratalog.base.filesystem import File, FileStat, FileSystem, LocalFileSystem, OpenMode
from stratalog.base.limits import CHUNK_BYTES
from stratalog.spark.java import INSTALL_HINT

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEME = "s3://"
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<path>.*)", re.DOTALL)
_ALIASES = ("s3", "s3a", "s3n")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", re.ASCII)

_LEAST_BYTES = 64 << 10
"""What a request reads at least: its way there and back takes as long as some hundred KiB."""
_WINDOWS = 16
"""Files of a file system that keep what they read last."""

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables of AWS's that pyarrow's client does not look at."""

_ATTEMPTS = 4
_CONNECT_SECONDS = 5.0
_REQUEST_SECONDS = 30.0

_REFUSED = "(ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH"
_REFUSED += "|MISSING_AUTHENTICATION_TOKEN|EXPIRED_TOKEN|UNRECOGNIZED_CLIENT|HTTP status 40[13])"
_CREDENTIALS = "access is refused; credentials are s3.access-key-id and s3.secret-access-key, or "
_CREDENTIALS += "those of AWS's variables and files"
_REASONS = (
    (r"NO_SUCH_BUCKET", "there is no such bucket"),
    (_REFUSED, _CREDENTIALS),
    (r"(HTTP status 301|PERMANENT_REDIRECT)", "the bucket is in another region: give s3.region"),
    (r"(NETWORK_CONNECTION|TIMEOUT|HTTP status 5\d\d)", "the store does not answer"),
)


def is_uri(path: str) -> bool:
    """Whether a path begins with a scheme, like `s3://`; a single letter is none."""
    return _URI.match(path) is not None


def object_path(uri: str) -> str:
    """`s3://bucket/key` in one spelling, without a slash at the end. Raises `UsageError`."""
    found = _URI.fullmatch(uri)
    if found is None or found["scheme"].lower() not in _ALIASES:
        raise UsageError(f"{uri}: logs are read from directories and from {SCHEME}BUCKET/PATH")
    bucket, *parts = found["path"].rstrip("/").split("/")
    if _BUCKET.fullmatch(bucket) is None:
        raise UsageError(f"{uri}: no bucket is named {bucket!r}")
    if any(part in ("", ".", "..") for part in parts) or not uri.isprintable():
        raise UsageError(f"{uri}: no path that an object can have")
    return SCHEME + "/".join([bucket, *parts])


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """How to reach a store. What is None comes from the environment of whoever connects, as AWS
    has it: variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...), `~/.aws`, the machine's role."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    is_anonymous: bool = False

    def client(self) -> Any:
        """The process's client for it, a `pyarrow.fs.S3FileSystem`.

        Raises `MissingExtraError` without pyarrow's S3; `UsageError` for what makes no client.
        """
        named = (os.environ.get(name) for name in _ENDPOINTS)
        return _client(replace(self, endpoint=self.endpoint or next(filter(None, named), None)))

    def filesystem(self) -> ObjectFileSystem:
        """The store as it is now, from its first listings on."""
        return ObjectFileSystem(self.client())


FROM_ENVIRONMENT = ObjectStore()


@lru_cache(maxsize=16)
def _client(store: ObjectStore) -> Any:
    try:
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem
    except ImportError as error:
        raise MissingExtraError(
            f"object storage needs pyarrow with S3 ({error}); {INSTALL_HINT}"
        ) from error
    if bool(store.access_key_id) != bool(store.secret_access_key):
        raise UsageError("s3.access-key-id and s3.secret-access-key go together")
    settings: dict[str, Any] = {
        "access_key": store.access_key_id,
        "secret_key": store.secret_access_key,
        "session_token": store.session_token,
        "anonymous": store.is_anonymous,
        "region": store.region,
        "endpoint_override": store.endpoint,
    }
    try:
        return S3FileSystem(
            **{name: value for name, value in settings.items() if value},
            allow_delayed_open=True,  # a little object is written by one request
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_REQUEST_SECONDS,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"s3: {_one_line(error)}") from error


def filesystem_of(path: str, store: ObjectStore) -> FileSystem:
    """The file system that a path belongs to: `store`'s for `s3://`, else the local disk."""
    return store.filesystem() if path.startswith(SCHEME) else LocalFileSystem()


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise what the client raises about `path` as ours (O4)."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such object") from None
    except (OSError, ValueError) as error:
        raise StorageIOError(f"{path}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    for pattern, reason in _REASONS:
        if (found := re.search(pattern, text)) is not None:
            detail = re.search(r"Details: ([^;]+)", text)
            return f"{reason} ({found[0] if detail is None else detail[1][:200]})"
    return re.sub(r" *\(Request ID:[^)]*\)", "", text)[:300]


class ObjectFileSystem:
    """Reads a store. Paths begin with `s3://`; any thread may use it."""

    def __init__(self, client: Any):
        """`client`: a `pyarrow.fs.FileSystem` of `bucket/key` paths."""
        self._client = client
        self._listings: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._recent: list[ObjectFile] = []

    # ------------------------------------------------------------ reading

    def open(self, path: str, mode: OpenMode) -> File:
        if mode != "read":
            raise _read_only(path)
        return ObjectFile(self, self._client, path, self._info(path))

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._listing(path))

    def stat(self, path: str) -> FileStat:
        return _stat_of(path, self._info(path))

    def exists(self, path: str) -> bool:
        return self._found(path) is not None

    def is_directory(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._found(path) == FileType.Directory)

    def _found(self, path: str) -> Any:
        """What kind of thing is there, None for nothing; asked of the directory that it is in."""
        from pyarrow.fs import FileType

        parent, _, name = path.rpartition("/")
        try:
            if len(parent) < len(SCHEME):  # a bucket
                return FileType.Directory if self._listing(path) else None
            info = self._listing(parent).get(name)
        except FileNotFoundError:
            return None
        return None if info is None else info.type

    def _info(self, path: str) -> Any:
        """What the listing of its directory says of an object. Raises `FileNotFoundError`."""
        from pyarrow.fs import FileType

        parent, _, name = path.rpartition("/")
        info = self._listing(parent).get(name)
        if info is None or info.type != FileType.File:
            raise FileNotFoundError(f"{path}: no such object")
        return info

    def _listing(self, path: str) -> dict[str, Any]:
        found = self._listings.get(path)
        if found is None:
            from pyarrow.fs import FileSelector

            with translated(path):
                infos = self._client.get_file_info(FileSelector(path.removeprefix(SCHEME)))
            found = {info.base_name: info for info in infos if _is_file_name(info.base_name)}
            self._listings[path] = found
        return found

    def read_lately(self, file: ObjectFile) -> None:
        """Let the files that were read longest ago forget what they hold."""
        with self._lock:
            if self._recent and self._recent[-1] is file:
                return
            self._recent = [other for other in self._recent if other is not file] + [file]
            stale = self._recent[:-_WINDOWS]
            self._recent = self._recent[-_WINDOWS:]
        for other in stale:
            other.forget()

    # ------------------------------------------------------------ what a store cannot do (O1)

    def make_directory(self, path: str) -> None:
        raise _read_only(path)

    def remove_directory(self, path: str) -> None:
        raise _read_only(path)

    def rename(self, old_path: str, new_path: str) -> None:  # noqa: ARG002
        raise _read_only(old_path)

    def unlink(self, path: str) -> None:
        raise _read_only(path)

    def set_modified(self, path: str, modified_ms: int) -> None:  # noqa: ARG002
        raise _read_only(path)

    def fsync_directory(self, path: str) -> None:
        raise _read_only(path)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        if exclusive:
            raise _read_only(path)
        raise FileNotFoundError(f"{path}: nobody locks an object")


class ObjectFile:
    """An object that is read at positions. `_lock` guards what was read last, and ahead.

    Reads in order fetch more each time, up to a chunk; from then on the next chunk is on its way
    while one is worked on. Reads here and there fetch little.
    """

    def __init__(self, filesystem: ObjectFileSystem, client: Any, path: str, info: Any):
        self._filesystem = filesystem
        self._client = client
        self._path = path
        self._stat = _stat_of(path, info)
        self._input: Any = None  # opening asks for the object's head, and many are never read
        self._lock = threading.Lock()
        self._start, self._window = 0, b""
        self._ahead: tuple[int, Future[bytes]] | None = None
        self._stride = _LEAST_BYTES

    @property
    def path(self) -> str:
        return self._path

    def size_bytes(self) -> int:
        return self._stat.size_bytes

    def file_id(self) -> int:
        return self._stat.file_id

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        end = min(position + len(view), self._stat.size_bytes)
        at = position
        with self._lock:
            while at < end:
                if not self._start <= at < self._start + len(self._window):
                    self._fetch(at, end - at)
                held = memoryview(self._window)[at - self._start : end - self._start]
                view[at - position : at - position + len(held)] = held
                at += len(held)
        if end >= self._stat.size_bytes:
            self.forget()  # who came to the end does not come back
        else:
            self._filesystem.read_lately(self)
        return max(end - position, 0)

    def _fetch(self, at: int, wanted: int) -> None:
        """Let the window begin at, or before, `at`."""
        past = self._start + len(self._window)
        is_in_order = len(self._window) > 0 and self._start <= at <= past + _LEAST_BYTES
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] <= at < ahead[0] + CHUNK_BYTES:
            self._start, self._window = ahead[0], ahead[1].result()
            if not at < self._start + len(self._window):
                raise self._changed()
        else:
            self._stride = min(2 * self._stride, CHUNK_BYTES) if is_in_order else _LEAST_BYTES
            self._stride = min(max(self._stride, wanted), CHUNK_BYTES)
            self._start, self._window = at, self._read(at, max(wanted, self._stride))
        past = self._start + len(self._window)
        if is_in_order and self._stride == CHUNK_BYTES and past < self._stat.size_bytes:
            self._ahead = past, _readers().submit(self._read, past, CHUNK_BYTES)

    def _read(self, position: int, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, self._stat.size_bytes - position)
        with translated(self._path):
            if self._input is None:
                self._input = self._client.open_input_file(self._path.removeprefix(SCHEME))
            data: bytes = self._input.read_at(size_bytes, position)
        if len(data) < size_bytes:
            raise self._changed()
        return data

    def _changed(self) -> StorageIOError:
        return StorageIOError(f"{self._path}: is shorter than it was: somebody has replaced it")

    def forget(self) -> None:
        """Keep no bytes."""
        with self._lock:
            self._start, self._window, self._ahead = 0, b"", None
            self._stride = _LEAST_BYTES

    def pwrite(self, data: Buffer, position: int) -> None:  # noqa: ARG002
        raise _read_only(self._path)

    def truncate(self, size_bytes: int) -> None:  # noqa: ARG002
        raise _read_only(self._path)

    def fsync(self) -> None:
        raise _read_only(self._path)

    def close(self) -> None:
        self.forget()
        self._input = None


@lru_cache(maxsize=1)
def _readers() -> ThreadPoolExecutor:
    """The threads that read ahead, of this process."""
    return ThreadPoolExecutor(4, "stratalog-read-ahead")


def _stat_of(path: str, info: Any) -> FileStat:
    modified_ns = info.mtime_ns or 0
    identity = f"{path}\0{info.size}\0{modified_ns}".encode()
    file_id = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") >> 1
    return FileStat(int(info.size or 0), modified_ns // 1_000_000, file_id)


def _is_file_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _read_only(path: str) -> StorageIOError:
    return StorageIOError(f"{path}: object storage is only read here")
