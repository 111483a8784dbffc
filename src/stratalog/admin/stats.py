"""What a log holds, counted: every record is looked at once.

The number of keys is exact as long as their hashes fit `_MAP_BYTES`; past that it is not told.
Records of aborted transactions count as records, not as holders of keys.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from stratalog.admin.columns import Columns, Secret, chunk_reader, record_columns
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.floors import clean_spec, log_settings
from stratalog.admin.state import open_to_read
from stratalog.base.clock import Clock
from stratalog.base.errors import StorageIOError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Scratch, Table, scan_chunk
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.offset_map import OffsetMap
from stratalog.clean.settle import aborted_columns
from stratalog.config.settings import Settings
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.view import LogView
from stratalog.record import layout
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.record.kernel import scan
from stratalog.record.kernel.columns import KEYS
from stratalog.segment.names import CLEANER_OFFSET_CHECKPOINT

_MAP_BYTES = 768 << 20
"""Room for thirty million keys."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition. Sizes are bytes, times ms since the epoch (None: there is none).

    `keys`: distinct keys, None if there are too many to tell; `live_ratio`: keys over records that
    have one, None without either.
    """

    partition: str
    directory: str
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    cleaner_checkpoint: int | None
    segments: int
    log_bytes: int
    index_bytes: int
    batches: int
    records: int
    markers: int
    keyless: int
    tombstones: int
    keys: int | None
    live_ratio: float | None
    key_bytes: int
    value_bytes: int
    oldest_timestamp: int | None
    newest_timestamp: int | None
    codecs: dict[str, int]
    magics: dict[str, int]
    batches_with_horizon: int
    transactional_batches: int
    commits: int
    aborts: int
    aborted_records: int
    open_transactions: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Tally:
    """Adds up while the log is walked."""

    batches: int = 0
    records: int = 0
    markers: int = 0
    keyless: int = 0
    tombstones: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    oldest: int | None = None
    newest: int | None = None
    keyed: int = 0
    keys_fit: bool = True
    horizons: int = 0
    transactional: int = 0
    aborted_records: int = 0
    codecs: Counter[int] = field(default_factory=Counter)
    magics: Counter[int] = field(default_factory=Counter)
    controls: Counter[int] = field(default_factory=Counter)

    def add_batches(self, table: Table) -> None:
        attributes = table["attributes"]
        is_v2 = table["magic"] == layout.MAGIC_V2
        is_control = is_v2 & (attributes & layout.CONTROL_MASK != 0)
        is_transactional = is_v2 & (attributes & layout.TRANSACTIONAL_MASK != 0)
        self.batches += len(table)
        self.codecs.update((attributes & layout.CODEC_MASK).tolist())
        self.magics.update(table["magic"].tolist())
        self.horizons += int((is_v2 & (attributes & layout.DELETE_HORIZON_MASK != 0)).sum())
        self.transactional += int((is_transactional & ~is_control).sum())
        self.controls.update(table["control_type"][is_control].tolist())

    def add_records(
        self, columns: Columns, table: Table, keys: OffsetMap, scratch: Scratch
    ) -> None:
        in_batch = columns.rows
        is_marker = (table["attributes"][in_batch] & layout.CONTROL_MASK != 0) & (
            table["magic"][in_batch] == layout.MAGIC_V2
        )
        is_data = ~is_marker
        is_keyed = is_data & (columns.key_sizes >= 0)
        is_aborted = is_data & (table["is_aborted"][in_batch] == 1)
        self.records += int(is_data.sum())
        self.markers += int(is_marker.sum())
        self.aborted_records += int(is_aborted.sum())
        self.keyless += int((is_data & ~is_keyed).sum())
        self.tombstones += int((is_keyed & (columns.value_sizes < 0)).sum())
        self.key_bytes += int(columns.key_sizes[is_keyed].sum())
        self.value_bytes += int(np.maximum(columns.value_sizes[is_data], 0).sum())
        times = columns.timestamps[is_data & (columns.timestamps >= 0)]
        if len(times):
            oldest, newest = int(times.min()), int(times.max())
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)
            self.newest = newest if self.newest is None else max(self.newest, newest)
        is_holder = is_keyed & ~is_aborted
        self.keyed += int(is_holder.sum())
        if self.keys_fit:
            # How many keys there are does not depend on which of their records is the newest.
            self.keys_fit = keys.add(columns.key_rows(is_holder, Order.OFFSET), scratch)


def partition_stats(
    place: PartitionPlace,
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> PartitionStats:
    """Count a partition. Raises `CorruptionError` for the first damage, `UsageError`."""
    checkpoints = read_checkpoint(
        filesystem, os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
    )
    with open_to_read(place, log_settings(settings), filesystem, clock) as log:
        view = log.view
    spec = clean_spec(settings, clock.now_ms())
    tally, keys, scratch = _Tally(), OffsetMap(memory_bytes=_MAP_BYTES), Scratch()
    aborted = aborted_columns([entry for segment in view.segments for entry in segment.aborted])
    done_bytes = 0
    for segment in view.segments:
        with chunk_reader(
            filesystem, place.path, segment.base_offset, segment.size_bytes, spec
        ) as reader:
            while (chunk := reader.take(scratch)) is not None:
                table = scan_chunk(chunk, spec, -1, scratch)
                scan.mark_aborted(table, len(table), *aborted)
                scan.read_control_types(chunk.raw, chunk.raw, table, 0, len(table))
                tally.add_batches(table)
                everything = np.ones(len(table), np.bool_)
                for columns in record_columns(
                    chunk, table, everything, spec, _secret(spec), scratch, hashing=KEYS
                ):
                    tally.add_records(columns, table, keys, scratch)
                done_bytes += chunk.size_bytes
                on_progress(Progress("count", done_bytes, view.segments.size_bytes))
    return _stats(place, view, tally, keys, checkpoints.get(place.topic_partition))


def try_partition_stats(
    place: PartitionPlace,
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> PartitionStats | StratalogError:
    """The same, or why one of several cannot be counted."""
    try:
        return partition_stats(place, settings, filesystem, clock, on_progress)
    except StratalogError as error:
        return error
    except FileNotFoundError as error:
        return StorageIOError(f"{error.filename}: gone")


def _secret(spec: CleanSpec) -> Secret:
    key0, key1 = spec.hash_secret
    return np.uint64(key0), np.uint64(key1)


def _stats(
    place: PartitionPlace, view: LogView, tally: _Tally, keys: OffsetMap, checkpoint: int | None
) -> PartitionStats:
    entries = [segment.indexes.entries() for segment in view.segments]
    distinct = keys.used if tally.keys_fit else None
    return PartitionStats(
        partition=place.name,
        directory=place.path,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        last_stable_offset=view.last_stable_offset,
        cleaner_checkpoint=checkpoint,
        segments=len(view.segments),
        log_bytes=view.segments.size_bytes,
        index_bytes=sum(8 * len(offsets) + 12 * len(times) for offsets, times in entries),
        batches=tally.batches,
        records=tally.records,
        markers=tally.markers,
        keyless=tally.keyless,
        tombstones=tally.tombstones,
        keys=distinct,
        live_ratio=distinct / tally.keyed if tally.keyed and distinct is not None else None,
        key_bytes=tally.key_bytes,
        value_bytes=tally.value_bytes,
        oldest_timestamp=tally.oldest,
        newest_timestamp=tally.newest,
        codecs={Codec(c).name.lower(): count for c, count in sorted(tally.codecs.items())},
        magics={str(magic): count for magic, count in sorted(tally.magics.items())},
        batches_with_horizon=tally.horizons,
        transactional_batches=tally.transactional,
        commits=tally.controls[ControlType.COMMIT],
        aborts=tally.controls[ControlType.ABORT],
        aborted_records=tally.aborted_records,
        open_transactions=view.last_stable_offset < view.log_end_offset,
    )
