"""Every row of the table: what it says of itself, its rule, its synonyms, its levels."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stratalog.base.errors import UsageError
from stratalog.config.book import SettingsBook
from stratalog.config.kinds import LONG_MAX, Kind, parse, written
from stratalog.config.levels import Source, names_at
from stratalog.config.row import Setting
from stratalog.config.settings import DEFAULT, resolve, setting
from stratalog.config.table import (
    BROKER_NAMES,
    DYNAMIC_BROKER_NAMES,
    TABLE,
    TOPIC_NAMES,
    WITHOUT_EFFECT,
    rows_of,
)

SCHEDULER = "log.flush.scheduler.interval.ms"

KAFKAS_TOPIC_NAMES = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "internal.segment.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.downconversion.enable",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]

SMALLEST: dict[str, int | float] = {
    "segment.bytes": 1 << 20,
    "internal.segment.bytes": 1,
    "segment.ms": 1,
    "segment.jitter.ms": 0,
    "segment.index.bytes": 4,
    "index.interval.bytes": 0,
    "max.message.bytes": 0,
    "message.timestamp.before.max.ms": 0,
    "message.timestamp.after.max.ms": 0,
    "producer.id.expiration.ms": 1,
    "retention.ms": -1,
    "retention.bytes": -1,
    "file.delete.delay.ms": 0,
    "log.retention.check.interval.ms": 1,
    "flush.messages": 1,
    "flush.ms": 0,
    SCHEDULER: 1,
    "log.flush.offset.checkpoint.interval.ms": 0,
    "log.flush.start.offset.checkpoint.interval.ms": 0,
    "num.recovery.threads.per.data.dir": 1,
    "min.cleanable.dirty.ratio": 0.0,
    "min.compaction.lag.ms": 0,
    "max.compaction.lag.ms": 1,
    "delete.retention.ms": 0,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 1,
    "log.cleaner.io.buffer.load.factor": 0.0,
    "log.cleaner.io.buffer.size": 0,
    "log.cleaner.io.max.bytes.per.second": 5e-324,
    "log.cleaner.backoff.ms": 0,
    "cleaner.spark.min.bytes": 0,
    "cleaner.retry.backoff.ms": 1,
    "cleaner.retry.backoff.max.ms": 1,
    "compaction.threshold": 0,
    "compaction.ledgers.retained": 1,
    "cleaner.history.size": 1,
    "compression.gzip.level": -1,
    "compression.lz4.level": 1,
    "compression.zstd.level": -131_072,
    "min.insync.replicas": 1,
    "local.retention.ms": -2,
    "local.retention.bytes": -2,
    "remote.copy.lag.ms": -1,
    "remote.copy.lag.bytes": -1,
    "log.dir.failure.timeout.ms": 1,
    "log.initial.task.delay.ms": 0,
}
"""The rules, said once more: the smallest number that each takes."""

BAD_WORD = {Kind.BOOLEAN: "maybe", Kind.INT: "2147483648", Kind.LONG: str(LONG_MAX + 1)}


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_says_what_it_does_and_its_default_is_valid(row: Setting) -> None:
    assert row.doc.endswith(".")
    assert all(synonym.factor == 1 or row.kind is Kind.LONG for synonym in row.synonyms)
    assert resolve({}).sources[row.name] == DEFAULT
    if row.default is not None:
        assert row.rule(row.default) is None
        assert parse(row.name, written(row.default), row.kind) == row.default
        given = resolve({row.name: written(row.default)})
        assert given.values[row.name] == row.default
        assert given.is_given(row.name)


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_refuses_what_is_beyond_its_rule(row: Setting) -> None:
    if row.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        smallest = SMALLEST[row.name]
        assert row.rule(smallest) is None
        below = smallest - 1 if isinstance(smallest, int) else -1e-9
        with pytest.raises(UsageError, match=rf"^Invalid value {below} for configuration"):
            resolve({row.name: str(below)})
    if row.kind in BAD_WORD:
        with pytest.raises(UsageError, match=rf"for configuration {row.name}: "):
            resolve({row.name: BAD_WORD[row.kind]})
    if row.rule.text.startswith("one of"):
        with pytest.raises(UsageError, match=f"one of: {row.rule.text.removeprefix('one of ')}$"):
            resolve({row.name: "delet"})


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("row", [row for row in TABLE if row.synonyms], ids=lambda row: row.name)
def test_all_synonyms_win_in_their_order(row: Setting) -> None:
    """Each subset of neighbours: the stronger name wins, whichever is written first."""
    names = names_at(row, Source.BROKER)
    values = _values(row, len(names))
    for strong, weak in pairwise(names):
        ranks = (names.index(strong), names.index(weak))
        pairs = {
            name.name: written(values[rank])
            for name, rank in zip((strong, weak), ranks, strict=True)
        }
        for given in (pairs, dict(reversed(pairs.items()))):
            settings = SettingsBook(given).of_broker()
            value = values[ranks[0]]
            expected = value * strong.factor if isinstance(value, int) else value
            assert settings.values[row.name] == expected
            assert settings.sources[row.name] == strong.name
            origins = [origin.name for origin in settings.origins(row.name)]
            assert origins[:2] == [strong.name, weak.name]
    for rank, name in enumerate(names):
        value = values[rank]
        settings = SettingsBook({name.name: written(value)}).of_broker()
        expected = value * name.factor if isinstance(value, int) else value
        assert settings.values[row.name] == expected
        assert settings.origin(row.name).source is Source.BROKER


def _values(row: Setting, count: int) -> list[int | float | bool | str | tuple[str, ...]]:
    """Different valid values."""
    match row.kind:
        case Kind.BOOLEAN:
            return [True] * count
        case Kind.INT | Kind.LONG:
            first = max(int(SMALLEST[row.name]), 1) + 1
            return [first + step for step in range(count)]
        case Kind.DOUBLE:
            return [0.25 / (step + 1) for step in range(count)]
        case _ if row.rule.text.startswith("one of "):
            word = row.rule.text.removeprefix("one of ").split(", ")[0]
            return [(word,) if row.kind is Kind.LIST else word] * count
        case Kind.STRING:
            return [f"word{step}" for step in range(count)]
        case _:
            return [(f"/disk{step}",) for step in range(count)]


@pytest.mark.requirement("CFG-1")
def test_names() -> None:
    uses = [name for row in TABLE for name in {synonym.name for synonym in row.anywhere}]
    assert {name for name in uses if uses.count(name) > 1} == {SCHEDULER}
    ours = {row.name for row in TABLE if row.is_ours and row.is_topics}
    assert set(KAFKAS_TOPIC_NAMES) == TOPIC_NAMES - ours
    assert {row.name for row in TABLE if row.doc.startswith("Kafka")} == WITHOUT_EFFECT
    assert [row.name for row in rows_of(SCHEDULER)] == [SCHEDULER, "flush.ms"]
    assert [row.name for row in rows_of("log.retention.hours")] == ["retention.ms"]
    for look_up in (setting, rows_of):
        with pytest.raises(UsageError, match="did you mean segment"):
            look_up("segment.bits")


@pytest.mark.requirement("CFG-2")
def test_what_can_be_changed_at_run_time_is_what_kafka_lets() -> None:
    """The first synonym of each topic's setting, and what the issue lists of the broker's."""
    firsts = {row.synonyms[0].name for row in TABLE if row.is_topics and row.synonyms}
    cleaner = {f"log.cleaner.{name}" for name in ("threads", "dedupe.buffer.size", "backoff.ms")}
    cleaner |= {f"log.cleaner.io.{name}" for name in ("buffer.size", "buffer.load.factor")}
    cleaner |= {"log.cleaner.io.max.bytes.per.second"}
    kafkas = {name for name in DYNAMIC_BROKER_NAMES if not name.startswith("cleaner.")}
    others = {"num.recovery.threads.per.data.dir", "producer.id.expiration.ms"}
    assert kafkas == firsts | cleaner | others
    static = [
        "log.dirs",
        "log.dir",
        "log.cleaner.enable",
        "log.retention.check.interval.ms",
        "log.retention.hours",
        "log.retention.minutes",
        "log.roll.hours",
        "log.roll.jitter.hours",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
    ]
    assert set(static) <= BROKER_NAMES - DYNAMIC_BROKER_NAMES
