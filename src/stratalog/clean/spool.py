"""Offsets gathered piece by piece into one sorted array, in memory up to a bound, then on disk.

A clean without a limit of keys must hold one offset for each key until it rewrites. Past the bound
they lie in a file without a name beside the log, mapped into memory, which the system may write out
and drop again; the file vanishes with the process, whatever becomes of it. Having no name, it is no
part of the log's disk: it does not go through `FileSystem`. Where the log may only be read (a dry
run), it lies in the system's temporary directory.
"""

from __future__ import annotations

import errno
import tempfile
from typing import IO

import numpy as np

from stratalog.base.filesystem import translated_errors
from stratalog.clean.chunk import Int64s


class OffsetSpool:
    """Append arrays, then take them all, sorted. One thread at a time."""

    def __init__(self, limit_bytes: int, directory: str):
        """Holds up to `limit_bytes` in memory; a file is made in `directory` when needed."""
        self._limit_bytes = limit_bytes
        self._directory = directory
        self._parts: list[Int64s] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, offsets: Int64s) -> None:
        """Add int64[n] offsets; the array is kept, not copied."""
        self._parts.append(offsets)
        self._bytes += offsets.nbytes
        # Joining needs the parts and the whole at once; a single part is already the whole.
        if len(self._parts) > 1 and 2 * self._bytes > self._limit_bytes:
            with translated_errors(self._directory):
                if self._file is None:
                    self._file = _unnamed_file(self._directory)
                for part in self._parts:
                    self._file.write(part.data)
            self._parts, self._bytes = [], 0

    def finish(self) -> Int64s:
        """All offsets as one sorted int64 array. The spool is empty afterwards."""
        if self._file is None:
            parts, self._parts = self._parts, []
            empty = np.empty(0, np.int64)
            joined = parts[0] if len(parts) == 1 else np.concatenate([empty, *parts])
        else:
            with translated_errors(self._directory), self._file as file:
                for part in self._parts:
                    file.write(part.data)
                file.flush()
                joined = np.asarray(np.memmap(file, np.int64, "r+"))
            self._parts, self._file = [], None
        joined.sort()
        return joined


def _unnamed_file(directory: str) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=directory)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return tempfile.TemporaryFile()
