"""The latest value per key of two logs, compared: what cleaning must leave the same (CMP-18).

What a log stands for is a fold over its committed records from the log start on: the last value of
each key; a tombstone, expired or not, leaves none. What is last is said by the settings' order of
versions (CMP-17), the one that cleaning goes by. It is made in two passes of hashes, of memory
proportional to the keys: the first finds each key's newest offset, the second reads what lies
there. Keys that do not fit are worked through hash range by hash range.

Invariants
- I1  Two states are equal if and only if no difference is found, but for colliding 128-bit hashes
      under a fresh secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stratalog.admin.columns import Columns, Secret, chunk_reader, record_columns
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.dump import text_of
from stratalog.admin.floors import clean_spec, log_settings
from stratalog.admin.state import open_to_read
from stratalog.base.clock import Clock
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Int64s, Scratch, scan_chunk
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.offset_map import OffsetMap
from stratalog.clean.settle import aborted_columns
from stratalog.config.settings import Settings
from stratalog.log.view import LogView
from stratalog.record import layout
from stratalog.record.kernel import scan
from stratalog.record.kernel.columns import KEYS, VALUES

_MAP_BYTES = 512 << 20
_MAX_RANGE_BITS = 12
_SHOWN = 20
"""Differences told in full."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose latest value is not the same; an offset is None where the key has no value."""

    partition: str
    key: str | None
    offset: int | None
    other_offset: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two states of one partition. `differences`: the first of `different` many."""

    partition: str
    keys: int
    other_keys: int
    different: int
    differences: tuple[Difference, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Log:
    place: PartitionPlace
    view: LogView


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Live keys: `hashes` uint64[n, 4] (key, value) sorted by key, `offsets` int64[n]."""

    hashes: npt.NDArray[np.uint64]
    offsets: Int64s


