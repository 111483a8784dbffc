"""The list of metrics. Documentation, exposition and the dashboard are made from it, no other one.

Kafka's names stand as its JMX exporter writes them in lower case. Two of Kafka's faults are not
repeated: the values of `logDirectory` carry no quotes, and the buffer's utilization is no whole
number that only knows 0 and 100. `stratalog_*` is what Kafka does not say.

Invariants
- I1  A counter's name ends in `_total`, and nothing else's does; units are base units (seconds,
      bytes) except in Kafka's names.
- I2  A metric always has the same labels. Those with a sample for each partition are marked
      (`per_partition`), so that they can be left out where there are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Prometheus' types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `source`: who in Kafka has it, or where it comes from here."""

    name: str
    kind: Kind
    help: str
    source: str
    labels: tuple[str, ...] = ()
    per_partition: bool = False


_PARTITION = ("topic", "partition")
_KAFKA_CLEANER = "Kafka: kafka.log:type=LogCleaner"
_KAFKA_MANAGER = "Kafka: kafka.log:type=LogCleanerManager"
_KAFKA_LOG = "Kafka: kafka.log:type=Log"
_KAFKA_LOGS = "Kafka: kafka.log:type=LogManager"


def _gauge(
    name: str, source: str, text: str, labels: tuple[str, ...] = (), *, each: bool = False
) -> Metric:
    return Metric(name, Kind.GAUGE, text, source, labels, each)


def _counter(name: str, source: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.COUNTER, text, source, labels)


RECOPY = _gauge(
    "kafka_log_logcleaner_cleaner_recopy_percent",
    _KAFKA_CLEANER,
    "Bytes kept per hundred bytes gone through, in the last clean of each thread together.",
)
CLEAN_TIME = _gauge(
    "kafka_log_logcleaner_max_clean_time_secs",
    _KAFKA_CLEANER,
    "The longest of the threads' last cleans, in seconds.",
)
BUFFER_UTILIZATION = _gauge(
    "kafka_log_logcleaner_max_buffer_utilization_percent",
    _KAFKA_CLEANER,
    "How full the fullest offset map of the threads' last cleans was, in percent with fractions.",
)
COMPACTION_DELAY = _gauge(
    "kafka_log_logcleaner_max_compaction_delay_secs",
    _KAFKA_CLEANER,
    "By how many seconds the log that is most overdue is past its max.compaction.lag.ms.",
)
DEAD_THREADS = _gauge(
    "kafka_log_logcleaner_deadthreadcount",
    _KAFKA_CLEANER,
    "Cleaner threads that should run and do not.",
)
MAX_DIRTY = _gauge(
    "kafka_log_logcleanermanager_max_dirty_percent",
    _KAFKA_MANAGER,
    "The dirty ratio of the dirtiest compacted log, in percent.",
)
SINCE_LAST_RUN = _gauge(
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    _KAFKA_MANAGER,
    "Milliseconds since a cleaner thread last looked for something to clean, found or not. Absent "
    "where no cleaner has been started.",
)
UNCLEANABLE_BYTES = _gauge(
    "kafka_log_logcleanermanager_uncleanable_bytes",
    _KAFKA_MANAGER,
    "Dirty bytes of the logs whose cleaning has failed, of each log directory; of a log that "
    "cannot be measured all sealed bytes.",
    ("logDirectory",),
)
UNCLEANABLE_PARTITIONS = _gauge(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    _KAFKA_MANAGER,
    "Logs whose cleaning has failed and is tried again later, of each log directory.",
    ("logDirectory",),
)
LOG_SIZE = _gauge(
    "kafka_log_log_size",
    _KAFKA_LOG,
    "Bytes of a partition's .log files.",
    _PARTITION,
    each=True,
)
LOG_SEGMENTS = _gauge(
    "kafka_log_log_numlogsegments",
    _KAFKA_LOG,
    "Segments of a partition, the active one among them.",
    _PARTITION,
    each=True,
)
LOG_START = _gauge(
    "kafka_log_log_logstartoffset",
    _KAFKA_LOG,
    "A partition's first offset.",
    _PARTITION,
    each=True,
)
LOG_END = _gauge(
    "kafka_log_log_logendoffset",
    _KAFKA_LOG,
    "The offset that a partition's next record gets.",
    _PARTITION,
    each=True,
)
OFFLINE_DIRS = _gauge(
    "kafka_log_logmanager_offlinelogdirectorycount",
    _KAFKA_LOGS,
    "Log directories that take no writes because their disk failed.",
)
DIR_OFFLINE = _gauge(
    "kafka_log_logmanager_logdirectoryoffline",
    _KAFKA_LOGS,
    "1 for a log directory that takes no writes because its disk failed, else 0.",
    ("logDirectory",),
)

