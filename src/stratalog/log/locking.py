"""A log directory belongs to one process at a time, by Kafka's own lock.

A running Kafka holds a POSIX record lock (fcntl; Java's `FileLock`) on the file `.lock` of each of
its log directories, and leaves the file there when it stops. So a directory is in use when somebody
holds a lock on that file, not when the file is there.

Invariants
- I1  Who changes a directory holds the lock exclusively, who only reads it holds it shared, and
      makes no file for that.
- I2  `.lock` is never removed: somebody may have opened it already and be about to lock it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from stratalog.base.errors import LogLockedError, StorageIOError
from stratalog.base.filesystem import FileSystem
from stratalog.segment.names import LOCK_FILE


def lock_directory(
    log_dir: str, filesystem: FileSystem, *, exclusive: bool
) -> Callable[[], None] | None:
    """Hold a log directory's lock until the answer is called.

    None for a reader of a directory that never had a lock file. Raises `LogLockedError`, naming
    the directory, if a live process has it; `StorageIOError` if there is no such directory.
    """
    try:
        return filesystem.lock(os.path.join(log_dir, LOCK_FILE), exclusive=exclusive)
    except FileNotFoundError:
        if exclusive:
            raise StorageIOError(f"{log_dir}: no such directory") from None
        return None
    except LogLockedError:
        raise LogLockedError(
            f"{log_dir}: in use by a running process, which holds {LOCK_FILE}; stop it first"
        ) from None


@contextmanager
def locked(log_dirs: Iterable[str], filesystem: FileSystem, *, exclusive: bool) -> Iterator[None]:
    """Hold the locks of all `log_dirs`. Raises as `lock_directory`."""
    with ExitStack() as stack:
        for log_dir in sorted({os.path.realpath(log_dir) for log_dir in log_dirs}):
            release = lock_directory(log_dir, filesystem, exclusive=exclusive)
            if release is not None:
                stack.callback(release)
        yield
