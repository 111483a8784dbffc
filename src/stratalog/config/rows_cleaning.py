"""Rows of the table: what cleaning keeps, when a log is cleaned, and how the cleaner works.

Sources: CLN-1, CMP-2, CMP-5, CMP-8, CMP-17; Kafka's TopicConfig and CleanerConfig. The names of
`compaction.strategy` and its header are those that KIP-280 proposed.
"""

from __future__ import annotations

import math

from stratalog.config.kinds import (
    LONG_MAX,
    Kind,
    Rule,
    Value,
    at_least,
    between,
    one_of,
)
from stratalog.config.row import Effect, Level, Setting
from stratalog.config.rows_log import DAY_MS, HOUR_MS, MINUTE_MS, names


def _above_zero(value: Value) -> str | None:
    assert isinstance(value, int | float), value
    return None if value > 0 else "Value must be more than 0"


CLEANING = (
    Setting(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "compact keeps the last record of each key, delete drops old segments; both, or none.",
        Effect.CHOICE,
        one_of("compact", "delete"),
        names("log.cleanup.policy"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "Dirty share of a log above which it is cleaned by itself; the command compact ignores it.",
        Effect.CHOICE,
        between(0, 1),
        names("log.cleaner.min.cleanable.ratio"),
    ),
    Setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "Records younger than this are not cleaned; at most max.compaction.lag.ms.",
        Effect.CHOICE,
        at_least(0),
        names("log.cleaner.min.compaction.lag.ms"),
    ),
    Setting(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "A log is cleaned at the latest when its oldest dirty record is this old.",
        Effect.CHOICE,
        at_least(1),
        names("log.cleaner.max.compaction.lag.ms"),
    ),
    Setting(
        "delete.retention.ms",
        Kind.LONG,
        DAY_MS,
        "How long a tombstone and a transaction marker stay after they were first cleaned.",
        Effect.CLEANING,
        at_least(0),
        names("log.cleaner.delete.retention.ms"),
    ),
    Setting(
        "tombstone.horizon",
        Kind.STRING,
        "batch",
        "Where the time of a tombstone's removal comes from: batch, a deadline in its batch, as in "
        "Kafka since 3.1 (KIP-534); segment, its segment's file time, the older rule.",
        Effect.CLEANING,
        one_of("batch", "segment"),
        names("log.cleaner.tombstone.horizon"),
        is_ours=True,
    ),
    Setting(
        "compaction.strategy",
        Kind.STRING,
        "offset",
        "Which record of a key is the newest: the one with the largest offset, timestamp, or "
        "integer in the header that compaction.strategy.header names; equals go by offset.",
        Effect.CLEANING,
        one_of("offset", "timestamp", "header"),
        names("log.cleaner.compaction.strategy"),
        is_ours=True,
    ),
    Setting(
        "compaction.strategy.header",
        Kind.STRING,
        "",
        "The header that holds a record's version, for compaction.strategy=header.",
        Effect.CLEANING,
        synonyms=names("log.cleaner.compaction.strategy.header"),
        is_ours=True,
    ),
    Setting(
        "compaction.retain.null.key",
        Kind.BOOLEAN,
        False,
        "Keep records without a key, which cleaning drops otherwise.",
        Effect.CLEANING,
        synonyms=names("log.cleaner.compaction.retain.null.key"),
        is_ours=True,
    ),
    Setting(
        "compaction.mode",
        Kind.STRING,
        "inplace",
        "What cleaning does: inplace rewrites the log itself; ledger leaves it as it is and writes "
        "a compacted copy beside it, whatever cleanup.policy is.",
        Effect.CHOICE,
        one_of("inplace", "ledger"),
        names("log.cleaner.compaction.mode"),
        is_ours=True,
    ),
    Setting(
        "compaction.threshold",
        Kind.LONG,
        0,
        "Bytes that were appended since the last ledger above which the next one is made by "
        "itself; 0: only when it is asked for. For compaction.mode=ledger.",
        Effect.CHOICE,
        at_least(0),
        names("log.cleaner.compaction.threshold"),
        is_ours=True,
    ),
    Setting(
        "compaction.ledgers.retained",
        Kind.INT,
        2,
        "How many ledgers of a partition are kept, the one in use among them.",
        Effect.CLEANING,
        at_least(1),
        names("log.cleaner.compaction.ledgers.retained"),
        is_ours=True,
    ),
)

