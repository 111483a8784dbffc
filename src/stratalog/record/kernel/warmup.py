"""Compiles every kernel once a machine, by running each on a small batch.

The types of the arguments here are the types everywhere: a kernel that is ever called with others
would be compiled a second time, in the middle of work. A test asserts that each has one signature.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.kernel import (
    arrays,
    columns,
    digest,
    frames,
    offset_map,
    produced,
    retain,
    rewrite,
    scan,
)
from stratalog.record.kernel.compile import warm_up

_I = np.int64
_KEY = np.uint64(1)


def ensure_warm(announce: Callable[[str], None]) -> bool:
    """Compile what this machine has not compiled yet; `announce` gets a line if that takes long.

    Returns whether anything was compiled. Safe to call from several processes at once.
    """
    return warm_up(exercise, announce)


def exercise() -> None:
    """Run every kernel once."""
    records = [NewRecord(b"key", b"value", timestamp=0), NewRecord(b"other", None, timestamp=1)]
    raw = np.frombuffer(bytearray(build_batch(records)), np.uint8)
    table = np.zeros(1, arrays.BATCH)
    none, no_bytes = np.empty(0, _I), np.empty(0, np.uint8)
    scan.whole_batches(raw, len(raw), 1 << 20)
    scan.scan_batches(raw, len(raw), -1, -1, 1 << 20, table)
    scan.mark_aborted(table, 1, none, none, none)
    scan.read_control_types(raw, raw, table, 0, 1)
    fold_state, one = np.array([0, 0, 0, -1], _I), np.zeros(1, _I)
    digest.fold(raw, len(raw), len(raw), fold_state, one, one.copy())
    digest.sound_blocks(raw, len(raw), one, one)
    produced.check_records(raw, 61, len(raw), 2, 0, False, 0, 1)
    hashes, offsets, keyless = np.zeros((2, 2), np.uint64), np.zeros(2, _I), np.zeros(1, _I)
    scan.index_records(raw, raw, table, 0, 1, 1 << 62, _KEY, _KEY, hashes, offsets, keyless)
    scan.hash_many(raw, np.array([3], _I), _KEY, _KEY, hashes[:1])
    columns.read_records(
        raw,
        raw,
        table,
        np.ones(1, np.bool_),
        0,
        1,
        columns.KEYS,
        _KEY,
        _KEY,
        np.zeros((2, 5), _I),
        np.zeros((2, 4), np.uint64),
    )
    _exercise_map(hashes, offsets)
    retain.decide_batches(table, 1, none, no_bytes, none, none, none, none, 0, 2, 2, 0, False)
    kept, out = np.zeros(256, np.uint8), np.zeros(1024, np.uint8)
    drops, rows = np.zeros(len(arrays.REASONS), _I), np.zeros((2, 5), _I)
    retain.retain_records(
        raw, raw, table, 0, 1, none, none, 0, 2, 0, 0, False, False, rows, kept, drops
    )
    rewrite.assemble(raw, kept, table, 0, 1, 0, out, np.zeros((1, 4), _I))
    _exercise_frames(raw, out)


def _exercise_map(hashes: np.ndarray, offsets: np.ndarray) -> None:
    slots, larger = np.zeros((8, 3), np.uint64), np.zeros((16, 3), np.uint64)
    offset_map.insert(slots, 0, 6, hashes, offsets, 0, 2)
    offset_map.rehash(slots, larger)
    offset_map.probe(larger, hashes, offsets, 0, 2, np.empty(2, _I))
    offset_map.extract(larger, 1, hashes.copy(), offsets.copy())
    offset_map.extract_offsets(larger, offsets.copy())
    offset_map.partition(hashes, offsets, 2, 1, hashes.copy(), offsets.copy(), np.zeros(3, _I))


def _exercise_frames(raw: np.ndarray, out: np.ndarray) -> None:
    codecs, starts, ends = np.zeros(1, _I), np.zeros(1, _I), np.full(1, 8, _I)
    frames.unpack_rows(codecs, raw, starts, ends, out, 0, 0, 1 << 20, 0, 0, 0, np.zeros(1, _I))
    frames.pack_rows(codecs, raw, starts, ends, out, 0, 0, 0, 0, 0, np.zeros(1, _I))
