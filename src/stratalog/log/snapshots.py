"""The producer snapshots of a partition's directory: which are used, kept, written.

A snapshot at offset N is the state of everything below N. One is written when a segment is rolled
(at the new base) and when the log is closed (at its end).

Invariants
- I1  A snapshot that does not decode is passed over, and removed by whoever may write: it can be
      made again from the log, by way of an older one.
- I2  A snapshot is written in place and carries a checksum, so a torn one is recognised.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

from stratalog.base.errors import CorruptionError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.base.limits import MAX_SNAPSHOT_BYTES
from stratalog.log.producer_state import (
    ProducerEntry,
    ProducerState,
    decode_snapshot,
    encode_snapshot,
    state_of,
    without_expired,
)
from stratalog.segment.names import FileKind, file_name


def snapshot_path(directory: str, offset: int) -> str:
    """The path of the snapshot at `offset`."""
    return os.path.join(directory, file_name(offset, FileKind.SNAPSHOT))


def stray_snapshots(
    offsets: Iterable[int], bases: Collection[int], log_start_offset: int, log_end_offset: int
) -> set[int]:
    """Those that Kafka removes when it opens a log.

    They lie at or below the log start, past the log end, or at no segment's base; of the last kind
    the newest is kept if it lies above the last base (it was written when the log was closed).
    """
    everything = set(offsets)
    outside = {o for o in everything if o <= log_start_offset or o > log_end_offset}
    elsewhere = everything - outside - set(bases)
    newest = max(elsewhere, default=-1)
    if newest > max(bases, default=-1):
        elsewhere.discard(newest)
    return elsewhere | outside


def load_newest(
    filesystem: FileSystem, directory: str, offsets: Iterable[int], now_ms: int, expiration_ms: int
) -> tuple[ProducerState, int | None, list[int]]:
    """The state in the newest snapshot that decodes, without expired producers.

    `offsets`: the snapshots that may be used. Answers the state, its offset (None if there is no
    usable snapshot) and the offsets of the damaged ones that were passed over.
    """
    damaged: list[int] = []
    for offset in sorted(offsets, reverse=True):
        try:
            entries = read_snapshot(filesystem, directory, offset)
        except CorruptionError:
            damaged.append(offset)
            continue
        except FileNotFoundError:
            continue
        return state_of(without_expired(entries, now_ms, expiration_ms)), offset, damaged
    return ProducerState(), None, damaged


def read_snapshot(filesystem: FileSystem, directory: str, offset: int) -> list[ProducerEntry]:
    """The producers in one snapshot. Raises `FileNotFoundError` or `CorruptionError`."""
    path = snapshot_path(directory, offset)
    try:
        return decode_snapshot(read_file(filesystem, path, MAX_SNAPSHOT_BYTES))
    except CorruptionError as error:
        raise error.located(path) from None
    except TooManyFilesError:
        raise  # it need not be there at all
    except StorageIOError as error:
        if filesystem.stat(path).size_bytes > MAX_SNAPSHOT_BYTES:
            raise CorruptionError("larger than any producer snapshot", file=path) from error
        raise


def write_snapshot(
    filesystem: FileSystem, directory: str, offset: int, entries: Mapping[int, ProducerEntry]
) -> None:
    """Write the snapshot at `offset`. It is not synced: a torn one is made again (I1, I2)."""
    file = filesystem.open(snapshot_path(directory, offset), "create")
    try:
        file.pwrite(encode_snapshot(entries), 0)
    finally:
        file.close()
