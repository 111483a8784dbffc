"""What a log is told about itself: one topic's settings as plain values.

The configuration floor fills it from Kafka's properties; a setting that changes makes a new value.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.record.codec import Codec
from stratalog.record.layout import INT64_MAX, TimestampType
from stratalog.record.validate import ProduceRules

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Kafka's topic properties of the same names, with its defaults; sizes bytes, times ms."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    max_compaction_lag_ms: int = INT64_MAX
    producer_expiration_ms: int = DAY_MS
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    compression: Codec | None = None  # None keeps what the producer chose
    compression_level: int | None = None  # None: the codec's own
    has_ledger_mode: bool = False
    """`compaction.mode` is ledger: what this log holds is compacted into a copy beside it."""
    ledger_threshold_bytes: int = 0

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.timestamp_type is TimestampType.LOG_APPEND_TIME

    @property
    def roll_after_ms(self) -> int:
        """The age at which the active segment is rolled (LOG-5)."""
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def produce_rules(self) -> ProduceRules:
        """What `record.validate` asks of records that are appended here."""
        return ProduceRules(
            max_message_bytes=self.max_message_bytes,
            requires_key=self.is_compacted,
            is_log_append_time=self.is_log_append_time,
            max_before_ms=self.message_timestamp_before_max_ms,
            max_after_ms=self.message_timestamp_after_max_ms,
        )
