"""Settings on their way to the log: what the table says is what a log is told."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from stratalog.admin.floors import (
    choice_settings,
    clean_spec,
    cleaner_settings,
    log_settings,
    store_settings,
)
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.settings import CleanerSettings, EngineChoice, TopicCleaning, spec_of
from stratalog.config.settings import resolve
from stratalog.log.log_store import StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.record.codec import Codec

CHANGES = {
    "cleanup.policy": ("compact,delete", ("compact", "delete")),
    "retention.ms": ("-1", -1),
    "retention.bytes": ("128000", 128_000),
    "file.delete.delay.ms": ("0", 0),
    "flush.messages": ("1", 1),
    "flush.ms": ("500", 500),
    "segment.ms": ("11", 11),
    "compression.type": ("zstd", Codec.ZSTD),
    "compaction.mode": ("ledger", True),
    "compaction.threshold": ("15", 15),
}
FIELDS = {
    "compression.type": "compression",
    "compaction.mode": "has_ledger_mode",
    "compaction.threshold": "ledger_threshold_bytes",
}


@pytest.mark.requirement("CFG-1")
def test_a_log_that_is_told_nothing_has_the_tables_defaults() -> None:
    assert log_settings(resolve({})) == LogSettings()


@pytest.mark.requirement("RET-1")
def test_a_store_has_the_tables_defaults_and_what_it_is_given() -> None:
    assert store_settings(resolve({})) == StoreSettings()
    given = {
        "log.cleanup.interval.mins": "2",
        "log.flush.offset.checkpoint.interval.ms": "7",
        "log.flush.start.offset.checkpoint.interval.ms": "8",
        "num.recovery.threads.per.data.dir": "9",
    }
    told = store_settings(resolve(given))
    assert told == StoreSettings(120_000, 7, 8, 7, recovery_threads=9)
    newer = {**given, "log.retention.check.interval.ms": "5"}
    assert store_settings(resolve(newer)).retention_check_ms == 5


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_reaches_its_field_and_no_other(name: str) -> None:
    text, value = CHANGES[name]
    told = log_settings(resolve({name: text}))
    changed = {
        field.name
        for field in fields(LogSettings)
        if getattr(told, field.name) != getattr(LogSettings(), field.name)
    }
    field_name = FIELDS.get(name, name.replace(".", "_"))
    assert changed == {field_name}
    assert getattr(told, field_name) == value


@pytest.mark.parametrize(
    ("text", "codec"), [("producer", None), ("uncompressed", Codec.NONE), ("lz4", Codec.LZ4)]
)
def test_only_a_named_codec_replaces_the_producers(text: str, codec: Codec | None) -> None:
    assert log_settings(resolve({"compression.type": text})).compression is codec


CHOICES = {
    "cleanup.policy": ("compact", {"is_compacted": True, "deletes": False}),
    "min.cleanable.dirty.ratio": ("0.25", {"min_dirty_ratio": 0.25}),
    "min.compaction.lag.ms": ("7", {"min_lag_ms": 7}),
    "max.compaction.lag.ms": ("8", {"max_lag_ms": 8}),
    "delete.retention.ms": ("9", {"delete_retention_ms": 9}),
    "internal.segment.bytes": ("10", {"segment_bytes": 10}),
    "segment.index.bytes": ("11", {"segment_index_bytes": 11}),
    "index.interval.bytes": ("12", {"index_interval_bytes": 12}),
    "max.message.bytes": ("13", {"max_message_bytes": 13}),
    "compaction.retain.null.key": ("true", {"retain_keyless": True}),
    "compaction.strategy": ("timestamp", {"order": Order.TIMESTAMP}),
    "compaction.strategy.header": ("v", {"version_header": "v"}),
    "tombstone.horizon": ("segment", {"by_segment": True}),
    "compaction.mode": ("ledger", {"uses_ledger": True}),
    "compaction.threshold": ("14", {"threshold_bytes": 14}),
    "compaction.ledgers.retained": ("3", {"ledgers_retained": 3}),
}

CLEANERS = {
    "log.cleaner.enable": ("false", {"enable": False}),
    "log.cleaner.threads": ("3", {"threads": 3}),
    "log.cleaner.dedupe.buffer.size": ("480", {"dedupe_buffer_bytes": 480, "max_keys": 18}),
    "log.cleaner.io.buffer.load.factor": ("0.5", {"load_factor": 0.5}),
    "log.cleaner.io.buffer.size": ("5", {"io_buffer_bytes": 5}),
    "log.cleaner.io.max.bytes.per.second": ("6.5", {"io_max_bytes_per_second": 6.5}),
    "log.cleaner.backoff.ms": ("7", {"backoff_ms": 7}),
    "cleaner.engine": ("spark", {"engine": EngineChoice.SPARK}),
    "cleaner.spark.master": ("local[2]", {"spark_master": "local[2]"}),
    "cleaner.spark.min.bytes": ("8", {"spark_min_bytes": 8}),
    "cleaner.retry.backoff.ms": ("9", {"retry_backoff_ms": 9}),
    "cleaner.retry.backoff.max.ms": ("70000", {"retry_backoff_max_ms": 70_000}),
    "cleaner.history.size": ("10", {"history_size": 10}),
}


@pytest.mark.requirement("CFG-1", "CMP-17")
@pytest.mark.parametrize("name", CHOICES)
def test_a_topics_cleaning_is_told_what_is_set_and_nothing_else(name: str) -> None:
    text, changes = CHOICES[name]
    told = choice_settings(resolve({name: text}))
    assert told == replace(TopicCleaning(), **changes)  # type: ignore[arg-type]


@pytest.mark.requirement("CLN-1")
@pytest.mark.parametrize("name", CLEANERS)
def test_a_cleaner_is_told_what_is_set_and_nothing_else(name: str) -> None:
    text, changes = CLEANERS[name]
    told = cleaner_settings(resolve({name: text}))
    assert told == replace(CleanerSettings(), **changes)  # type: ignore[arg-type]


@pytest.mark.requirement("CFG-1", "CLN-1")
def test_the_cleaning_that_is_told_nothing_has_the_tables_defaults() -> None:
    assert choice_settings(resolve({})) == TopicCleaning()
    assert cleaner_settings(resolve({})) == CleanerSettings()
    bare = CleanSpec(5, hash_secret=(1, 2))
    assert replace(clean_spec(resolve({}), 5), hash_secret=(1, 2)) == bare
    assert spec_of(TopicCleaning(), 5, hash_secret=(1, 2)) == bare
    assert clean_spec(resolve({}), 5).hash_secret != clean_spec(resolve({}), 5).hash_secret


@pytest.mark.requirement("CMP-17", "CMP-8")
def test_a_round_is_told_of_the_order_and_of_the_horizon() -> None:
    given = {
        "compaction.strategy": "header",
        "compaction.strategy.header": "version",
        "tombstone.horizon": "segment",
        "log.cleaner.dedupe.buffer.size": "2424",
        "compaction.retain.null.key": "true",
        "delete.retention.ms": "3",
    }
    spec = clean_spec(resolve(given), 5)
    assert (spec.order, spec.version_header) == (Order.HEADER, "version")
    assert (spec.by_segment, spec.retain_keyless, spec.max_keys) == (True, True, 90)
    assert (spec.now_ms, spec.new_horizon_ms) == (5, 8)
    told = spec_of(TopicCleaning(), 5, max_keys=6, memory_bytes=7, chunk_bytes=8)
    assert (told.max_keys, told.memory_bytes, told.chunk_bytes) == (6, 7, 8)


@pytest.mark.requirement("CLN-1")
def test_who_cleans_and_how_long_a_failure_waits() -> None:
    auto = CleanerSettings(spark_min_bytes=10)
    assert not auto.uses_spark(11)
    assert [replace(auto, spark_master="m").uses_spark(size) for size in (9, 10)] == [False, True]
    assert CleanerSettings(engine=EngineChoice.SPARK).uses_spark(0)
    local = CleanerSettings(engine=EngineChoice.LOCAL, spark_master="m", spark_min_bytes=0)
    assert not local.uses_spark(1 << 50)
    waits = [CleanerSettings().retry_after_ms(failures) for failures in (1, 2, 6, 7, 10**6)]
    assert waits == [60_000, 120_000, 1_920_000, 3_600_000, 3_600_000]
    assert CleanerSettings(threads=3).thread_buffer_bytes == (128 << 20) // 3
