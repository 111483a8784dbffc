"""A simulated disk that fails: the nth call gets an error, once or until it is healed.

    disk.hook = faults = Faults("ENOSPC", nth=7, lasting=True)
    ...                       # product code meets StorageFullError
    faults.heal()             # space was freed

Errors are those of `LocalFileSystem`: `StorageFullError` for ENOSPC and EDQUOT,
`TooManyFilesError` for EMFILE, else `StorageIOError`. Each error strikes only calls that can meet
it on a real disk (`MEETS`), and only those are counted.
A failed fsync loses what was to be synced (tests/sim/disk.py, I4).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from stratalog.base.errors import StorageFullError, StorageIOError, TooManyFilesError
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call, PartialWrite

_READS = ("open", "read", "size", "stat", "list", "exists", "is_directory")
_NEED_SPACE = ("create", "write", "make_directory", "rename", "fsync", "lock")
_CHANGES = (*_NEED_SPACE, "truncate", "unlink", "remove_directory", "set_modified")

MEETS: dict[str, frozenset[str]] = {
    "EIO": frozenset((*_READS, *_CHANGES, "fsync_directory")),
    "ENOSPC": frozenset(_NEED_SPACE),
    "EDQUOT": frozenset(_NEED_SPACE),
    "EMFILE": frozenset(("open", "create", "list", "fsync_directory", "lock")),
    "SHORT_WRITE": frozenset(("write",)),
}
"""Which calls can fail how. SHORT_WRITE: half of the bytes are written, then the disk is full."""

KINDS: dict[str, type[StorageIOError]] = {
    "ENOSPC": StorageFullError,
    "EDQUOT": StorageFullError,
    "EMFILE": TooManyFilesError,
}
"""The errors that no disk is to blame for."""


@dataclass
class Faults:
    """A hook of a `SimDisk`. `nth` counts from 0 the calls that can meet `error` (of the given
    `kinds`, if any). `struck`: the calls that failed."""

    error: str
    nth: int
    kinds: Collection[str] | None = None
    lasting: bool = False
    seen: int = 0

    def __post_init__(self) -> None:
        meets = MEETS[self.error]
        self._kinds = meets if self.kinds is None else meets & set(self.kinds)
        assert self._kinds, f"{self.error} never strikes {self.kinds}"
        self.struck: list[Call] = []
        self._is_healed = False

    def heal(self) -> None:
        """Nothing fails from now on."""
        self._is_healed = True

    def __call__(self, call: Call) -> None:
        if call.kind not in self._kinds or self._is_healed:
            return
        place, self.seen = self.seen, self.seen + 1
        if place == self.nth or (self.lasting and place > self.nth):
            self.struck.append(call)
            raise self._failure(call)

    def _failure(self, call: Call) -> Exception:
        if self.error == "SHORT_WRITE":
            full = _error_of("ENOSPC", call.path)
            return PartialWrite(_size_of(call) // 2, full)
        return _error_of(self.error, call.path)

    def __str__(self) -> str:
        what = "call" if self.kinds is None else "/".join(self.kinds)
        how = "from" if self.lasting else "at"
        return f"{self.error} {how} {what} {self.nth}: {'; '.join(map(str, self.struck[:3]))}"


def _size_of(call: Call) -> int:
    size_bytes = call.arguments[1]
    assert isinstance(size_bytes, int)
    return size_bytes


def _error_of(name: str, path: str) -> StorageIOError:
    kind = KINDS.get(name, StorageIOError)
    return kind(f"{path}: {os.strerror(getattr(errno, name))}")


def every_fault(
    errors: Iterable[str] = tuple(MEETS),
    *,
    kinds: Collection[str] | None = None,
    lasting: Iterable[bool] = (False, True),
) -> Iterator[Callable[[SimDisk], Faults]]:
    """For a loop whose body attaches one to a fresh disk and runs product code on it:

        for attach in every_fault():
            disk = start.fork()
            faults = attach(disk)
            ...

    Goes through all errors and all calls of each, until one is never reached.
    """
    for error in errors:
        if kinds is not None and not MEETS[error] & set(kinds):
            continue
        for lasts in lasting:
            nth = 0
            while True:
                faults = Faults(error, nth, kinds, lasts)
                yield _attach(faults)
                if not faults.struck:
                    break
                nth += 1


def _attach(faults: Faults) -> Callable[[SimDisk], Faults]:
    def attach(disk: SimDisk) -> Faults:
        disk.hook = faults
        return faults

    return attach
