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
    arrow_columns,
    arrow_records,
    columns,
    digest,
    frames,
    horizon,
    key_counts,
    offset_map,
    produced,
    retain,
    rewrite,
    scan,
    version_map,
    versions,
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
        columns.NO_VERSIONS,
        no_bytes,
        np.zeros((2, 6), _I),
        np.zeros((2, 4), np.uint64),
    )
    _exercise_map(hashes, offsets)
    key_counts.record_sizes(raw, raw, table, 0, 1, offsets, np.zeros(2, _I))
    _exercise_counts(hashes, offsets)
    versions.index_versions(
        *(raw, raw, table, 0, 1, 1 << 62, _KEY, _KEY, True, no_bytes),
        *(hashes, offsets, np.zeros(2, _I), keyless),
    )
    versions.read_integer(no_bytes)
    _exercise_version_map(hashes, offsets)
    retain.decide_batches(table, 1, none, no_bytes, none, none, none, none, 0, 2, 2, 0, 0, 0, False)
    kept, out = np.zeros(256, np.uint8), np.zeros(1024, np.uint8)
    drops, rows = np.zeros((2, len(arrays.REASONS)), _I), np.zeros((2, 5), _I)
    retain.retain_records(
        *(raw, raw, table, 0, 1, none, none, none, none, 0, 2, 0, 0, retain.BY_BATCH, 0),
        *(False, False, rows, kept, drops, np.full(1, retain.NEVER_MS, _I)),
    )
    horizon.earliest_horizon(raw, len(raw), 1 << 20)
    rewrite.assemble(raw, kept, table, 0, 1, 0, out, np.zeros((1, 4), _I))
    _exercise_frames(raw, out)
    _exercise_arrow(raw, table)


def _exercise_map(hashes: np.ndarray, offsets: np.ndarray) -> None:
    slots, larger = np.zeros((8, 3), np.uint64), np.zeros((16, 3), np.uint64)
    offset_map.insert(slots, 0, 6, hashes, offsets, 0, 2)
    offset_map.rehash(slots, larger)
    offset_map.probe(larger, hashes, offsets, 0, 2, np.empty(2, _I))
    offset_map.extract(larger, 1, hashes.copy(), offsets.copy())
    offset_map.extract_offsets(larger, offsets.copy())
    offset_map.partition(hashes, offsets, 2, 1, hashes.copy(), offsets.copy(), np.zeros(3, _I))


def _exercise_counts(hashes: np.ndarray, offsets: np.ndarray) -> None:
    slots = np.zeros((8, 5), np.uint64)
    key_counts.count_keys(slots, 0, 6, hashes, offsets, np.zeros(2, _I), 0)
    key_counts.rehash(slots, np.zeros((16, 5), np.uint64))


def _exercise_version_map(hashes: np.ndarray, offsets: np.ndarray) -> None:
    slots, larger = np.zeros((8, 4), np.uint64), np.zeros((16, 4), np.uint64)
    of_rows, starts = np.zeros(2, _I), np.zeros(3, _I)
    version_map.insert(slots, 0, 6, hashes, offsets, of_rows, 0, 2)
    version_map.rehash(slots, larger)
    version_map.probe(larger, hashes, offsets, of_rows, 0, 2, np.empty(2, _I))
    version_map.probe_higher(larger, hashes, of_rows, 0, 2, np.empty(2, _I))
    version_map.extract(larger, 1, hashes.copy(), offsets.copy(), of_rows)
    version_map.partition_versions(hashes, of_rows, 2, 1, starts, of_rows.copy())


def _exercise_frames(raw: np.ndarray, out: np.ndarray) -> None:
    codecs, starts, ends = np.zeros(1, _I), np.zeros(1, _I), np.full(1, 8, _I)
    frames.unpack_rows(codecs, raw, starts, ends, out, 0, 0, 1 << 20, 0, 0, 0, np.zeros(1, _I))
    frames.pack_rows(codecs, raw, starts, ends, out, 0, 0, 0, 0, 0, np.zeros(1, _I))


def _exercise_arrow(raw: np.ndarray, table: np.ndarray) -> None:
    is_read, none = np.ones(1, np.bool_), np.empty(0, _I)
    state, totals = np.array([0, 0, 0, -1], _I), np.zeros(arrow_columns.TOTALS, _I)
    places = np.zeros((2, arrow_columns.PLACE_COLUMNS), _I)
    arrow_columns.locate_records(
        *(raw, raw, table, is_read, 1, 0, 9, none, False, False, 1 << 20, state, places, totals)
    )
    ends, bits, out = np.zeros(3, np.int32), np.zeros(1, np.uint8), np.zeros(64, np.uint8)
    located = (raw, raw, table, places)
    arrow_columns.copy_fields(*located, arrow_columns.VALUE_AT, ends, bits, out)
    arrow_columns.copy_headers(*located, ends, bits, ends.copy(), out, ends.copy(), bits, out)
    _exercise_records(ends, out)


def _exercise_records(ends: np.ndarray, out: np.ndarray) -> None:
    placed, times, flags = np.zeros(2, _I), np.zeros(2, _I), np.zeros(2, np.bool_)
    arrow_records.place_keys(out, ends, flags, 1, placed)
    column = (out, ends, flags)
    arrow_records.encode_records(
        *(placed, 0, times, *column, *column, ends, out, ends, *column, 0, 0, 0, 64, out.copy())
    )
