"""What a running service says in Prometheus' form, and that it is true."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stratalog.base.disk_space import DiskSpace, disk_space
from stratalog.base.errors import MissingExtraError, StorageIOError
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.settings import LogSettings
from stratalog.metrics import TABLE, Buckets, Kind, Sample, collect, exposition
from stratalog.segment.names import TopicPartition
from tests.clean.services import COMPACTED, NOW, ORDERS, Parts, opened, put

HOUR = 3_600_000
OTHER = TopicPartition("other", 3)
Values = dict[tuple[str, tuple[str, ...]], float]


def collected(parts: Parts, *, per_partition: bool = True) -> list[Sample]:
    return collect(
        parts.store,
        parts.manager,
        parts.cleaner,
        parts.clock,
        per_partition=per_partition,
        space_of=lambda _: DiskSpace(1000, 400),
    )


def values(samples: list[Sample]) -> Values:
    """By (name, label values); of a histogram the count."""
    found: Values = {}
    for sample in samples:
        value = sample.value
        key = (sample.metric.name, sample.labels)
        assert key not in found, f"{key} twice"
        found[key] = sum(value.counts) if isinstance(value, Buckets) else value
    return found


def a_round(parts: Parts, key: TopicPartition = ORDERS) -> None:
    """Two sealed segments whose first is superseded, and their cleaning."""
    log = parts.log(key)
    for value in ("1", "2"):
        put(log, ("a", value), ("b", value))
        log.roll()
    assert parts.clean_all() == 1


def damage(path: str) -> None:
    """Turn a bit in the header of the first segment's second half."""
    name = sorted(name for name in os.listdir(path) if name.endswith(".log"))[0]
    file = Path(path, name)
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)


@contextmanager
def everything(tmp_path: Path) -> Iterator[Parts]:
    """A service in which each metric has something to say."""
    topics = {"orders": replace(COMPACTED, delete_retention_ms=HOUR)}
    settings = CleanerSettings(backoff_ms=HOUR)
    with opened([str(tmp_path)], topics=topics, settings=settings) as parts:
        log = parts.log()
        put(log, ("a", "1"), ("b", "1"))
        put(log, ("a", None))
        log.roll()
        assert parts.clean_all() == 1
        put(log, ("c", "1"))
        log.roll()
        parts.cleaner.start()
        try:
            yield parts
        finally:
            parts.cleaner.close()


@pytest.mark.requirement("ADM-3")
def test_each_metric_of_the_list_is_collected(tmp_path: Path) -> None:
    with everything(tmp_path) as parts:
        named = {sample.metric.name for sample in collected(parts)}
        assert named == {metric.name for metric in TABLE}
        few = {sample.metric.name for sample in collected(parts, per_partition=False)}
        assert few == {metric.name for metric in TABLE if not metric.per_partition}


@pytest.mark.requirement("ADM-3")
def test_what_is_written_is_what_prometheus_reads(tmp_path: Path) -> None:
    with everything(tmp_path) as parts:
        samples = collected(parts)
    text = exposition(samples)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == len(TABLE)
    for metric in TABLE:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind.value, metric.help)
        read = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in family.samples}
        mine = [sample for sample in samples if sample.metric is metric]
        for sample in mine:
            labels = sample.named_labels
            if not isinstance(sample.value, Buckets):
                assert read.pop((metric.name, tuple(sorted(labels.items())))) == sample.value
                continue
            count = 0
            bounds = [*map(str, sample.value.bounds), "+Inf"]
            for bound, more in zip(bounds, sample.value.counts, strict=True):
                count += more
                at = tuple(sorted({**labels, "le": bound}.items()))
                assert read.pop((f"{metric.name}_bucket", at)) == count
            assert read.pop((f"{metric.name}_count", tuple(labels.items()))) == count
            assert read.pop((f"{metric.name}_sum", tuple(labels.items()))) == sample.value.total
        assert not read


