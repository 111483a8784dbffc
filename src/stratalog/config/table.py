"""The one table of settings: everything that this program obeys, under Kafka's names.

A row says the topic's property, the broker's synonyms in Kafka's order of precedence (the first
that is given wins; one may count in other units), type, default, rule, what it does, and when a
change takes effect. A setting that only brokers have bears their name, and its synonyms are older
names. Those marked `is_ours` do not exist in Kafka.

Sources: Kafka's TopicConfig, LogConfig, ServerTopicConfigSynonyms, CleanerConfig.
"""

from __future__ import annotations

from stratalog.config.kinds import LONG_MAX, Kind, at_least, between, not_empty, one_of
from stratalog.config.row import Effect, Setting, Synonym

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


def _times(name: str, *more: tuple[str, int], factor: int = 1) -> tuple[Synonym, ...]:
    return (Synonym(name, factor), *(Synonym(other, times) for other, times in more))


def _retention_times() -> tuple[Synonym, ...]:
    units = {"ms": 1, "minutes": _MINUTE_MS, "hours": _HOUR_MS}
    return tuple(Synonym(f"log.retention.{unit}", factor, True) for unit, factor in units.items())


_SEGMENTS = (
    Setting(
        "segment.bytes",
        Kind.INT,
        1 << 30,
        "Largest size of a segment's .log file, also of one that cleaning makes.",
        Effect.ROLL,
        at_least(1 << 20),
        _times("log.segment.bytes"),
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
        7 * _DAY_MS,
        "Age at which a segment is closed, in the time of its records.",
        Effect.ROLL,
        at_least(1),
        _times("log.roll.ms", ("log.roll.hours", _HOUR_MS)),
    ),
    Setting(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "How much earlier than segment.ms a segment may be closed, so that not all are at once.",
        Effect.ROLL,
        at_least(0),
        _times("log.roll.jitter.ms", ("log.roll.jitter.hours", _HOUR_MS)),
    ),
    Setting(
        "segment.index.bytes",
        Kind.INT,
        10 << 20,
        "Largest size of a segment's index files.",
        Effect.ROLL,
        at_least(4),
        _times("log.index.size.max.bytes"),
    ),
    Setting(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        Effect.APPEND,
        at_least(0),
        _times("log.index.interval.bytes"),
    ),
)

_RECORDS = (
    Setting(
        "max.message.bytes",
        Kind.INT,
        1_048_588,
        "Largest record batch that is taken, after compression.",
        Effect.APPEND,
        at_least(0),
        _times("message.max.bytes"),
    ),
    Setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or that of its append.",
        Effect.APPEND,
        one_of("CreateTime", "LogAppendTime"),
        _times("log.message.timestamp.type"),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far a producer's timestamp may lie before now.",
        Effect.APPEND,
        at_least(0),
        _times("log.message.timestamp.before.max.ms"),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        _HOUR_MS,
        "How far a producer's timestamp may lie after now.",
        Effect.APPEND,
        at_least(0),
        _times("log.message.timestamp.after.max.ms"),
    ),
    Setting(
        "compression.type",
        Kind.STRING,
        "producer",
        "Codec of the batches that are appended; 'producer' leaves them as they come.",
        Effect.APPEND,
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Setting(
        "producer.id.expiration.ms",
        Kind.INT,
        _DAY_MS,
        "An idle producer is forgotten after this time; until then its last batch is kept.",
        Effect.OPEN,
        at_least(1),
    ),
)

