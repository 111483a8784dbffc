"""The rounds of Apache Kafka's cleaner, played by the service: it opens what Kafka had before, at
Kafka's hour and with its settings, chooses for itself, and leaves what Kafka left.

Kafka's states were copied from a live process: no marker of a clean stop, no recovery points. So
each is opened twice: as after a stop in order, and as after a crash, with the recovery point that
Kafka has after a roll. (Without one all is scanned, and indexes made of what is left: of aborted
transactions that are gone, the entries go, too.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.history import read_history
from stratalog.clean.note import UNKNOWN
from stratalog.clean.select import Reason
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.log_store import StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE, TopicPartition, parse_partition_directory
from tests.clean.services import Parts, opened
from tests.naive import files
from tests.oracle import Round, compare_partitions, fold, fold_by_index, index_problems, rounds

Count = Callable[[str, int], None]
CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"


def settings_of(kafka: Round) -> tuple[LogSettings, TopicCleaning, CleanerSettings]:
    """The round's settings, as the three that make a service take them."""

    def number(name: str) -> int:
        return int(kafka.settings[name])

    log = LogSettings(
        cleanup_policy=("compact",),
        segment_bytes=number("segment.bytes"),
        segment_index_bytes=number("segment.index.bytes"),
        index_interval_bytes=number("index.interval.bytes"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        producer_expiration_ms=kafka.producer_expiration_ms,
        file_delete_delay_ms=number("file.delete.delay.ms"),
    )
    topic = TopicCleaning(
        is_compacted=True,
        deletes=False,
        min_dirty_ratio=float(kafka.settings["min.cleanable.dirty.ratio"]),
        min_lag_ms=number("min.compaction.lag.ms"),
        max_lag_ms=number("max.compaction.lag.ms"),
        delete_retention_ms=number("delete.retention.ms"),
        segment_bytes=number("segment.bytes"),
        segment_index_bytes=number("segment.index.bytes"),
        index_interval_bytes=number("index.interval.bytes"),
        max_message_bytes=number("max.message.bytes"),
    )
    cleaner = CleanerSettings(
        max_keys=kafka.inputs.map_limit, io_buffer_bytes=kafka.io_buffer_bytes
    )
    return log, topic, cleaner


def key_of(kafka: Round) -> TopicPartition:
    key = parse_partition_directory(kafka.partition)
    assert key is not None
    return key


@contextmanager
def service_of(kafka: Round, log_dir: Path) -> Iterator[tuple[Parts, PartitionLog]]:
    """The service over `log_dir`, at the time and with the settings of a round."""
    log_settings, topic, cleaner = settings_of(kafka)
    key = key_of(kafka)
    with opened(
        [str(log_dir)],
        topics={key.topic: topic},
        log_settings=log_settings,
        settings=cleaner,
        clock=FixedClock(kafka.now_ms),
        # Kafka's rounds were run without the retention that follows them here (CLN-6).
        store_settings=StoreSettings(policies=lambda _: ()),
    ) as parts:
        assert parts.store.partitions() == [key]
        assert not parts.store.failed
        yield parts, parts.store.get(key)


def check_state(kafka: Round, log: PartitionLog) -> None:
    """What Kafka knew of the log, opening it finds out."""
    assert log.quarantine is None
    assert log.log_start_offset == kafka.log_start_offset
    assert log.log_end_offset == kafka.log_end_offset
    assert log.last_stable_offset == kafka.last_stable_offset
    assert log.active_producers() == kafka.active_producers
    assert log.segments.active.base_offset == kafka.active_segment_base_offset


def cases() -> list[object]:
    """A recovery drops segments that lie below the log start, which changes the groups: not those
    logs."""
    found: list[object] = []
    for kafka in rounds():
        found.append(pytest.param(kafka, True, id=f"{kafka.name}, stopped"))
        bases = sorted(int(path.stem) for path in kafka.before.glob("*.log"))
        if len(bases) == 1 or bases[1] > kafka.log_start_offset:
            found.append(pytest.param(kafka, False, id=f"{kafka.name}, crashed"))
    return found


@pytest.mark.requirement("CLN-2", "CLN-3", "CMP-1", "CMP-18", "LOG-3")
@pytest.mark.parametrize(("kafka", "was_clean"), cases())
def test_the_service_does_what_kafka_did(
    kafka: Round, was_clean: bool, tmp_path: Path, count_cases: Count
) -> None:
    log_dir = shutil.copytree(kafka.before_dir, tmp_path / "data")
    if was_clean:
        (log_dir / CLEAN_SHUTDOWN_FILE).touch()
    else:
        point = files.encode_checkpoint({kafka.partition: kafka.active_segment_base_offset})
        (log_dir / RECOVERY_POINTS).write_text(point)
    partition, key = log_dir / kafka.partition, key_of(kafka)
    with service_of(kafka, log_dir) as (parts, log):
        check_state(kafka, log)
        assert parts.store.cleaner_point(key) == kafka.checkpoint_before
        facts = parts.manager.facts_of(key)
        assert parts.cleaner.run_once("oracle") == kafka.cleaned, parts.manager.explain(key)
        assert compare_partitions(kafka.after, partition, kafka.before) == []
        assert parts.store.cleaner_point(key) == kafka.checkpoint_after
        history = read_history(LocalFileSystem(), log.path)
        if kafka.cleaned:
            [entry] = history
            assert (entry.result, entry.trigger) == ("cleaned", "ratio")
            assert entry.first_dirty == facts.first_dirty == kafka.first_dirty
            assert facts.first_uncleanable == kafka.first_uncleanable
            assert entry.end_offset == kafka.end_offset
            assert entry.records_after == kafka.stats["messages_written"]
            assert entry.drops.no_key == kafka.stats["invalid_messages_read"]
            if "map_entries" in kafka.stats:
                assert entry.keys == kafka.stats["map_entries"]
                sizes = (facts.dirty_bytes, facts.clean_bytes + facts.dirty_bytes)
                assert sizes == (kafka.stats["cleanable_bytes"], kafka.stats["total_bytes"])
            assert index_problems(partition) == []
        else:
            assert history == []
        assert fold(kafka.before) == fold(partition)
        check_state(kafka, log)
    with service_of(kafka, log_dir) as (parts, log):
        check_state(kafka, log)
        assert parts.store.cleaner_point(key) == kafka.checkpoint_after
    # Closing has left a snapshot at the log end.
    left = compare_partitions(kafka.after, partition, kafka.before)
    assert left in ([], [f"snapshots left over: [{kafka.log_end_offset}]"])
    count_cases("rounds of Kafka's cleaner repeated by the service", 1)


def chains() -> list[list[Round]]:
    """The rounds over one log, one after another, where there are at least two."""
    found = [list(group) for _, group in groupby(rounds(), lambda r: r.name.partition("/")[0])]
    return [chain for chain in found if len(chain) > 1]


def grow(log_dir: Path, earlier: Round, later: Round) -> None:
    """Add to our log what was written to Kafka's between two of its rounds: its active segment and
    those after it, and the log start that it had then."""
    partition = log_dir / later.partition
    active_base = earlier.active_segment_base_offset
    for path in sorted(earlier.after.glob("*.log")):
        if int(path.stem) < active_base and (later.before / path.name).exists():
            assert path.read_bytes() == (later.before / path.name).read_bytes(), "they are chained"
    there = {int(path.stem) for path in later.before.glob("*.log")}
    for path in [*partition.iterdir()]:
        if path.stem.isdigit() and (int(path.stem) >= active_base or int(path.stem) < min(there)):
            path.unlink()
    for path in later.before.iterdir():
        if not path.stem.isdigit() or int(path.stem) >= active_base:
            shutil.copy2(path, partition / path.name)
    shutil.rmtree(partition / ".stratalog" / "digests", ignore_errors=True)
    for name in (LOG_STARTS, RECOVERY_POINTS):
        (log_dir / name).unlink(missing_ok=True)
    if (later.before_dir / LOG_STARTS).exists():
        shutil.copy2(later.before_dir / LOG_STARTS, log_dir / LOG_STARTS)


@pytest.mark.requirement("CLN-2", "CLN-3", "CMP-1", "CMP-18")
@pytest.mark.parametrize("chain", chains(), ids=lambda chain: chain[0].name.partition("/")[0])
def test_chained_rounds_agree_with_kafkas(
    chain: list[Round], tmp_path: Path, count_cases: Count
) -> None:
    """Our own output of one round is the input of the next: survivors, fold and checkpoint."""
    log_dir = shutil.copytree(chain[0].before_dir, tmp_path / "data")
    expired = 0
    for place, kafka in enumerate(chain):
        partition, key = log_dir / kafka.partition, key_of(kafka)
        if place > 0:
            grow(log_dir, chain[place - 1], kafka)
        (log_dir / CLEAN_SHUTDOWN_FILE).touch()
        state = fold(partition)
        assert state == fold(kafka.before)
        with service_of(kafka, log_dir) as (parts, log):
            assert parts.store.cleaner_point(key) == kafka.checkpoint_before
            why = parts.manager.explain(key)
            if kafka.cleaned:
                assert why.reason is Reason.RATIO, why.sentence
            elif why.reason is not None:
                # We would clean for what has expired, which Kafka does not (CMP-9): not now.
                assert why.reason is Reason.EXPIRED_TOMBSTONES, why.sentence
                expired += 1
            assert (
                parts.manager.note_of(key).expiry(kafka.checkpoint_before, by_segment=False)
                != UNKNOWN
                or not place
            )
            if kafka.cleaned or why.reason is None:
                assert parts.cleaner.run_once("oracle") == kafka.cleaned, why.sentence
            assert parts.store.cleaner_point(key) == kafka.checkpoint_after
            assert survivors(partition) == survivors(kafka.after)
            assert fold(partition) == state == fold(kafka.after)
            assert fold_by_index(partition, log.last_stable_offset) == state
            check_state(kafka, log)
    count_cases("chained rounds of Kafka's cleaner", len(chain) - expired)
    count_cases("chained rounds that only expired tombstones would make", expired)


def survivors(partition: Path) -> list[object]:
    """Every record, control records too, with all that must not change; and every batch's range."""
    return [
        (batch.base_offset, batch.last_offset, batch.producer_id, batch.horizon_ms, batch.records())
        for segment in files.read_segments(partition)
        for batch in segment.batches
    ]