def test_values_that_would_break_the_text_are_escaped() -> None:
    [metric] = [metric for metric in TABLE if metric.name == "stratalog_logdir_total_bytes"]
    odd = 'a"b\\c\nd'
    [family] = text_string_to_metric_families(exposition([Sample(metric, 7, (odd,))]))
    assert [(one.labels, one.value) for one in family.samples] == [({"logdir": odd}, 7)]


@pytest.mark.requirement("ADM-3", "CLN-9")
def test_the_numbers_of_a_round(tmp_path: Path) -> None:
    with opened([str(tmp_path)]) as parts:
        before = values(collected(parts))
        assert before["stratalog_cleaner_runs_total", ("ratio", "cleaned")] == 0
        assert ("kafka_log_logcleanermanager_time_since_last_run_ms", ()) not in before
        log = parts.log()
        for value in ("1", "2"):
            put(log, ("a", value), ("b", value))
            log.roll()
        put(log, ("active", "x"))
        sealed = [segment.size_bytes for segment in log.segments.sealed]
        dirty = values(collected(parts))
        assert dirty["kafka_log_logcleanermanager_max_dirty_percent", ()] == 100
        assert dirty["stratalog_cleaner_queue_partitions", ()] == 1
        assert dirty["stratalog_partition_bytes", ("orders", "0", "cleanable")] == sum(sealed)
        oldest = dirty["stratalog_partition_oldest_dirty_timestamp_seconds", ("orders", "0")]
        assert oldest == NOW / 1000
        assert parts.clean_all() == 1
        parts.clock.sleep_ms(2500)
        after = values(collected(parts))
        active_bytes = log.segments.active.size_bytes
    expected = {
        ("stratalog_cleaner_runs_total", ("ratio", "cleaned")): 1,
        ("stratalog_cleaner_runs_total", ("ratio", "failed")): 0,
        ("stratalog_cleaner_records_removed_total", ("superseded",)): 2,
        ("stratalog_cleaner_records_removed_total", ("tombstone",)): 0,
        ("stratalog_cleaner_duration_seconds", ("index",)): 1,
        ("stratalog_cleaner_duration_seconds", ("rewrite",)): 1,
        ("stratalog_cleaner_queue_partitions", ()): 0,
        ("kafka_log_logcleaner_cleaner_recopy_percent", ()): 100 * sealed[1] / sum(sealed),
        ("kafka_log_logcleanermanager_time_since_last_run_ms", ()): 2500,
        ("kafka_log_logcleanermanager_max_dirty_percent", ()): 0,
        ("kafka_log_log_size", ("orders", "0")): sealed[1] + active_bytes,
        ("kafka_log_log_numlogsegments", ("orders", "0")): 2,
        ("kafka_log_log_logstartoffset", ("orders", "0")): 0,
        ("kafka_log_log_logendoffset", ("orders", "0")): 5,
        ("stratalog_partition_first_dirty_offset", ("orders", "0")): 4,
        ("stratalog_partition_bytes", ("orders", "0", "clean")): sealed[1],
        ("stratalog_partition_bytes", ("orders", "0", "cleanable")): 0,
        ("stratalog_partition_bytes", ("orders", "0", "active")): active_bytes,
        ("stratalog_compacted_bytes", ("clean",)): sealed[1],
        ("stratalog_partitions", ("online",)): 1,
        ("stratalog_logdir_usable_bytes", (str(tmp_path),)): 400,
    }
    assert {key: after[key] for key in expected} == pytest.approx(expected)
    assert after["stratalog_cleaner_bytes_read_total", ()] >= sum(sealed)
    assert after["stratalog_cleaner_bytes_written_total", ()] >= sealed[1]
    assert ("stratalog_partition_oldest_dirty_timestamp_seconds", ("orders", "0")) not in after


@pytest.mark.requirement("ADM-3")
def test_the_buffers_use_has_fractions(tmp_path: Path) -> None:
    with opened([str(tmp_path)], settings=CleanerSettings(max_keys=8)) as parts:
        a_round(parts)
        found = values(collected(parts))
    assert found["stratalog_cleaner_map_utilization_ratio", ()] == 0.25
    assert found["kafka_log_logcleaner_max_buffer_utilization_percent", ()] == 25


