"""Directories to be damaged: small logs on a simulated disk, and the right answers about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from stratalog.base.clock import FixedClock
from stratalog.log.leader_epochs import EpochStart
from stratalog.log.log_store import LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.record.layout import TimestampType
from stratalog.segment.txn_index import AbortedTxn
from tests.log.helpers import NOW
from tests.log.stores import A
from tests.sim.disk import SimDisk

PARTITION = "/data/orders-0"
_LAST = 5
"""The last of the turns in which a log is filled."""


@dataclass(frozen=True)
class Shape:
    """What kind of log."""

    name: str
    codec: Codec = Codec.NONE
    start_offset: int = 0
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    value_bytes: int = 12
    transactions: bool = True

    @property
    def settings(self) -> LogSettings:
        return LogSettings(
            segment_bytes=900 + 4 * self.value_bytes if self.transactions else 800,
            index_interval_bytes=150,
            timestamp_type=self.timestamp_type,
            retention_ms=-1,
        )


SHAPES = (
    Shape("plain"),
    Shape("gzip", Codec.GZIP),
    Shape("snappy", Codec.SNAPPY),
    Shape("lz4", Codec.LZ4),
    Shape("zstd", Codec.ZSTD),
    Shape("deleted up to the middle of a batch", start_offset=7),
    Shape("log append time", timestamp_type=TimestampType.LOG_APPEND_TIME),
    Shape("larger, without transactions", value_bytes=60, transactions=False),
    Shape("larger, zstd", Codec.ZSTD, value_bytes=70),
    Shape("gzip, deleted up to a batch", Codec.GZIP, start_offset=9),
    Shape("lz4, log append time", Codec.LZ4, timestamp_type=TimestampType.LOG_APPEND_TIME),
)


@dataclass(frozen=True)
class Truth:
    """What an undamaged log answers. `batches`: (base offset, next offset, bytes); `times`:
    (offset, timestamp) of all data records; the rest as `PartitionLog` has it."""

    start: int
    end: int
    batches: tuple[tuple[int, int, bytes], ...]
    times: tuple[tuple[int, int], ...]
    aborted: tuple[AbortedTxn, ...]
    stable: int
    producers: dict[int, tuple[int, int | None]]
    epochs: tuple[EpochStart, ...]

    def cut_at(self, end: int) -> Truth:
        """The same for a log that ends earlier; what nobody asks of such a one is as it was."""
        return replace(
            self,
            end=end,
            batches=tuple(batch for batch in self.batches if batch[1] <= end),
            times=tuple(pair for pair in self.times if pair[0] < end),
            aborted=tuple(entry for entry in self.aborted if entry.last_offset < end),
        )

    def batch_at(self, offset: int) -> tuple[int, int, bytes] | None:
        """The first that reaches `offset`."""
        return next((batch for batch in self.batches if batch[1] > offset), None)

    def first_at(self, timestamp: int) -> int | None:
        """The offset of the first record of at least `timestamp`."""
        return next((o for o, at in self.times if at >= timestamp and o >= self.start), None)


@dataclass(frozen=True)
class Image:
    """A directory. `recovery_point`: of one that was not closed in order; None: it was."""

    name: str
    disk: SimDisk
    settings: LogSettings
    recovery_point: int | None
    truth: Truth

    def files(self) -> list[tuple[str, bytes]]:
        """Path and content of all that can be damaged."""
        tree = self.disk.tree()
        return [(path, content) for path, content in tree.items() if content]


def open_image(disk: SimDisk, settings: LogSettings, clock: FixedClock | None = None) -> LogStore:
    return LogStore.open(["/data"], lambda _: settings, disk, clock or FixedClock(NOW + 1_000))


def truth_of(log: PartitionLog) -> Truth:
    view = log.view
    return Truth(
        log.log_start_offset,
        log.log_end_offset,
        tuple(
            (batch.header.base_offset, batch.header.next_offset, bytes(batch.data))
            for batch in view.read_batches(log.log_start_offset)
        ),
        tuple(
            (record.offset, record.timestamp)
            for batch in view.read_batches(log.log_start_offset)
            for record in batch.records()
        ),
        tuple(view.aborted_between(log.log_start_offset, log.log_end_offset)),
        log.last_stable_offset,
        log.active_producers(),
        log.leader_epochs,
    )


@lru_cache
def image_of(shape: Shape, *, is_clean: bool) -> Image:
    """A log of some segments, with producers, an aborted and an open transaction."""
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_image(disk, shape.settings, clock)
    log = store.create(A)
    fill = _filler(log, shape, clock)
    for number in range(_LAST - 2):
        fill(number)
    if shape.start_offset:
        store.delete_records(A, shape.start_offset)
    store.build_digests()
    store.flush()
    fill(_LAST - 2)
    log.flush()
    store.checkpoint_points()
    point = log.recovery_point
    for number in (_LAST - 1, _LAST):
        fill(number)
    assert len(log.segments) >= 3
    if is_clean:
        store.close()
    image = disk.fork().sync_all()
    with_log = open_image(image.fork(), shape.settings).get(A)
    assert with_log.quarantine is None
    truth = truth_of(with_log)
    assert truth.end > point > truth.start
    name = f"{shape.name}, {'closed in order' if is_clean else 'crashed'}"
    return Image(name, image, shape.settings, None if is_clean else point, truth)


def _filler(log: PartitionLog, shape: Shape, clock: FixedClock) -> Callable[[int], None]:
    """Appends a turn: a plain batch, one of an idempotent producer, one in a transaction. Each
    third transaction is aborted, the last one stays open."""
    sequence = 0

    def records(turn: int, count: int) -> list[NewRecord]:
        value = bytes(range(65, 90)) * 4
        return [
            NewRecord(
                b"key-%d" % ((turn * 3 + i) % 5),
                value[: shape.value_bytes + i],
                # Not in order: the largest timestamp is not that of the last record.
                NOW + 10 * turn + (5 - i if turn % 2 else i),
                ((b"h", b"x"),) if i == 1 else (),
            )
            for i in range(count)
        ]

    def fill(turn: int) -> None:
        nonlocal sequence
        clock.time_ms += 10
        epoch = turn // 3
        log.append(build_batch(records(turn, 2), codec=shape.codec), epoch)
        made = build_batch(
            records(turn, 1),
            codec=shape.codec,
            producer_id=11,
            producer_epoch=0,
            base_sequence=turn,
        )
        log.append(made, epoch)
        if not shape.transactions:
            return
        made = build_batch(
            records(turn, 3),
            codec=shape.codec,
            producer_id=12,
            producer_epoch=1,
            base_sequence=sequence,
            transactional=True,
        )
        sequence += 3
        log.append(made, epoch)
        if turn != _LAST:
            kind = ControlType.ABORT if turn % 3 == 1 else ControlType.COMMIT
            log.append_marker(kind, producer_id=12, producer_epoch=1, leader_epoch=epoch)

    return fill
