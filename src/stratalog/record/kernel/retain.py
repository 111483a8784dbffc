"""Which batches and records stay, and the bytes of those that do.

`decide_batches` settles what depends on a batch as a whole: aborted data, markers, the batches
that outlive their records. `retain_records` walks the records of the rest, counts what goes by
reason, and writes the records that stay into one buffer, their timestamps rebased where the
batch's base timestamp changes. The rules are Kafka's cleaner's (CMP-4, 8, 10, 13, 14, 15).

What goes is counted in records and in bytes (CLN-10): those of a record, length and all, in the
decompressed batch. A batch all of whose records go for one reason counts its stored payload: where
chunks end decides, too, whether it was opened to find that out, and must not show (SPK-2).

A record's own fate comes from two sorted arrays of the segment, made by indexing and merging:
`live` holds the offsets at or above first dirty that are the last of their key, `dead` those
below it whose key has a later record. Past `end_offset` nothing goes for its key.

Tombstones and discardable markers have one of two deadlines (`rule`, CMP-8): `BY_BATCH`, the delete
horizon in their batch's header, which is set when they are first met; or their segment's, which has
passed (`SEGMENT_GOES`) or not (`SEGMENT_STAYS`), and then horizons are neither set nor heeded, and
none goes at or above `ages_below`. A tombstone whose time has come stays if it is `held`: a record
past the round's end would be the newest of its key without it (CMP-18).

Invariants
- Decisions read only the table and sorted arrays: chunks can be decided in any order.
- `kept` has room for all payload bytes plus `GROWTH_PER_RECORD` for each record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import (
    ABORTED,
    BAD_DELTA,
    BAD_KEY,
    BAD_RECORD,
    BAD_VALUE,
    CONTROL,
    COPY,
    DROP,
    EMPTY,
    EMPTY_CONTROL,
    NO_KEY,
    OK,
    REWRITE,
    SUPERSEDED,
    TOMBSTONE,
)
from stratalog.record.kernel.compile import inlined, kernel
from stratalog.record.kernel.primitives import (
    BAD_VARINT,
    copy_bytes,
    read_varint,
    size_of_varint,
    write_varint,
)

GROWTH_PER_RECORD = 14
"""A rebased timestamp can take 9 bytes more, and the length in front of it up to 5."""

_TIMESTAMP_TYPE_MASK = 0x08
_CONTROL_MASK = 0x20
_HORIZON_MASK = 0x40
_HEADER_BYTES = 61
_EMPTY_MASK = 0x08 | 0x10 | 0x20
"""Attributes that an emptied batch keeps; `rewrite` clears the others."""
_ABORT, _COMMIT = 0, 1

BY_BATCH, SEGMENT_STAYS, SEGMENT_GOES = 0, 1, 2
"""Which rule tombstones and markers go by (module docstring)."""

NEVER_MS = (1 << 63) - 1
"""A deadline that does not come."""

# Columns of the scratch rows for the records of one batch that stay.
_START, _END, _TIMESTAMP, _DELTA, _REST = 0, 1, 2, 3, 4


@inlined
def _lower_bound(sorted_values: Any, value: int) -> Any:
    low = 0
    high = len(sorted_values)
    while low < high:
        middle = (low + high) >> 1
        if sorted_values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _contains(sorted_values: Any, value: int) -> bool:
    found = _lower_bound(sorted_values, value)
    return found < len(sorted_values) and bool(sorted_values[found] == value)


@kernel
def decide_batches(
    table: Any,
    rows: int,
    marker_offsets: Any,
    marker_discardable: Any,
    producer_ids: Any,
    producer_epochs: Any,
    producer_last_offsets: Any,
    live: Any,
    first_dirty: int,
    end_offset: int,
    first_uncleanable: int,
    now_ms: int,
    rule: int,
    ages_below: int,
    has_keyless: bool,
) -> None:
    """Fill discard, retain_empty, superseded and needs_horizon of magic-2 rows.

    marker_offsets: int64[] sorted, marker_discardable: uint8[]: what `settle` found for each
    control batch; producer_*: int64[] sorted by id, the active producers (last offset -1: none);
    `rule`: see the module docstring.
    """
    live_at = 0
    if rows > 0:
        live_at = _lower_bound(live, table[0].base_offset)
    for row in range(rows):
        batch = table[row]
        batch.discard = 0
        batch.superseded = 0
        batch.retain_empty = 0
        batch.needs_horizon = 0
        if batch.magic != 2:
            continue
        horizon_set = (batch.attributes & _HORIZON_MASK) != 0
        is_control = (batch.attributes & _CONTROL_MASK) != 0
        if is_control:
            discardable = batch.control_type == EMPTY_CONTROL
            if batch.control_type == _ABORT or batch.control_type == _COMMIT:
                found = _lower_bound(marker_offsets, batch.last_offset)
                if found < len(marker_offsets) and marker_offsets[found] == batch.last_offset:
                    discardable = marker_discardable[found] == 1
            if discardable and rule == BY_BATCH:
                batch.needs_horizon = 1
                if horizon_set and batch.base_timestamp <= now_ms:
                    batch.discard = 1
            elif discardable and rule == SEGMENT_GOES and batch.last_offset < ages_below:
                batch.discard = 1
        elif batch.is_aborted == 1:
            batch.discard = 1
        elif (
            batch.base_offset >= first_dirty and batch.last_offset < end_offset and not has_keyless
        ):
            while live_at < len(live) and live[live_at] < batch.base_offset:
                live_at += 1
            if live_at == len(live) or live[live_at] > batch.last_offset:
                batch.superseded = 1
        if batch.producer_id >= 0:
            found = _lower_bound(producer_ids, batch.producer_id)
            if found < len(producer_ids) and producer_ids[found] == batch.producer_id:
                if producer_last_offsets[found] >= 0:
                    if batch.last_offset == producer_last_offsets[found]:
                        batch.retain_empty = 1
                elif is_control and batch.producer_epoch == producer_epochs[found]:
                    batch.retain_empty = 1
        if batch.last_offset + 1 == first_uncleanable:
            batch.retain_empty = 1


@kernel
def retain_records(
    raw: Any,
    plain: Any,
    table: Any,
    first_row: int,
    end_row: int,
    live: Any,
    dead: Any,
    forgotten: Any,
    held: Any,
    first_dirty: int,
    end_offset: int,
    now_ms: int,
    new_horizon: int,
    rule: int,
    ages_below: int,
    has_keyless: bool,
    retain_keyless: bool,
    scratch: Any,
    kept: Any,
    dropped: Any,
    expiry: Any,
) -> Any:
    """Decide the records of rows [first_row, end_row) and write those that stay to `kept`.

    live, dead, forgotten, held: int64[] sorted offsets. The first two: module docstring;
    `forgotten`: tombstones that go at once (CLN-11); `held`: those that must stay all the same.
    scratch: int64[n, 5], n >= the largest count of a batch; kept: uint8[]; dropped: int64[2, 5],
    records and bytes, grows by reason. `new_horizon`: the deadline that tombstones get now (ms);
    below 0 they get none, and stay. `rule`: as in `decide_batches`.
    expiry: int64[1], sinks to the earliest deadline of what stays and then goes by `BY_BATCH`.
    Fills action, kept_start, kept_end, kept_count, new_base_timestamp, new_max_timestamp.
    Returns (bytes written to `kept`, error, position of the batch with the error).
    """
    written = 0
    live_at = 0
    dead_at = 0
    if first_row < end_row:
        live_at = _lower_bound(live, table[first_row].base_offset)
        dead_at = _lower_bound(dead, table[first_row].base_offset)
    for row in range(first_row, end_row):
        batch = table[row]
        if batch.magic != 2:
            continue
        batch.kept_start = written
        batch.kept_end = written
        batch.kept_count = 0
        horizon_set = (batch.attributes & _HORIZON_MASK) != 0
        is_control = (batch.attributes & _CONTROL_MASK) != 0
        nothing_left = EMPTY if batch.retain_empty == 1 else DROP
        if batch.discard == 1 or batch.count == 0:
            _count_drops(dropped, CONTROL if is_control else ABORTED, batch, batch.count, 0)
            batch.action = nothing_left
            is_bare = (batch.attributes & ~_EMPTY_MASK) == 0 and batch.base_timestamp == -1
            if batch.count == 0 and nothing_left == EMPTY and is_bare:
                batch.action = COPY  # an earlier round has emptied it
            continue
        if batch.superseded == 1:
            _count_drops(dropped, SUPERSEDED, batch, batch.count, 0)
            batch.action = nothing_left
            continue
        base_offset = batch.base_offset
        buffer = plain if batch.payload_is_plain == 1 else raw
        at = batch.payload_start
        payload_end = batch.payload_end
        # In a dense batch of the dirty part the offset of each record is known without a look.
        skips_dead = (
            batch.count == batch.last_offset - base_offset + 1
            and base_offset >= first_dirty
            and batch.last_offset < end_offset
            and not has_keyless
            and not is_control
        )
        count = 0
        superseded = expired = keyless = 0
        superseded_bytes = expired_bytes = keyless_bytes = 0
        has_tombstone = False
        expires = batch.needs_horizon == 1  # a marker that only waits for its deadline
        for index in range(batch.count):
            length_at = at
            length, at = read_varint(buffer, at, payload_end)
            if at == BAD_VARINT or length < 6 or length > payload_end - at:
                return written, BAD_RECORD, batch.position
            start = at
            end = at + length
            at = end
            if skips_dead:
                offset = base_offset + index
                while live_at < len(live) and live[live_at] < offset:
                    live_at += 1
                if live_at == len(live) or live[live_at] != offset:
                    superseded += 1
                    superseded_bytes += end - length_at
                    continue
            timestamp_delta, field = read_varint(buffer, start + 1, end)
            if field == BAD_VARINT:
                return written, BAD_RECORD, batch.position
            delta, field = read_varint(buffer, field, end)
            if field == BAD_VARINT:
                return written, BAD_DELTA, batch.position
            rest = field
            key_size, field = read_varint(buffer, field, end)
            if field == BAD_VARINT or key_size < -1 or key_size > end - field:
                return written, BAD_KEY, batch.position
            value_size, field = read_varint(buffer, field + max(key_size, 0), end)
            if field == BAD_VARINT or value_size < -1 or value_size > end - field:
                return written, BAD_VALUE, batch.position
            offset = base_offset + delta
            if not is_control and offset < end_offset:
                if key_size < 0:
                    if not retain_keyless:
                        keyless += 1
                        keyless_bytes += end - length_at
                        continue
                else:
                    if offset >= first_dirty:
                        while live_at < len(live) and live[live_at] < offset:
                            live_at += 1
                        is_latest = live_at < len(live) and live[live_at] == offset
                    else:
                        while dead_at < len(dead) and dead[dead_at] < offset:
                            dead_at += 1
                        is_latest = dead_at == len(dead) or dead[dead_at] != offset
                    if not is_latest:
                        superseded += 1
                        superseded_bytes += end - length_at
                        continue
                    if value_size < 0:
                        is_over = (rule == SEGMENT_GOES and offset < ages_below) or (
                            rule == BY_BATCH and horizon_set and now_ms >= batch.base_timestamp
                        )
                        if (is_over or _contains(forgotten, offset)) and not _contains(
                            held, offset
                        ):
                            expired += 1
                            expired_bytes += end - length_at
                            continue
                        # What is held although its time is over does not wait for a time.
                        expires = expires or not is_over
            if value_size < 0:
                has_tombstone = True
            scratch[count, _START] = start
            scratch[count, _END] = end
            scratch[count, _TIMESTAMP] = timestamp_delta
            scratch[count, _DELTA] = delta
            scratch[count, _REST] = rest
            count += 1
        if at != payload_end:
            return written, BAD_RECORD, batch.position
        _count_drops(dropped, SUPERSEDED, batch, superseded, superseded_bytes)
        _count_drops(dropped, TOMBSTONE, batch, expired, expired_bytes)
        _count_drops(dropped, NO_KEY, batch, keyless, keyless_bytes)
        starts_horizon = (
            rule == BY_BATCH
            and (has_tombstone or batch.needs_horizon == 1)
            and not horizon_set
            and new_horizon >= 0
        )
        if rule == BY_BATCH and expires and count > 0 and (horizon_set or starts_horizon):
            deadline = batch.base_timestamp if horizon_set else new_horizon
            expiry[0] = min(expiry[0], deadline)
        written = _settle_batch(
            buffer,
            batch,
            count,
            nothing_left,
            starts_horizon,
            new_horizon,
            scratch,
            kept,
            written,
        )
    return written, OK, -1


@inlined
def _count_drops(dropped: Any, reason: int, batch: Any, records: int, size_bytes: int) -> None:
    """Add what goes of the batch for one reason; if it is all, the payload as stored counts."""
    if records > 0:
        dropped[0, reason] += records
        if records == batch.count:
            dropped[1, reason] += batch.size_bytes - _HEADER_BYTES
        else:
            dropped[1, reason] += size_bytes


@inlined
def _settle_batch(
    buffer: Any,
    batch: Any,
    count: int,
    nothing_left: int,
    starts_horizon: bool,
    new_horizon: int,
    scratch: Any,
    kept: Any,
    written: int,
) -> Any:
    """Fill the action of a batch of which `count` records stay; write them if it is rewritten."""
    batch.kept_count = count
    if count == 0:
        batch.action = nothing_left
        return written
    if count == batch.count and not starts_horizon:
        batch.action = COPY
        return written
    batch.action = REWRITE
    log_append_time = (batch.attributes & _TIMESTAMP_TYPE_MASK) != 0
    old_base = batch.base_timestamp
    if starts_horizon:
        batch.attributes |= _HORIZON_MASK
        new_base = np.int64(new_horizon)
    elif (batch.attributes & _HORIZON_MASK) != 0:
        new_base = old_base
    elif log_append_time:
        new_base = batch.max_timestamp
    else:
        new_base = old_base + scratch[0, _TIMESTAMP]
    new_max = np.int64(-1)
    for i in range(count):
        start = scratch[i, _START]
        end = scratch[i, _END]
        if log_append_time:
            timestamp = batch.max_timestamp
        else:
            timestamp = old_base + scratch[i, _TIMESTAMP]
        new_max = max(new_max, timestamp)
        rest = scratch[i, _REST]
        new_delta = timestamp - new_base
        size = 1 + size_of_varint(new_delta) + size_of_varint(scratch[i, _DELTA]) + end - rest
        written = write_varint(kept, written, size)
        if new_delta == scratch[i, _TIMESTAMP]:
            copy_bytes(kept, written, buffer, start, end - start)
            written += end - start
        else:
            kept[written] = buffer[start]
            written = write_varint(kept, written + 1, new_delta)
            written = write_varint(kept, written, scratch[i, _DELTA])
            copy_bytes(kept, written, buffer, rest, end - rest)
            written += end - rest
    batch.kept_end = written
    batch.new_base_timestamp = new_base
    batch.new_max_timestamp = batch.max_timestamp if log_append_time else new_max
    return written
