"""Settings as the plain values that the floors below take."""

from __future__ import annotations

from stratalog.clean.job import CleanSpec
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
    )


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
    return CleanSpec(
        now_ms,
        delete_retention_ms=settings.integer("delete.retention.ms"),
        segment_bytes=settings.segment_bytes,
        segment_index_bytes=settings.integer("segment.index.bytes"),
        index_interval_bytes=settings.integer("index.interval.bytes"),
        max_keys=settings.max_keys,
        retain_keyless=settings.flag("compaction.retain.null.key"),
    )


def append_codec(settings: Settings) -> Codec:
    """The codec of what is appended; `producer` leaves it to the caller, who has chosen none."""
    return _CODECS.get(settings.text("compression.type"), Codec.NONE)
