"""`forget KEY`: no value of a key in any file of a partition any more, with a receipt (CLN-11).

    refuse what cannot be done ─► tombstone, flushed ─► roll, clean through ─► unlink `.deleted`

The receipt has two stages. When it is given, no file holds a value of the key. The tombstone stays
for `delete.retention.ms`, so that readers learn of it; after `keys_gone_ms` a cleaning removes it,
and no file holds the key. Without a tombstone both are true at once, and a reader that has the old
value is never told. What is appended meanwhile is not spoken of: by an order of versions it may be
an older value that nothing but the tombstone hides, and then that stays, and the receipt says so.

Invariants
- I1  Nothing is written if an open transaction, a pause or a policy keeps the key from going, or a
      record that no tombstone of now can be newer than.
- I2  A receipt is given after the last file that held a value is unlinked, durably.
- I3  A partition that does not hold the key gets no tombstone: it would be the first to hold it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stratalog.admin.absent import is_log_name, ledger_log_files
from stratalog.admin.columns import chunk_reader, record_columns
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.dump import text_of
from stratalog.admin.service import Service, open_service
from stratalog.base.clock import Clock
from stratalog.base.errors import StratalogError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Scratch, scan_chunk
from stratalog.clean.engine import OnProgress
from stratalog.clean.index import hash_keys
from stratalog.clean.job import Order
from stratalog.clean.manager import Request
from stratalog.clean.settings import TopicCleaning, spec_of
from stratalog.config.book import SettingsBook
from stratalog.ledger.manifest import held_alone
from stratalog.log.partition_log import PartitionLog
from stratalog.record import layout
from stratalog.record.builder import NewRecord
from stratalog.record.kernel.columns import KEYS
from stratalog.record.kernel.versions import LOWEST
from stratalog.segment.names import FileState, TopicPartition, parse


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `forget` answers. Times in ms since 1970.

    `values_gone_ms`: since then no file of the partition holds a value of the key. `keys_gone_ms`:
    from then on the next cleaning leaves no file that holds the key; None: not by the passing of
    time (`tombstone.horizon=segment`). `was_there` false: the partition did not hold the key, and
    nothing was written. `tombstone_offset` -1: none is left, or none was written; one that was not
    wanted is left where it hides an older value that came meanwhile (CMP-18). `error`: why there is
    no receipt; the times are then none.
    """

    topic: str
    partition: int
    key: str | None
    was_there: bool
    values_gone_ms: int
    keys_gone_ms: int | None
    tombstone_offset: int = -1
    rounds: int = 0
    records_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    files_unlinked: int = 0
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def forget(
    service: Service,
    topic_partition: TopicPartition,
    key: bytes,
    filesystem: FileSystem,
    clock: Clock,
    *,
    keeps_tombstone: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Receipt:
    """Erase a key from a partition (CLN-11).

    Raises `UsageError`, with nothing written, for a topic that is not compacted, a paused
    partition, an open transaction, and where the log's own time is the version and a record is
    ahead of it; after the tombstone was written, what makes a round fail: it can be asked again.
    """
    store, cleaning = service.store, service.cleaning(topic_partition)
    log = store.get(topic_partition)
    log.check_writable()
    _check(service, topic_partition, log)
    with service.manager.exclusively(topic_partition):
        _check_files(log, filesystem)
        found = _find(log, key, cleaning, filesystem)
    is_erased = found.newest_offset < 0 or keeps_tombstone
    if is_erased and not found.has_value:
        return _nothing_to_do(service, topic_partition, key, found, clock)
    offset = log.append_records([_tombstone(log, key, found, cleaning, clock)]).last_offset
    log.flush()
    entries = service.clean_through(
        topic_partition,
        lambda: Request(
            topic_partition,
            "forget",
            ignores_lag=True,
            forgotten=() if keeps_tombstone else (offset,),
        ),
        on_progress,
        upto=offset + 1,
    )
    if entries[-1].end_offset <= offset:
        raise UsageError(
            f"{topic_partition}: the tombstone at offset {offset} was written, but a transaction "
            "that began meanwhile keeps the log from being cleaned; forget the key again"
        )
    unlinked = store.unlink_deleted(topic_partition)
    now_ms = clock.now_ms()
    is_left = keeps_tombstone or _holds(log, offset)
    return Receipt(
        topic_partition.topic,
        topic_partition.partition,
        text_of(key),
        True,
        now_ms,
        _tombstone_goes_ms(log, offset, cleaning, now_ms) if is_left else now_ms,
        offset if is_left else -1,
        len(entries),
        sum(entry.records_before - entry.records_after for entry in entries),
        entries[0].bytes_before,
        entries[-1].bytes_after,
        unlinked,
    )


def forget_in(
    places: Sequence[PartitionPlace],
    key: bytes,
    book: SettingsBook,
    filesystem: FileSystem,
    clock: Clock,
    *,
    keeps_tombstone: bool,
    on_progress: OnProgress = lambda _: None,
) -> list[Receipt]:
    """Erase a key from partitions that no process has open; a receipt each, which says if one could
    not be given (`error`).

    Raises `LogLockedError` and what keeps a directory from being opened.
    """
    receipts = []
    dirs = [place.log_dir for place in places]
    with open_service(dirs, book, filesystem, clock, on_progress=on_progress) as service:
        for place in places:
            try:
                receipt = forget(
                    service,
                    place.topic_partition,
                    key,
                    filesystem,
                    clock,
                    keeps_tombstone=keeps_tombstone,
                    on_progress=on_progress,
                )
            except StratalogError as error:
                name = (place.topic_partition.topic, place.topic_partition.partition)
                receipt = Receipt(*name, text_of(key), False, -1, None, error=str(error))
            receipts.append(receipt)
    return receipts


def _check(service: Service, topic_partition: TopicPartition, log: PartitionLog) -> None:
    """Raises `UsageError` if cleaning could not go through to the log's end (I1), or if the key
    would stay in a ledger."""
    current = service.ledgers.manifest(topic_partition).current
    if current is not None:
        alone = held_alone(current, log.log_start_offset)
        lost = "" if alone is None else f", and offsets {alone[0]} to {alone[1] - 1} are only there"
        raise UsageError(
            f"{topic_partition}: it has a ledger, in which the key would stay{lost}; while no "
            f"process has the log open, `stratalog compact {shlex.quote(log.path)} --in-place "
            "--config compaction.mode=inplace --config cleanup.policy=compact` does away with the "
            "ledger; then forget the key with compaction.mode=inplace"
        )
    if service.cleaning(topic_partition).uses_ledger:
        raise UsageError(
            f"{topic_partition}: compaction.mode is ledger: the key would stay in the raw log; "
            "forget it with compaction.mode=inplace"
        )
    if not service.cleaning(topic_partition).is_compacted:
        is_given = service.settings(topic_partition.topic).is_given("cleanup.policy")
        raise UsageError(
            f"{topic_partition}: cleanup.policy is without compact: the key goes with retention, "
            "or with `records delete`"
            if is_given
            else f"{topic_partition}: nobody says that cleanup.policy has compact: if it has, say "
            "so, with --config cleanup.policy=compact"
        )
    if service.manager.note_of(topic_partition).paused:
        raise UsageError(
            f"{topic_partition}: cleaning is paused; `stratalog compaction resume` ends that"
        )
    view = log.view
    if view.last_stable_offset < view.log_end_offset:
        raise UsageError(
            f"{topic_partition}: a transaction that began at offset {view.last_stable_offset} is "
            "open: what lies behind it cannot be cleaned until it ends"
        )


def _nothing_to_do(
    service: Service, topic_partition: TopicPartition, key: bytes, found: _Found, clock: Clock
) -> Receipt:
    """No record of the partition has a value of the key; old files may."""
    log = service.store.get(topic_partition)
    unlinked = service.store.unlink_deleted(topic_partition)
    now_ms = clock.now_ms()
    is_there = found.newest_offset >= 0
    cleaning = service.cleaning(topic_partition)
    return Receipt(
        topic_partition.topic,
        topic_partition.partition,
        text_of(key),
        is_there,
        now_ms,
        _tombstone_goes_ms(log, found.newest_offset, cleaning, now_ms) if is_there else now_ms,
        found.newest_offset,
        files_unlinked=unlinked,
    )


def _check_files(log: PartitionLog, filesystem: FileSystem) -> None:
    """Raises `UsageError` for a file that may hold the key and that nothing here removes: what a
    repair has put aside, a ledger that does not count any more and is still read (I2)."""
    for name in ledger_log_files(log.path, filesystem):
        path = os.path.join(log.path, name)
        raise UsageError(f"{path} may hold the key: a ledger that somebody reads; try again later")
    for name in filesystem.list_directory(log.path):
        kinds = (FileState.FINAL, FileState.DELETED)
        parsed = parse(name)
        is_known = parsed is not None and parsed.state in kinds
        if is_log_name(name) and not is_known:
            path = os.path.join(log.path, name)
            raise UsageError(f"{path} may hold the key, and is no part of the log: remove it first")


@dataclass(frozen=True, slots=True)
class _Found:
    """A key's records. `newest_offset`: of the one that counts (CMP-17), -1 if there is none."""

    newest_offset: int
    has_value: bool


def _find(log: PartitionLog, key: bytes, cleaning: TopicCleaning, filesystem: FileSystem) -> _Found:
    """Look for a key in all records, those of aborted transactions too. Nobody may change segments
    meanwhile. Raises `CorruptionError`."""
    spec = spec_of(cleaning, 0)
    secret = (np.uint64(spec.hash_secret[0]), np.uint64(spec.hash_secret[1]))
    [wanted] = hash_keys([key], secret)
    scratch = Scratch()
    start, has_value = log.view.log_start_offset, False
    candidates = [(LOWEST, -1)]
    for segment in log.view.segments:
        with chunk_reader(
            filesystem, log.path, segment.base_offset, segment.size_bytes, spec
        ) as reader:
            while (chunk := reader.take(scratch)) is not None:
                table = scan_chunk(chunk, spec, -1, scratch)
                is_data = table["attributes"] & layout.CONTROL_MASK == 0
                for columns in record_columns(
                    chunk, table, is_data, spec, secret, scratch, hashing=KEYS
                ):
                    is_it = (columns.keys == wanted).all(axis=1) & (columns.key_sizes >= 0)
                    has_value |= bool((columns.value_sizes[is_it] >= 0).any())
                    # What lies below the log start is there for no reader, only on the disk.
                    is_it &= columns.offsets >= start
                    by_offset = cleaning.order is Order.OFFSET
                    versions = columns.offsets if by_offset else columns.versions
                    pairs = zip(
                        versions[is_it].tolist(), columns.offsets[is_it].tolist(), strict=True
                    )
                    candidates = [max([*candidates, *pairs])]
    return _Found(candidates[0][1], has_value)


def _tombstone(
    log: PartitionLog, key: bytes, found: _Found, cleaning: TopicCleaning, clock: Clock
) -> NewRecord:
    """A tombstone that is the key's newest record: of the version of the newest, and after it.

    Raises `UsageError` if it could not be.
    """
    timestamp = clock.now_ms()
    if cleaning.order is Order.OFFSET or found.newest_offset < 0:
        return NewRecord(key, None, timestamp)
    newest = next(iter(log.read_records(found.newest_offset)))
    if cleaning.order is Order.TIMESTAMP:
        # The log gives the tombstone its own time, whatever the record says.
        if log.settings.is_log_append_time and newest.timestamp > timestamp:
            raise UsageError(
                f"{log.path}: the record at offset {found.newest_offset} has a time in the future, "
                f"{newest.timestamp}; with message.timestamp.type=LogAppendTime no tombstone can "
                "be newer before then: forget the key later, or with CreateTime"
            )
        return NewRecord(key, None, max(timestamp, newest.timestamp))
    name = cleaning.version_header.encode()
    return NewRecord(key, None, timestamp, tuple(h for h in newest.headers if h[0] == name))


def _holds(log: PartitionLog, offset: int) -> bool:
    """Whether there is still a record at `offset`, which the cleaner may have removed."""
    if offset < log.log_start_offset:
        return False
    return next(iter(log.read_records(offset, end_offset=offset + 1)), None) is not None


def _tombstone_goes_ms(
    log: PartitionLog, offset: int, cleaning: TopicCleaning, now_ms: int
) -> int | None:
    if cleaning.by_segment:
        return None
    segment = log.segments.floor(offset)
    placed = None if segment is None else segment.find(offset)
    if placed is None or placed.header.last_offset < offset:
        return now_ms
    return placed.header.delete_horizon_ms
