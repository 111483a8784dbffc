"""The file that the page goes to: a regular file, new or replaced as a whole.

It is a person's file, not one of a log's: it does not go through `FileSystem`.

Invariants
- I1  Nothing is written into a directory that is read, and nothing but a regular file is replaced:
      no directory, link or device.
- I2  The file is there wholly or as it was before; nothing else stays behind.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress

from stratalog.admin.directories import PartitionPlace
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import translated_errors


def check_target(path: str, places: Iterable[PartitionPlace]) -> None:
    """Whether a page on `places` may be written to `path`. Raises `UsageError` with the reason
    (I1)."""
    parent = os.path.realpath(os.path.dirname(path) or ".")
    for log_dir in sorted({read for place in places for read in (place.log_dir, place.path)}):
        read = os.path.realpath(log_dir)
        if os.path.commonpath([parent, read]) == read:
            raise UsageError(f"{path}: lies in the log directory {log_dir}; name another place")
    if not os.path.isdir(parent):
        raise UsageError(f"{path}: there is no directory {os.path.dirname(path) or parent}")
    _check_kind(path)


def _check_kind(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if stat.S_ISLNK(mode):
        raise UsageError(f"{path}: is a link; links are not followed")
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path}: is a directory")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path}: is no regular file")


def write_page(path: str, page: str) -> int:
    """Write the page; how many bytes it has. Raises `UsageError` as `check_target`, and
    `StorageIOError`."""
    _check_kind(path)
    content = page.encode()
    parent = os.path.dirname(path) or "."
    aside = os.path.join(parent, f".stratalog-{secrets.token_hex(8)}.tmp")
    with translated_errors(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(aside, flags, 0o666)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside)
            raise
    return len(content)