CLEANER = (
    Setting(
        "log.cleaner.enable",
        Kind.BOOLEAN,
        True,
        "Whether logs are cleaned by themselves; retention and the commands do not depend on it.",
        Effect.START,
        level=Level.BROKER,
    ),
    Setting(
        "log.cleaner.threads",
        Kind.INT,
        1,
        "Logs that are cleaned at a time; the dedupe buffer is divided among them. At run time at "
        "least half and at most double of what it is.",
        Effect.CHOICE,
        at_least(1),
        level=Level.BROKER,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 << 20,
        "Bytes for mapping keys, of all threads; taken when there is something to map. If given, a "
        "round ends when the map is full, as Kafka's would; if not, it does the log in several "
        "passes. A broker wants more than 1 MiB a thread, and uses at most 2 GiB a thread.",
        Effect.CLEANING,
        at_least(1),
        level=Level.BROKER,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        Kind.DOUBLE,
        0.9,
        "Share of the dedupe buffer that is filled at most, despite its name.",
        Effect.CLEANING,
        between(0, 1),
        level=Level.BROKER,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        Kind.INT,
        512 << 10,
        "Bytes that all of the cleaner's threads together read at a time, at least 64 KiB each; a "
        "batch that is larger is read whole. Unless it is given, 4 MiB each.",
        Effect.CLEANING,
        at_least(0),
        level=Level.BROKER,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        math.inf,
        "Bytes a second that all threads together read and write, on average; inf: no bound.",
        Effect.CLEANING,
        Rule("more than 0", _above_zero),
        level=Level.BROKER,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        15_000,
        "How long a thread waits when it has found nothing to clean.",
        Effect.CHOICE,
        at_least(0),
        level=Level.BROKER,
        is_dynamic=True,
    ),
    Setting(
        "cleaner.engine",
        Kind.STRING,
        "auto",
        "Who cleans: local, threads of this process; spark; or auto, Spark for logs of "
        "cleaner.spark.min.bytes or more if cleaner.spark.master is set.",
        Effect.CLEANING,
        one_of("auto", "local", "spark"),
        level=Level.BROKER,
        is_dynamic=True,
        is_ours=True,
    ),
    Setting(
        "cleaner.spark.master",
        Kind.STRING,
        "",
        "Spark's master for cleaning, such as spark://host:7077; empty: none.",
        Effect.START,
        level=Level.BROKER,
        is_ours=True,
    ),
    Setting(
        "cleaner.spark.min.bytes",
        Kind.LONG,
        16 << 30,
        "Jobs that read fewer bytes stay local under cleaner.engine=auto. Starting Spark takes as "
        "long as cleaning about this much on one machine.",
        Effect.CLEANING,
        at_least(0),
        level=Level.BROKER,
        is_dynamic=True,
        is_ours=True,
    ),
    Setting(
        "cleaner.retry.backoff.ms",
        Kind.LONG,
        MINUTE_MS,
        "How long a partition waits after its first failed clean; doubled with each one that "
        "follows, up to cleaner.retry.backoff.max.ms.",
        Effect.CHOICE,
        at_least(1),
        level=Level.BROKER,
        is_dynamic=True,
        is_ours=True,
    ),
    Setting(
        "cleaner.retry.backoff.max.ms",
        Kind.LONG,
        HOUR_MS,
        "The longest wait between two tries of a partition whose clean fails.",
        Effect.CHOICE,
        at_least(1),
        level=Level.BROKER,
        is_dynamic=True,
        is_ours=True,
    ),
    Setting(
        "cleaner.history.size",
        Kind.INT,
        256,
        "Entries that a partition's history of cleanings keeps, the latest ones.",
        Effect.CLEANING,
        between(1, 1 << 20),
        level=Level.BROKER,
        is_dynamic=True,
        is_ours=True,
    ),
)
