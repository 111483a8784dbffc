"""Settings as the plain values that the floors below take."""

from __future__ import annotations

from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.settings import CleanerSettings, EngineChoice, TopicCleaning, spec_of
from stratalog.config.settings import Settings
from stratalog.log.log_store import StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.record.codec import Codec
from stratalog.record.layout import TimestampType

_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}
_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def log_settings(settings: Settings) -> LogSettings:
    """What a partition's log is told."""
    return LogSettings(
        cleanup_policy=settings.words("cleanup.policy"),
        segment_bytes=settings.segment_bytes,
        segment_index_bytes=settings.integer("segment.index.bytes"),
        segment_ms=settings.integer("segment.ms"),
        segment_jitter_ms=settings.integer("segment.jitter.ms"),
        index_interval_bytes=settings.integer("index.interval.bytes"),
        max_message_bytes=settings.integer("max.message.bytes"),
        timestamp_type=_TIMESTAMP_TYPES[settings.text("message.timestamp.type")],
        message_timestamp_before_max_ms=settings.integer("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=settings.integer("message.timestamp.after.max.ms"),
        max_compaction_lag_ms=settings.integer("max.compaction.lag.ms"),
        producer_expiration_ms=settings.integer("producer.id.expiration.ms"),
        retention_ms=settings.integer("retention.ms"),
        retention_bytes=settings.integer("retention.bytes"),
        file_delete_delay_ms=settings.integer("file.delete.delay.ms"),
        flush_messages=settings.integer("flush.messages"),
        flush_ms=settings.integer("flush.ms"),
        compression=_CODECS.get(settings.text("compression.type")),
        compression_level=_compression_level(settings),
        has_ledger_mode=settings.text("compaction.mode") == "ledger",
        ledger_threshold_bytes=settings.integer("compaction.threshold"),
    )


def _compression_level(settings: Settings) -> int | None:
    """That of the topic's codec, if somebody gave one; None: the codec's own."""
    codec = settings.text("compression.type")
    name = f"compression.{codec}.level"
    is_given = codec in ("gzip", "lz4", "zstd") and settings.is_given(name)
    return settings.integer(name) if is_given else None


def store_settings(settings: Settings) -> StoreSettings:
    """What a process's log store is told (RET-1, RCV-1); idle segments are looked for as often as
    checkpoints are written."""
    point_checkpoint_ms = settings.integer("log.flush.offset.checkpoint.interval.ms")
    return StoreSettings(
        retention_check_ms=settings.integer("log.retention.check.interval.ms"),
        point_checkpoint_ms=point_checkpoint_ms,
        start_checkpoint_ms=settings.integer("log.flush.start.offset.checkpoint.interval.ms"),
        roll_check_ms=point_checkpoint_ms,
        recovery_threads=settings.integer("num.recovery.threads.per.data.dir"),
    )


def clean_spec(settings: Settings, now_ms: int) -> CleanSpec:
    """What a round of cleaning is told, with a fresh secret for the key hash (CMP-6)."""
    return spec_of(choice_settings(settings), now_ms, max_keys=settings.max_keys)


def choice_settings(settings: Settings) -> TopicCleaning:
    """What the choice of a log and its rounds are told of its topic (CLN-2, CMP-17)."""
    policy = settings.words("cleanup.policy")
    return TopicCleaning(
        is_compacted="compact" in policy,
        deletes="delete" in policy,
        min_dirty_ratio=settings.number("min.cleanable.dirty.ratio"),
        min_lag_ms=settings.integer("min.compaction.lag.ms"),
        max_lag_ms=settings.integer("max.compaction.lag.ms"),
        delete_retention_ms=settings.integer("delete.retention.ms"),
        segment_bytes=settings.segment_bytes,
        segment_index_bytes=settings.integer("segment.index.bytes"),
        index_interval_bytes=settings.integer("index.interval.bytes"),
        max_message_bytes=settings.integer("max.message.bytes"),
        retain_keyless=settings.flag("compaction.retain.null.key"),
        order=Order(settings.text("compaction.strategy")),
        version_header=settings.text("compaction.strategy.header"),
        by_segment=settings.text("tombstone.horizon") == "segment",
        uses_ledger=settings.text("compaction.mode") == "ledger",
        threshold_bytes=settings.integer("compaction.threshold"),
        ledgers_retained=settings.integer("compaction.ledgers.retained"),
    )


def cleaner_settings(settings: Settings) -> CleanerSettings:
    """What a process's cleaner is told (CLN-1)."""
    io_buffer = "log.cleaner.io.buffer.size"
    return CleanerSettings(
        enable=settings.flag("log.cleaner.enable"),
        threads=settings.integer("log.cleaner.threads"),
        dedupe_buffer_bytes=settings.integer("log.cleaner.dedupe.buffer.size"),
        load_factor=settings.number("log.cleaner.io.buffer.load.factor"),
        max_keys=settings.max_keys,
        io_buffer_bytes=settings.integer(io_buffer) if settings.is_given(io_buffer) else None,
        io_max_bytes_per_second=settings.number("log.cleaner.io.max.bytes.per.second"),
        backoff_ms=settings.integer("log.cleaner.backoff.ms"),
        engine=EngineChoice(settings.text("cleaner.engine")),
        spark_master=settings.text("cleaner.spark.master"),
        spark_min_bytes=settings.integer("cleaner.spark.min.bytes"),
        retry_backoff_ms=settings.integer("cleaner.retry.backoff.ms"),
        retry_backoff_max_ms=settings.integer("cleaner.retry.backoff.max.ms"),
        history_size=settings.integer("cleaner.history.size"),
    )


def append_codec(settings: Settings) -> Codec:
    """The codec of what is appended; `producer` leaves it to the caller, who has chosen none."""
    return _CODECS.get(settings.text("compression.type"), Codec.NONE)