def compare_partitions(
    place: PartitionPlace,
    other: PartitionPlace,
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> Comparison:
    """Compare the states of two directories of one partition. Raises `CorruptionError`."""
    logs = [_opened(item, settings, filesystem, clock) for item in (place, other)]
    spec = clean_spec(settings, clock.now_ms())
    total_bytes = 2 * sum(log.view.segments.size_bytes for log in logs)
    range_bits = 0
    while True:
        done_bytes = 0

        def on_read(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes >> range_bits  # noqa: B023  called within this turn only
            on_progress(Progress("compare", min(done_bytes, total_bytes), total_bytes))

        found = _compare(logs, filesystem, spec, range_bits, on_read)
        if found is not None:
            return found
        range_bits += 1
        assert range_bits <= _MAX_RANGE_BITS


def _opened(
    place: PartitionPlace, settings: Settings, filesystem: FileSystem, clock: Clock
) -> _Log:
    with open_to_read(place, log_settings(settings), filesystem, clock) as log:
        return _Log(place, log.view)


def _compare(
    logs: list[_Log],
    filesystem: FileSystem,
    spec: CleanSpec,
    range_bits: int,
    on_read: Callable[[int], None],
) -> Comparison | None:
    """None if a range's keys do not fit the map."""
    keys = [0, 0]
    different = 0
    shown: list[Difference] = []
    for hash_range in range(1 << range_bits):
        states = []
        for place, log in enumerate(logs):
            offset_map = OffsetMap(
                memory_bytes=_MAP_BYTES,
                range_bits=range_bits,
                hash_range=hash_range,
                has_versions=spec.order is not Order.OFFSET,
            )
            state = _state(log, filesystem, spec, offset_map, on_read)
            if state is None:
                return None
            states.append(state)
            keys[place] += len(state.offsets)
        for offset, other_offset in _differing(*states):
            different += 1
            if len(shown) < _SHOWN:
                shown.append(_difference(logs, offset, other_offset))
    return Comparison(logs[0].place.name, keys[0], keys[1], different, tuple(shown))


def _state(
    log: _Log,
    filesystem: FileSystem,
    spec: CleanSpec,
    offset_map: OffsetMap,
    on_read: Callable[[int], None],
) -> _State | None:
    scratch = Scratch()
    for columns, chosen in _committed(log, filesystem, spec, scratch, KEYS, on_read):
        if not offset_map.add(columns.key_rows(chosen, spec.order), scratch):
            return None
    live = offset_map.offsets()
    kept_hashes: list[npt.NDArray[np.uint64]] = [np.empty((0, 4), np.uint64)]
    kept_offsets: list[Int64s] = [np.empty(0, np.int64)]
    for columns, chosen in _committed(log, filesystem, spec, scratch, VALUES, on_read):
        is_live = chosen & (columns.value_sizes >= 0) & _among(live, columns.offsets)
        kept_hashes.append(np.hstack([columns.keys[is_live], columns.values[is_live]]))
        kept_offsets.append(columns.offsets[is_live].copy())
    joined, offsets = np.concatenate(kept_hashes), np.concatenate(kept_offsets)
    order = np.lexsort((joined[:, 1], joined[:, 0]))
    return _State(joined[order], offsets[order])


def _committed(
    log: _Log,
    filesystem: FileSystem,
    spec: CleanSpec,
    scratch: Scratch,
    hashing: int,
    on_read: Callable[[int], None],
) -> Iterator[tuple[Columns, npt.NDArray[np.bool_]]]:
    """The records of the log, and which of them a reader of committed data sees with a key."""
    key0, key1 = spec.hash_secret
    secret: Secret = np.uint64(key0), np.uint64(key1)
    view = log.view
    aborted = aborted_columns([entry for segment in view.segments for entry in segment.aborted])
    for segment in view.segments.from_offset(view.log_start_offset):
        with chunk_reader(
            filesystem, log.place.path, segment.base_offset, segment.size_bytes, spec
        ) as reader:
            while (chunk := reader.take(scratch)) is not None:
                table = scan_chunk(chunk, spec, -1, scratch)
                scan.mark_aborted(table, len(table), *aborted)
                is_control = (table["magic"] == layout.MAGIC_V2) & (
                    table["attributes"] & layout.CONTROL_MASK != 0
                )
                wanted = ~is_control & (table["is_aborted"] == 0)
                for columns in record_columns(
                    chunk, table, wanted, spec, secret, scratch, hashing=hashing
                ):
                    chosen = columns.key_sizes >= 0
                    chosen &= columns.offsets >= view.log_start_offset
                    chosen &= columns.offsets < view.last_stable_offset
                    yield columns, chosen
                on_read(chunk.size_bytes)


def _among(sorted_values: Int64s, values: Int64s) -> npt.NDArray[np.bool_]:
    if len(sorted_values) == 0:
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return cast("npt.NDArray[np.bool_]", sorted_values[places] == values)


def _differing(one: _State, other: _State) -> Iterator[tuple[int | None, int | None]]:
    """Pairs of offsets of the keys whose values differ; None: the key has none there."""
    if one.hashes.shape == other.hashes.shape and (one.hashes == other.hashes).all():
        return
    tables = [_by_key(state) for state in (one, other)]
    for key, (value, offset) in tables[0].items():
        other_value, other_offset = tables[1].get(key, (None, None))
        if value != other_value:
            yield offset, other_offset
    for key, (_, other_offset) in tables[1].items():
        if key not in tables[0]:
            yield None, other_offset


def _by_key(state: _State) -> dict[bytes, tuple[bytes, int]]:
    """Key hash -> (value hash, offset); made only where two states differ."""
    return {
        row[:2].tobytes(): (row[2:].tobytes(), offset)
        for row, offset in zip(state.hashes, state.offsets.tolist(), strict=True)
    }


def _difference(logs: list[_Log], offset: int | None, other_offset: int | None) -> Difference:
    """With the key itself, read from wherever there is a record of it."""
    log, at = (logs[0], offset) if offset is not None else (logs[1], other_offset)
    assert at is not None
    record = next(log.view.read_records(at, end_offset=at + 1))
    return Difference(log.place.name, text_of(record.key), offset, other_offset)