@pytest.mark.requirement("ADM-3", "CMP-3")
def test_how_overdue_a_log_is(tmp_path: Path) -> None:
    topic = replace(COMPACTED, max_lag_ms=HOUR, min_dirty_ratio=1.0)
    with opened([str(tmp_path)], topics={"orders": topic}) as parts:
        log = parts.log()
        put(log, ("a", "1"))
        log.roll()
        name = "kafka_log_logcleaner_max_compaction_delay_secs"
        parts.clock.sleep_ms(HOUR)
        assert values(collected(parts))[name, ()] == 0
        parts.clock.sleep_ms(90_000)
        assert values(collected(parts))[name, ()] == 90
        assert parts.clean_all() == 1
        assert values(collected(parts))[name, ()] == 0


@pytest.mark.requirement("ADM-3", "CMP-9")
def test_when_the_next_tombstone_goes(tmp_path: Path) -> None:
    with everything(tmp_path) as parts:
        found = values(collected(parts))
    name = "stratalog_partition_next_tombstone_expiry_timestamp_seconds"
    assert found[name, ("orders", "0")] == (NOW + HOUR) / 1000


@pytest.mark.requirement("ADM-3", "CLN-7")
def test_a_partition_that_cannot_be_cleaned(tmp_path: Path) -> None:
    with opened([str(tmp_path)]) as parts:
        for key in (ORDERS, OTHER):
            log = parts.log(key)
            put(log, ("a", "1"), ("b", "1"))
            log.roll()
        log = parts.log()
        log.build_digest()
        sealed_bytes = log.segments.sealed[0].size_bytes
        path = log.path
    damage(path)
    with opened([str(tmp_path)]) as parts:
        parts.clean_all()
        found = values(collected(parts))
        labels = (str(tmp_path),)  # no quotes around it
        assert found["kafka_log_logcleanermanager_uncleanable_partitions_count", labels] == 1
        assert found["kafka_log_logcleanermanager_uncleanable_bytes", labels] == sealed_bytes
        assert found["stratalog_cleaner_runs_total", ("ratio", "failed")] == 1
        assert found["stratalog_cleaner_runs_total", ("ratio", "cleaned")] == 1
        assert found["kafka_log_logcleaner_deadthreadcount", ()] == 0


@pytest.mark.requirement("ADM-3", "CLN-7")
def test_a_log_directory_whose_disk_failed(tmp_path: Path) -> None:
    directories = [str(tmp_path / "one"), str(tmp_path / "two")]
    with opened(directories) as parts:
        parts.log()
        parts.log(OTHER)
        where = parts.store.log_dir_of(ORDERS)
        parts.store.disk_failed(ORDERS, StorageIOError("it is broken"))
        found = values(collected(parts))
    assert found["kafka_log_logmanager_offlinelogdirectorycount", ()] == 1
    for directory in directories:
        offline = found["kafka_log_logmanager_logdirectoryoffline", (directory,)]
        assert offline == (directory == where)
    assert found["stratalog_partitions", ("offline",)] == 1
    assert found["stratalog_partitions", ("online",)] == 1
    assert ("kafka_log_log_size", ("orders", "0")) in found, "it can still be read"