PARTITIONS = _gauge(
    "stratalog_partitions",
    "LogStore",
    "Partitions by what can be done with them: online; quarantined (damaged, read only until "
    "repaired), offline (on a disk that failed), failed (could not be opened).",
    ("state",),
)
BYTES = _gauge(
    "stratalog_compacted_bytes",
    "clean.facts.sections_of",
    "Bytes of all compacted logs: clean; cleanable (what a round may take in); uncleanable (held "
    "back by a lag or an open transaction); active (the active segments).",
    ("section",),
)
PARTITION_BYTES = _gauge(
    "stratalog_partition_bytes",
    "clean.facts.sections_of",
    "Bytes of a compacted log, by the sections of stratalog_compacted_bytes.",
    (*_PARTITION, "section"),
    each=True,
)
PARTITION_SEGMENTS = _gauge(
    "stratalog_partition_segments",
    "LogStore",
    "Segments of a compacted log, the active one among them.",
    _PARTITION,
    each=True,
)
FIRST_DIRTY = _gauge(
    "stratalog_partition_first_dirty_offset",
    "CleanerManager.facts",
    "Where the next round of a compacted log begins: what is below has been cleaned.",
    _PARTITION,
    each=True,
)
OLDEST_DIRTY = _gauge(
    "stratalog_partition_oldest_dirty_timestamp_seconds",
    "CleanerManager.facts, or the first dirty segment's first batch",
    "The time of the first batch of the first segment that is not cleaned, in seconds since 1970. "
    "Absent where nothing is cleanable.",
    _PARTITION,
    each=True,
)
NEXT_EXPIRY = _gauge(
    "stratalog_partition_next_tombstone_expiry_timestamp_seconds",
    "CleanerManager.facts",
    "When the next tombstone or transaction marker in the clean part may go, in seconds since "
    "1970. Absent where there is none, or where it is not known yet.",
    _PARTITION,
    each=True,
)
RUNS = _counter(
    "stratalog_cleaner_runs_total",
    "CleanerStats.runs",
    "Rounds of cleaning. trigger: forced, ratio, expired_tombstones, asked, or another that asked; "
    "result: cleaned, nothing, aborted, failed.",
    ("trigger", "result"),
)
BYTES_READ = _counter(
    "stratalog_cleaner_bytes_read_total",
    "CleanerStats.read_bytes",
    "Bytes that cleaning in this process has read from files.",
)
BYTES_WRITTEN = _counter(
    "stratalog_cleaner_bytes_written_total",
    "CleanerStats.written_bytes",
    "Bytes that cleaning in this process has written to files.",
)
REMOVED = _counter(
    "stratalog_cleaner_records_removed_total",
    "CleanerStats.removed",
    "Records that cleaning removed. reason: superseded (a later one has the key), tombstone "
    "(expired), aborted (of an aborted transaction), control (expired markers), no_key.",
    ("reason",),
)
DURATION = Metric(
    "stratalog_cleaner_duration_seconds",
    Kind.HISTOGRAM,
    "How long rounds that cleaned something took. phase: index, rewrite.",
    "CleanerStats.durations",
    ("phase",),
)
MAP_UTILIZATION = _gauge(
    "stratalog_cleaner_map_utilization_ratio",
    "CleanerStats.last",
    "How full the fullest offset map of the threads' last cleans was, 0 to 1; above 1 if the work "
    "was done in several passes.",
)
THROTTLED = _counter(
    "stratalog_cleaner_throttled_seconds_total",
    "Cleaner.throttle",
    "Seconds that cleaner threads have waited for log.cleaner.io.max.bytes.per.second.",
)
THREADS = _gauge(
    "stratalog_cleaner_threads",
    "Cleaner",
    "Cleaner threads by state: busy, idle, dead.",
    ("state",),
)
QUEUE = _gauge(
    "stratalog_cleaner_queue_partitions",
    "select.rank, CleanerManager.asked",
    "Partitions that wait to be cleaned: asked for, or eligible now.",
)
DELETED_BYTES = _counter(
    "stratalog_retention_deleted_bytes_total",
    "LogStore.retained",
    "Bytes of segments that retention removed. reason: time, size, start_offset, or that of a "
    "policy of one's own.",
    ("reason",),
)
DELETED_SEGMENTS = _counter(
    "stratalog_retention_deleted_segments_total",
    "LogStore.retained",
    "Segments that retention removed, by the reasons of stratalog_retention_deleted_bytes_total.",
    ("reason",),
)
DIR_TOTAL = _gauge(
    "stratalog_logdir_total_bytes",
    "the file system",
    "Size of the file system that a log directory lies on.",
    ("logdir",),
)
DIR_USABLE = _gauge(
    "stratalog_logdir_usable_bytes",
    "the file system",
    "What can still be written there.",
    ("logdir",),
)

TABLE: tuple[Metric, ...] = (
    RECOPY,
    CLEAN_TIME,
    BUFFER_UTILIZATION,
    COMPACTION_DELAY,
    DEAD_THREADS,
    MAX_DIRTY,
    SINCE_LAST_RUN,
    UNCLEANABLE_BYTES,
    UNCLEANABLE_PARTITIONS,
    LOG_SIZE,
    LOG_SEGMENTS,
    LOG_START,
    LOG_END,
    OFFLINE_DIRS,
    DIR_OFFLINE,
    PARTITIONS,
    BYTES,
    PARTITION_BYTES,
    PARTITION_SEGMENTS,
    FIRST_DIRTY,
    OLDEST_DIRTY,
    NEXT_EXPIRY,
    RUNS,
    BYTES_READ,
    BYTES_WRITTEN,
    REMOVED,
    DURATION,
    MAP_UTILIZATION,
    THROTTLED,
    THREADS,
    QUEUE,
    DELETED_BYTES,
    DELETED_SEGMENTS,
    DIR_TOTAL,
    DIR_USABLE,
)
