"""A log directory belongs to one process at a time, by Kafka's own lock.

A running Kafka holds a POSIX record lock (fcntl; Java's `FileLock`) on the file `.lock` of each of
its log directories, and leaves the file there when it stops. So a directory is in use when somebody
holds a lock on that file, not when the file is there.

Invariants
- I1  Who changes a directory holds the lock exclusively, who only reads it holds it shared, and
      makes no file for that.
- I2  `.lock` is never removed: somebody may have opened it already and be about to lock it.
- I3  The file is opened once: closing any descriptor of it would drop this process's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from stratalog.base.errors import LogLockedError, StorageIOError
from stratalog.segment.names import LOCK_FILE


@contextmanager
def locked(log_dirs: Iterable[str], *, exclusive: bool) -> Iterator[None]:
    """Hold the locks of all `log_dirs`.

    Raises `LogLockedError`, naming the directory, if a live process has one of them;
    `StorageIOError` if the lock file cannot be opened.
    """
    with ExitStack() as stack:
        for log_dir in sorted({os.path.realpath(log_dir) for log_dir in log_dirs}):
            descriptor = _lock(log_dir, exclusive)
            if descriptor is not None:
                stack.callback(os.close, descriptor)
        yield


def _lock(log_dir: str, exclusive: bool) -> int | None:
    path = os.path.join(log_dir, LOCK_FILE)
    flags = os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        if exclusive:
            raise StorageIOError(f"{log_dir}: no such directory") from None
        return None
    except OSError as error:
        raise StorageIOError(f"{path}: {error.strerror}") from error
    try:
        fcntl.lockf(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise LogLockedError(
                f"{log_dir}: in use by a running process, which holds {LOCK_FILE}; stop it first"
            ) from None
        raise StorageIOError(f"{path}: {error.strerror}") from error
    return descriptor
