"""Rows of the table that nothing here obeys: Kafka's, of replication and of storage elsewhere.

They are checked like all others, so that what Kafka would refuse is refused here, and whoever gives
one is told that it has no effect (CFG-1). Sources: Kafka's TopicConfig, LogConfig, QuotaConfig.
"""

from __future__ import annotations

from stratalog.config.kinds import ANYTHING, Kind, Rule, Value, at_least
from stratalog.config.row import Effect, Level, Setting, Synonym
from stratalog.config.rows_log import names


def _accepted(
    name: str,
    kind: Kind,
    default: Value,
    doc: str,
    rule: Rule = ANYTHING,
    synonyms: tuple[Synonym, ...] = (),
) -> Setting:
    return Setting(name, kind, default, doc, Effect.NONE, rule, synonyms)


ACCEPTED = (
    _accepted(
        "preallocate",
        Kind.BOOLEAN,
        False,
        "Kafka: give a new segment's file its full size at once.",
        synonyms=names("log.preallocate"),
    ),
    _accepted(
        "message.downconversion.enable",
        Kind.BOOLEAN,
        True,
        "Kafka before 4.0: convert records for old consumers; says nothing since.",
        synonyms=names("log.message.downconversion.enable"),
    ),
    _accepted(
        "min.insync.replicas",
        Kind.INT,
        1,
        "Kafka: replicas that must have a record before it is acknowledged.",
        at_least(1),
        names("min.insync.replicas"),
    ),
    _accepted(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Kafka: whether a replica that is behind may lead.",
        synonyms=names("unclean.leader.election.enable"),
    ),
    _accepted(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        (),
        "Kafka: replicas that are throttled on the leader's side.",
    ),
    _accepted(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        (),
        "Kafka: replicas that are throttled on the follower's side.",
    ),
    _accepted(
        "remote.storage.enable",
        Kind.BOOLEAN,
        False,
        "Kafka: copy segments to a remote store; not together with compact.",
    ),
    _accepted(
        "local.retention.ms",
        Kind.LONG,
        -2,
        "Kafka: retention.ms for what is also in the remote store; -2: the same.",
        at_least(-2),
        names("log.local.retention.ms"),
    ),
    _accepted(
        "local.retention.bytes",
        Kind.LONG,
        -2,
        "Kafka: retention.bytes for what is also in the remote store; -2: the same.",
        at_least(-2),
        names("log.local.retention.bytes"),
    ),
    _accepted(
        "remote.copy.lag.ms",
        Kind.LONG,
        0,
        "Kafka: age at which a segment is copied to the remote store.",
        at_least(-1),
    ),
    _accepted(
        "remote.copy.lag.bytes",
        Kind.LONG,
        0,
        "Kafka: bytes that wait before a segment is copied to the remote store.",
        at_least(-1),
    ),
    _accepted(
        "remote.log.copy.disable",
        Kind.BOOLEAN,
        False,
        "Kafka: copy nothing more to the remote store.",
    ),
    _accepted(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        False,
        "Kafka: delete the remote store's copies when remote.storage.enable is turned off.",
    ),
    Setting(
        "log.dir.failure.timeout.ms",
        Kind.LONG,
        30_000,
        "Kafka: how long a broker that cannot tell of a failed directory goes on.",
        Effect.NONE,
        at_least(1),
        level=Level.BROKER,
    ),
    Setting(
        "log.initial.task.delay.ms",
        Kind.LONG,
        30_000,
        "Kafka: how long the work by the clock waits after the start; for tests.",
        Effect.NONE,
        at_least(0),
        level=Level.BROKER,
    ),
)
