"""Rows of the table: what a log does with segments, records, retention, flushing, directories.

Sources: Kafka's TopicConfig, LogConfig, ServerLogConfigs, ServerTopicConfigSynonyms.
"""

from __future__ import annotations

from stratalog.config.kinds import LONG_MAX, NOT_EMPTY, Kind, at_least, between, either, one_of
from stratalog.config.row import Effect, Level, Setting, Synonym

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def names(*words: str | tuple[str, int]) -> tuple[Synonym, ...]:
    """Synonyms, the stronger first; a pair says what its number is to be multiplied by."""
    return tuple(Synonym(word) if isinstance(word, str) else Synonym(*word) for word in words)


def _retention_times() -> tuple[Synonym, ...]:
    units = {"ms": 1, "minutes": MINUTE_MS, "hours": HOUR_MS}
    return tuple(Synonym(f"log.retention.{unit}", factor, True) for unit, factor in units.items())


SEGMENTS = (
    Setting(
        "segment.bytes",
        Kind.INT,
        1 << 30,
        "Largest size of a segment's .log file, also of one that cleaning makes.",
        Effect.ROLL,
        at_least(1 << 20),
        names("log.segment.bytes"),
    ),
    Setting(
        "internal.segment.bytes",
        Kind.INT,
        None,
        "Like segment.bytes, wins over it, and may be of any size: for tests.",
        Effect.ROLL,
        at_least(1),
    ),
    Setting(
        "segment.ms",
        Kind.LONG,
        7 * DAY_MS,
        "Age at which a segment is closed, in the time of its records.",
        Effect.ROLL,
        at_least(1),
        names("log.roll.ms", ("log.roll.hours", HOUR_MS)),
    ),
    Setting(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "How much earlier than segment.ms a segment may be closed, so that not all are at once.",
        Effect.ROLL,
        at_least(0),
        names("log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)),
    ),
    Setting(
        "segment.index.bytes",
        Kind.INT,
        10 << 20,
        "Largest size of a segment's index files.",
        Effect.ROLL,
        at_least(4),
        names("log.index.size.max.bytes"),
    ),
    Setting(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        Effect.APPEND,
        at_least(0),
        names("log.index.interval.bytes"),
    ),
)

RECORDS = (
    Setting(
        "max.message.bytes",
        Kind.INT,
        1_048_588,
        "Largest record batch that is taken, after compression.",
        Effect.APPEND,
        at_least(0),
        names("message.max.bytes"),
    ),
    Setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or that of its append.",
        Effect.APPEND,
        one_of("CreateTime", "LogAppendTime"),
        names("log.message.timestamp.type"),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far a producer's timestamp may lie before now.",
        Effect.APPEND,
        at_least(0),
        names("log.message.timestamp.before.max.ms"),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        HOUR_MS,
        "How far a producer's timestamp may lie after now.",
        Effect.APPEND,
        at_least(0),
        names("log.message.timestamp.after.max.ms"),
    ),
    Setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "Codec of the batches that are appended; 'producer' leaves them as they come.",
        Effect.APPEND,
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        names("compression.type"),
    ),
    Setting(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Level of gzip where compression.type is gzip; -1: its own default.",
        Effect.APPEND,
        either(between(1, 9), -1),
        names("compression.gzip.level"),
    ),
    Setting(
        "compression.lz4.level",
        Kind.INT,
        9,
        "Level of lz4 where compression.type is lz4; 9 is the fast one.",
        Effect.APPEND,
        between(1, 17),
        names("compression.lz4.level"),
    ),
    Setting(
        "compression.zstd.level",
        Kind.INT,
        3,
        "Level of zstd where compression.type is zstd.",
        Effect.APPEND,
        between(-131_072, 22),
        names("compression.zstd.level"),
    ),
    Setting(
        "producer.id.expiration.ms",
        Kind.INT,
        DAY_MS,
        "An idle producer is forgotten after this time; until then its last batch is kept.",
        Effect.OPEN,
        at_least(1),
        level=Level.BROKER,
        is_dynamic=True,
    ),
)

RETENTION = (
    Setting(
        "retention.ms",
        Kind.LONG,
        7 * DAY_MS,
        "Age at which a segment is deleted; -1: never.",
        Effect.CHECK,
        at_least(-1),
        _retention_times(),
    ),
    Setting(
        "retention.bytes",
        Kind.LONG,
        -1,
        "Size that a partition is cut back to, by whole segments; -1: no bound.",
        Effect.CHECK,
        at_least(-1),
        names("log.retention.bytes"),
    ),
    Setting(
        "file.delete.delay.ms",
        Kind.LONG,
        MINUTE_MS,
        "How long the files of a deleted segment stay on disk, as *.deleted.",
        Effect.DELETION,
        at_least(0),
        names("log.segment.delete.delay.ms"),
    ),
    Setting(
        "log.retention.check.interval.ms",
        Kind.LONG,
        5 * MINUTE_MS,
        "How often logs are looked through for segments to delete.",
        Effect.START,
        at_least(1),
        names(("log.cleanup.interval.mins", MINUTE_MS)),
        Level.BROKER,
    ),
)

FLUSHING = (
    Setting(
        "flush.messages",
        Kind.LONG,
        LONG_MAX,
        "Most records that wait to be on disk; 1: an append is answered when it is there.",
        Effect.APPEND,
        at_least(1),
        names("log.flush.interval.messages"),
    ),
    Setting(
        "flush.ms",
        Kind.LONG,
        LONG_MAX,
        "Longest time that a record waits to be on disk: what a crash may cost.",
        Effect.FLUSH,
        at_least(0),
        names("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        Kind.LONG,
        LONG_MAX,
        "How often logs are looked through for what is to be flushed; flush.ms if that is not set.",
        Effect.START,
        at_least(1),
        level=Level.BROKER,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        MINUTE_MS,
        "How often it is written down up to where each log is on disk.",
        Effect.START,
        at_least(0),
        level=Level.BROKER,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        Kind.INT,
        MINUTE_MS,
        "How often it is written down where each log starts.",
        Effect.START,
        at_least(0),
        level=Level.BROKER,
    ),
)

DIRECTORIES = (
    Setting(
        "log.dirs",
        Kind.LIST,
        None,
        "The directories that hold the logs, one directory a partition in one of them.",
        Effect.START,
        NOT_EMPTY,
        names("log.dir"),
        Level.BROKER,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        Kind.INT,
        2,
        "Threads for each log directory that recover its logs at the start.",
        Effect.START,
        at_least(1),
        level=Level.BROKER,
        is_dynamic=True,
    ),
)
