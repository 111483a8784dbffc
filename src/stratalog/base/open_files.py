"""How many files this process may have open at a time: a log keeps some per segment open.

The system starts a process with a low (soft) limit, often 1024, which it may raise by itself up to
its hard one. What owns logs for long does so at its start. What must not stop half way finds out
first whether the files that it is about to open can be open.
"""

from __future__ import annotations

import resource
import sys

from stratalog.base.filesystem import File, FileSystem


def raise_open_files_limit() -> int:
    """Raise the soft limit to the hard one; the limit that holds now (`sys.maxsize`: none).

    A system that does not allow it keeps what it had. Raises nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS says that there is no limit, and has one
            pass
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def check_open_files(filesystem: FileSystem, path: str, count: int) -> None:
    """Whether `count` more files can be open at once: opens the file `path` as often, for a moment.

    Another thread may take them right after that. Raises `TooManyFilesError`, and as `open`.
    """
    opened: list[File] = []
    try:
        for _ in range(count):
            opened.append(filesystem.open(path, "read"))
    finally:
        for file in opened:
            file.close()