@pytest.mark.requirement("ADM-3", "RET-9")
def test_what_retention_removed(tmp_path: Path) -> None:
    settings = LogSettings(
        cleanup_policy=("delete",), retention_bytes=100, retention_ms=HOUR, segment_bytes=1 << 20
    )
    topics = {"orders": TopicCleaning()}
    with opened([str(tmp_path)], topics=topics, log_settings=settings) as parts:
        log = parts.log()
        for number in range(4):
            put(log, ("a", f"{number}"))
            log.roll()
        sizes = [segment.size_bytes for segment in log.segments.sealed]
        assert sizes[0] < 100 < 2 * sizes[0], "of three one is too many"
        parts.store.delete_records(ORDERS, 1)
        parts.store.run_retention()
        first = values(collected(parts))
        put(log, ("late", "1"), timestamp=NOW)
        parts.clock.sleep_ms(2 * HOUR)
        parts.store.run_retention()
        second = values(collected(parts))
    gone = "stratalog_retention_deleted_segments_total"
    size = "stratalog_retention_deleted_bytes_total"
    assert first[gone, ("start_offset",)] == second[gone, ("start_offset",)] == 1
    assert first[size, ("start_offset",)] == sizes[0]
    assert first[gone, ("time",)] == first[size, ("time",)] == 0
    assert first[gone, ("size",)] == 1
    assert first[size, ("size",)] == sizes[1]
    assert second[gone, ("size",)] == 2
    assert second[gone, ("time",)] == 2, "the one that was left, and the one that was active"


@pytest.mark.requirement("ADM-3", "CLN-8")
def test_what_the_throttle_held_back(tmp_path: Path) -> None:
    settings = CleanerSettings(io_max_bytes_per_second=1000.0)
    with opened([str(tmp_path)], settings=settings) as parts:
        a_round(parts)
        waited = values(collected(parts))["stratalog_cleaner_throttled_seconds_total", ()]
        assert waited == parts.cleaner.throttle.waited_ms / 1000 > 0


@pytest.mark.requirement("ADM-3")
def test_counters_never_go_down(tmp_path: Path, count_cases: Callable[[str, int], None]) -> None:
    rng = random.Random(20261121)
    settings = LogSettings(cleanup_policy=("compact", "delete"), retention_bytes=200)
    topic = replace(COMPACTED, deletes=True, delete_retention_ms=1000)
    with opened(
        [str(tmp_path)], topics={"orders": topic, "other": topic}, log_settings=settings
    ) as parts:
        counters = {metric.name for metric in TABLE if metric.kind is not Kind.GAUGE}
        seen: Values = {}
        steps = 150
        for _ in range(steps):
            key = rng.choice((ORDERS, OTHER))
            match rng.randrange(6):
                case 0 | 1:
                    value = rng.choice(("x" * rng.randrange(50), None))
                    put(parts.log(key), (rng.choice("abc"), value), timestamp=NOW)
                case 2:
                    parts.log(key).roll()
                case 3:
                    parts.clean_all()
                case 4:
                    parts.clock.sleep_ms(rng.randrange(2000))
                    parts.store.run_retention()
                case 5 if key in parts.store.partitions() and rng.random() < 0.2:
                    parts.store.delete(key)
            now = {key: v for key, v in values(collected(parts)).items() if key[0] in counters}
            assert seen.keys() <= now.keys(), "a counter is gone"
            assert all(now[name] >= seen[name] for name in seen)
            seen = now
        assert seen["stratalog_cleaner_runs_total", ("ratio", "cleaned")] > 3
        assert seen["stratalog_retention_deleted_segments_total", ("size",)] > 0
    count_cases("scrapes", steps)


@pytest.mark.requirement("ADM-3", "CLN-1")
def test_threads(tmp_path: Path) -> None:
    settings = CleanerSettings(threads=3, backoff_ms=HOUR)
    with opened([str(tmp_path)], settings=settings) as parts:
        name = "stratalog_cleaner_threads"
        states = ("busy", "idle", "dead")
        assert [values(collected(parts))[name, (state,)] for state in states] == [0, 0, 0]
        parts.cleaner.start()
        try:
            assert [values(collected(parts))[name, (state,)] for state in states] == [0, 3, 0]
        finally:
            parts.cleaner.close()


def test_the_disks_space(tmp_path: Path) -> None:
    found = disk_space(str(tmp_path))
    assert 0 < found.usable_bytes <= found.total_bytes
    with pytest.raises(FileNotFoundError):
        disk_space(str(tmp_path / "not there"))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    with pytest.raises(MissingExtraError, match=r"stratalog\[metrics\]"):
        exposition([])
