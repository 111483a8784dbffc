"""What the cleaner is told, as plain values: of the service, and of one topic.

`CleanerSettings` is the broker's part (threads, memory, throttle, engine), `TopicCleaning` a
topic's; `spec_of` makes of a topic's the `CleanSpec` of one round. The floor of settings fills
them (`admin/floors.py`), so that nothing here knows a property's name.

Invariants
- I1  The defaults are those of the table of settings; a test compares them.
- I2  `spec_of` is pure but for the secret of the key hash, which is fresh unless it is given.

Source: CLN-1, CMP-2, CMP-3, CMP-5, CMP-8, CMP-17; Kafka's CleanerConfig and LogConfig.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from stratalog.base.limits import CHUNK_BYTES
from stratalog.clean.job import CleanSpec, Order, new_secret
from stratalog.record.layout import INT64_MAX

_LEAST_CHUNK_BYTES = 64 << 10


class EngineChoice(Enum):
    """`cleaner.engine`. AUTO: Spark for jobs from `spark_min_bytes` on, if a master is named."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The cleaner of one process. Sizes in bytes, times in ms.

    `dedupe_buffer_bytes` is the memory of all threads together. `max_keys` ends a round (CMP-5);
    None, unless somebody gave the buffer's size: any number of keys, within that memory.
    `io_buffer_bytes` is what all threads together read at a time; None, unless somebody gave it:
    `CHUNK_BYTES` each, as Kafka's small default would have Python run between all the little reads,
    at the cost of whoever appends meanwhile. `io_max_bytes_per_second` is
    infinite if there is no throttle.
    """

    enable: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    max_keys: int | None = None
    io_buffer_bytes: int | None = None
    io_max_bytes_per_second: float = math.inf
    backoff_ms: int = 15_000
    engine: EngineChoice = EngineChoice.AUTO
    spark_master: str = ""
    spark_min_bytes: int = 16 << 30
    retry_backoff_ms: int = 60_000
    retry_backoff_max_ms: int = 3_600_000
    history_size: int = 256

    @property
    def chunk_bytes(self) -> int:
        """What a thread reads at a time."""
        if self.io_buffer_bytes is None:
            return CHUNK_BYTES
        return max(self.io_buffer_bytes // self.threads, _LEAST_CHUNK_BYTES)

    @property
    def thread_buffer_bytes(self) -> int:
        """One thread's share of the dedupe buffer."""
        return self.dedupe_buffer_bytes // self.threads

    def uses_spark(self, job_bytes: int) -> bool:
        """Whether a job that reads `job_bytes` goes to Spark."""
        if self.engine is EngineChoice.AUTO:
            return bool(self.spark_master) and job_bytes >= self.spark_min_bytes
        return self.engine is EngineChoice.SPARK

    def retry_after_ms(self, failures: int) -> int:
        """How long a partition waits after its `failures`-th failed clean in a row (from 1 on):
        the first wait doubled each time, up to the longest (CLN-7)."""
        assert failures >= 1, failures
        doublings = min(failures - 1, 62)  # beyond this every bound is reached
        return min(self.retry_backoff_ms << doublings, self.retry_backoff_max_ms)


@dataclass(frozen=True, slots=True)
class TopicCleaning:
    """What a choice and a round go by, of one topic. Sizes in bytes, times in ms.

    `is_compacted`: the policy has `compact`; `deletes`: it has `delete`. `segment_bytes` is what
    `internal.segment.bytes` says, if it does. `uses_ledger`: what is cleaned is a copy beside the
    log, whatever the policy; `threshold_bytes`: the backlog above which that is done by itself, 0
    for never; `ledgers_retained`: how many such copies are kept.
    """

    is_compacted: bool = False
    deletes: bool = True
    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = INT64_MAX
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    retain_keyless: bool = False
    order: Order = Order.OFFSET
    version_header: str = ""
    by_segment: bool = False
    uses_ledger: bool = False
    threshold_bytes: int = 0
    ledgers_retained: int = 2

    @property
    def is_cleaned(self) -> bool:
        """Whether the cleaner has to do with the topic at all."""
        return self.is_compacted or self.uses_ledger


def spec_of(
    topic: TopicCleaning,
    now_ms: int,
    *,
    max_keys: int | None = None,
    memory_bytes: int = 128 << 20,
    chunk_bytes: int = CHUNK_BYTES,
    hash_secret: tuple[int, int] | None = None,
) -> CleanSpec:
    """One round's `CleanSpec`: the topic's settings, the time, and the round's share of memory.

    `hash_secret`: a fresh one if None (CMP-6).
    """
    return CleanSpec(
        now_ms,
        delete_retention_ms=topic.delete_retention_ms,
        segment_bytes=topic.segment_bytes,
        segment_index_bytes=topic.segment_index_bytes,
        index_interval_bytes=topic.index_interval_bytes,
        max_keys=max_keys,
        memory_bytes=memory_bytes,
        retain_keyless=topic.retain_keyless,
        order=topic.order,
        version_header=topic.version_header,
        by_segment=topic.by_segment,
        hash_secret=new_secret() if hash_secret is None else hash_secret,
        chunk_bytes=chunk_bytes,
    )