_CLEANING = (
    Setting(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "compact keeps the last record of each key, delete drops old segments; both, or none.",
        Effect.CLEANING,
        one_of("compact", "delete"),
        _times("log.cleanup.policy"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "Dirty share of a log above which it is cleaned by itself; compact ignores it.",
        Effect.CLEANING,
        between(0, 1),
        _times("log.cleaner.min.cleanable.ratio"),
    ),
    Setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "Records younger than this are not cleaned.",
        Effect.CLEANING,
        at_least(0),
        _times("log.cleaner.min.compaction.lag.ms"),
    ),
    Setting(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "A log is cleaned at the latest when its oldest dirty record is this old.",
        Effect.CLEANING,
        at_least(1),
        _times("log.cleaner.max.compaction.lag.ms"),
    ),
    Setting(
        "delete.retention.ms",
        Kind.LONG,
        _DAY_MS,
        "How long a tombstone and a transaction marker stay after they were first cleaned.",
        Effect.CLEANING,
        at_least(0),
        _times("log.cleaner.delete.retention.ms"),
    ),
    Setting(
        "tombstone.horizon",
        Kind.STRING,
        "batch",
        "Where the time of a tombstone's removal comes from: its batch, or its segment's file.",
        Effect.CLEANING,
        one_of("batch", "segment"),
        is_ours=True,
    ),
    Setting(
        "compaction.retain.null.key",
        Kind.BOOLEAN,
        False,
        "Keep records without a key, which cleaning drops otherwise.",
        Effect.CLEANING,
        is_ours=True,
    ),
    Setting(
        "log.cleaner.threads",
        Kind.INT,
        1,
        "Cleaner threads, among which the dedupe buffer is divided.",
        Effect.CLEANING,
        at_least(1),
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 << 20,
        "Bytes for mapping keys, of all threads. If given, a round ends when the map is full.",
        Effect.CLEANING,
        at_least(1),
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        Kind.DOUBLE,
        0.9,
        "Share of the dedupe buffer that is filled at most.",
        Effect.CLEANING,
        between(0, 1),
    ),
)

_RETENTION = (
    Setting(
        "retention.ms",
        Kind.LONG,
        7 * _DAY_MS,
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
        _times("log.retention.bytes"),
    ),
    Setting(
        "file.delete.delay.ms",
        Kind.LONG,
        _MINUTE_MS,
        "How long the files of a deleted segment stay on disk, as *.deleted.",
        Effect.DELETION,
        at_least(0),
        _times("log.segment.delete.delay.ms"),
    ),
    Setting(
        "log.retention.check.interval.ms",
        Kind.LONG,
        5 * _MINUTE_MS,
        "How often logs are looked through for segments to delete.",
        Effect.START,
        at_least(1),
        _times("log.cleanup.interval.mins", factor=_MINUTE_MS),
    ),
)

_FLUSHING = (
    Setting(
        "flush.messages",
        Kind.LONG,
        LONG_MAX,
        "Most records that wait to be on disk; 1: an append is answered when it is there.",
        Effect.APPEND,
        at_least(1),
        _times("log.flush.interval.messages"),
    ),
    Setting(
        "flush.ms",
        Kind.LONG,
        LONG_MAX,
        "Longest time that a record waits to be on disk: what a crash may cost.",
        Effect.FLUSH,
        at_least(0),
        _times("log.flush.interval.ms", ("log.flush.scheduler.interval.ms", 1)),
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        Kind.LONG,
        LONG_MAX,
        "How often logs are looked through for what is to be flushed; flush.ms if that is not set.",
        Effect.START,
        at_least(1),
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        _MINUTE_MS,
        "How often it is written down up to where each log is on disk.",
        Effect.START,
        at_least(0),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        Kind.INT,
        _MINUTE_MS,
        "How often it is written down where each log starts.",
        Effect.START,
        at_least(0),
    ),
)

_DIRECTORIES = (
    Setting(
        "log.dirs",
        Kind.LIST,
        None,
        "The directories that hold the logs, one directory a partition in one of them.",
        Effect.START,
        not_empty,
        _times("log.dir"),
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        Kind.INT,
        2,
        "Threads for each log directory that recover its logs at the start.",
        Effect.START,
        at_least(1),
    ),
)

TABLE: tuple[Setting, ...] = (
    *_SEGMENTS,
    *_RECORDS,
    *_CLEANING,
    *_RETENTION,
    *_FLUSHING,
    *_DIRECTORIES,
)

WITHOUT_EFFECT = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "min.insync.replicas",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
"""Kafka's topic and cleaner properties that nothing here obeys: accepted, and reported as such."""

assert all(setting.default is None or setting.rule(setting.default) is None for setting in TABLE), (
    "a default breaks its own rule"
)
assert len({s.name for s in TABLE}) == len(TABLE)
