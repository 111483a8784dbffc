"""The `leader-epoch-checkpoint` file of a partition: at which offset each leader epoch began.

    0                       version
    1                       number of entries
    0 0                     epoch, start offset

A log here has one replica and normally one epoch, 0; the file is kept so that Kafka can take the
directory over, and entries that Kafka wrote are preserved.

Invariants
- I1  Epochs grow strictly and start offsets do not fall.
- I2  Values are immutable: every function answers a new tuple.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.log.checkpoint import integer, text_rows
from stratalog.segment.names import MAX_OFFSET

VERSION = 0
MAX_EPOCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class EpochStart:
    """`epoch` began at `start_offset`."""

    epoch: int
    start_offset: int


def parse(content: bytes) -> tuple[EpochStart, ...]:
    """The entries of the file's text. Raises `CorruptionError`."""
    entries: list[EpochStart] = []
    for number, (epoch, start_offset) in enumerate(text_rows(content, VERSION, 2), start=3):
        entry = EpochStart(
            integer(epoch, number, MAX_EPOCH), integer(start_offset, number, MAX_OFFSET)
        )
        if entries and not (
            entry.epoch > entries[-1].epoch and entry.start_offset >= entries[-1].start_offset
        ):
            raise CorruptionError(f"line {number}: {entry} does not follow {entries[-1]}")
        entries.append(entry)
    return tuple(entries)


def render(epochs: tuple[EpochStart, ...]) -> bytes:
    """The file's text."""
    lines = [f"{entry.epoch} {entry.start_offset}" for entry in epochs]
    return "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode("ascii")


def read_leader_epochs(filesystem: FileSystem, path: str) -> tuple[EpochStart, ...]:
    """The entries of the file; none if it is not there. Raises `CorruptionError`."""
    try:
        return parse(read_file(filesystem, path, MAX_CHECKPOINT_BYTES))
    except FileNotFoundError:
        return ()
    except CorruptionError as error:
        raise error.located(path) from None


def write_leader_epochs(filesystem: FileSystem, path: str, epochs: tuple[EpochStart, ...]) -> None:
    """Replace the file, durably."""
    write_file_atomically(filesystem, path, render(epochs))


def assigned(
    epochs: tuple[EpochStart, ...], epoch: int, start_offset: int
) -> tuple[EpochStart, ...]:
    """With `epoch` beginning at `start_offset`, unless it or a later one is there already."""
    if epoch < 0 or (epochs and epochs[-1].epoch >= epoch):
        return epochs
    return (*epochs, EpochStart(epoch, start_offset))


def cut_at_start(epochs: tuple[EpochStart, ...], log_start_offset: int) -> tuple[EpochStart, ...]:
    """Without the epochs that ended at or before the log start; the one in force begins there."""
    kept = [entry for entry in epochs if entry.start_offset > log_start_offset]
    ended = [entry for entry in epochs if entry.start_offset <= log_start_offset]
    if ended:
        kept.insert(0, EpochStart(ended[-1].epoch, log_start_offset))
    return tuple(kept)


def cut_at_end(epochs: tuple[EpochStart, ...], log_end_offset: int) -> tuple[EpochStart, ...]:
    """Without the epochs that begin at or past the (truncated) log end."""
    return tuple(entry for entry in epochs if entry.start_offset < log_end_offset)
