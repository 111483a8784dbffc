"""Makes a segment's offset and time index from the table of its batches.

One function serves append, clean and rebuild alike, so an index never depends on who wrote it. It
is a fold: `extend` takes the state and the next chunk of the table and gives the new state and the
entries that fall into the chunk; however a table is cut into chunks, the entries are the same (I1).

The rule is Kafka's for one batch at a time (`LogSegment.recover`): a batch gets an offset entry
when more than `index.interval.bytes` lie between it and the last batch that got one (or the file's
start); with it comes a time entry for the largest timestamp so far, that batch included, if it is
larger than the last entry's. `finish` adds the closing time entry. Kafka itself writes entries once
per I/O chunk while cleaning; ours are denser there.

`add` states the rule for one batch, without arrays: an append of one batch must be cheap. `extend`
is the same for a table.

Invariants
- I1  extend(extend(s, a), b) gives the entries of extend(s, a + b), and adding the rows one by one
      gives them too.
- I2  offset entries grow strictly in offset and position; time entries grow strictly in timestamp.
- I3  every offset fits its segment: base offset <= offset <= base offset + 2^31 - 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.segment import offset_index, time_index
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET, Int64s

NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class IndexState:
    """What the builder carries from chunk to chunk. Offsets absolute, positions bytes, times ms.

    `last_entry_position` is 0 until there is an entry; `max_timestamp` is -1 until a batch has one;
    `max_timestamp_offset` is the last offset of the first batch that has it.
    """

    base_offset: int
    interval_bytes: int = 4096
    last_entry_position: int = 0
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    last_time_entry: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntries:
    """New entries: columns of the offset index (n,) and of the time index (m,), int64."""

    offsets: Int64s
    positions: Int64s
    timestamps: Int64s
    time_offsets: Int64s

    def encode(self, base_offset: int) -> tuple[bytes, bytes]:
        """The bytes to add to the `.index` and to the `.timeindex` file."""
        return (
            offset_index.encode(base_offset, self.offsets, self.positions),
            time_index.encode(base_offset, self.timestamps, self.time_offsets),
        )


_NONE = np.empty(0, np.int64)
NO_ENTRIES = IndexEntries(_NONE, _NONE, _NONE, _NONE)


def add(
    state: IndexState, position: int, last_offset: int, max_timestamp: int
) -> tuple[IndexState, tuple[int, int] | None, tuple[int, int] | None]:
    """Fold one batch in; the (offset, position) and (timestamp, offset) entries that it brings.

    Raises `CorruptionError` for an offset that does not fit the segment.
    """
    if not 0 <= last_offset - state.base_offset <= MAX_RELATIVE_OFFSET:
        raise _misfit(state.base_offset, last_offset, position)
    largest, largest_offset = state.max_timestamp, state.max_timestamp_offset
    if max_timestamp > largest:
        largest, largest_offset = max_timestamp, last_offset
    entry_position, time_entry = state.last_entry_position, state.last_time_entry
    entry: tuple[int, int] | None = None
    timed: tuple[int, int] | None = None
    if position - entry_position > state.interval_bytes:
        entry = (last_offset, position)
        entry_position = position
        if largest > time_entry:
            timed = (largest, largest_offset)
            time_entry = largest
    new_state = IndexState(
        state.base_offset,
        state.interval_bytes,
        entry_position,
        largest,
        largest_offset,
        time_entry,
    )
    return new_state, entry, timed


def extend(
    state: IndexState,
    positions: Int64s,
    sizes: Int64s,
    last_offsets: Int64s,
    max_timestamps: Int64s,
) -> tuple[IndexState, IndexEntries]:
    """Fold the next batches of a segment in.

    Four int64 columns of shape (n,), one row a batch in file order: position and size in the log
    file (bytes), offset of the last record, largest timestamp (ms, -1 none). Raises
    `CorruptionError` for an offset that does not fit the segment.
    """
    count = len(positions)
    assert count == len(sizes) == len(last_offsets) == len(max_timestamps)
    if count == 0:
        return state, NO_ENTRIES
    _check_offsets(state.base_offset, positions, last_offsets)
    picks = _pick(positions, state.last_entry_position, state.interval_bytes)
    # Row i: the largest timestamp of rows 0..i (or the state's), and the row that brought it first.
    running = np.maximum.accumulate(np.maximum(max_timestamps, state.max_timestamp))
    before = np.concatenate((np.array([state.max_timestamp], np.int64), running[:-1]))
    rows = np.maximum.accumulate(np.where(running > before, np.arange(count), -1))
    running_offsets = np.where(rows < 0, state.max_timestamp_offset, last_offsets[rows])

    seen = running[picks]
    earlier = np.concatenate((np.array([state.last_time_entry], np.int64), seen[:-1]))[: len(seen)]
    timed = picks[seen > np.maximum(earlier, state.last_time_entry)]
    entries = IndexEntries(
        last_offsets[picks], positions[picks], running[timed], running_offsets[timed]
    )
    new_state = replace(
        state,
        last_entry_position=int(positions[picks[-1]]) if len(picks) else state.last_entry_position,
        max_timestamp=int(running[-1]),
        max_timestamp_offset=int(running_offsets[-1]),
        last_time_entry=int(running[timed[-1]]) if len(timed) else state.last_time_entry,
    )
    return new_state, entries


def entries_of(entry: tuple[int, int] | None, timed: tuple[int, int] | None) -> IndexEntries:
    """What `add` brought, as columns."""
    offsets = _NONE if entry is None else np.array(entry[:1], np.int64)
    positions = _NONE if entry is None else np.array(entry[1:], np.int64)
    timestamps = _NONE if timed is None else np.array(timed[:1], np.int64)
    time_offsets = _NONE if timed is None else np.array(timed[1:], np.int64)
    return IndexEntries(offsets, positions, timestamps, time_offsets)


def finish(state: IndexState) -> tuple[IndexState, IndexEntries]:
    """The closing time entry: the largest timestamp of the segment, unless it is there already."""
    if state.max_timestamp <= state.last_time_entry:
        return state, NO_ENTRIES
    closed = replace(state, last_time_entry=state.max_timestamp)
    return closed, entries_of(None, (state.max_timestamp, state.max_timestamp_offset))


def _check_offsets(base_offset: int, positions: Int64s, last_offsets: Int64s) -> None:
    relative = last_offsets - base_offset
    bad = (relative < 0) | (relative > MAX_RELATIVE_OFFSET)
    if bad.any():
        row = int(bad.argmax())
        raise _misfit(base_offset, int(last_offsets[row]), int(positions[row]))


def _misfit(base_offset: int, offset: int, position: int) -> CorruptionError:
    reason = f"offset {offset} does not fit a segment that starts at {base_offset}"
    return CorruptionError(reason, position=position)


def _pick(positions: Int64s, last_entry_position: int, interval_bytes: int) -> Int64s:
    """The rows that get an offset entry. A plain loop: each pick depends on the one before."""
    picks: list[int] = []
    threshold = last_entry_position + interval_bytes
    for row, position in enumerate(positions.tolist()):
        if position > threshold:
            picks.append(row)
            threshold = position + interval_bytes
    return np.array(picks, np.int64)
