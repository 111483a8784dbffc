"""The table of settings: values, rules, synonyms, sources, and the words of refusals."""

from __future__ import annotations

import math

import pytest

from stratalog.base.errors import UsageError
from stratalog.config.book import SettingsBook
from stratalog.config.kinds import parse
from stratalog.config.settings import DEFAULT, parse_pairs, resolve, setting
from tests.oracle import rounds

HOUR_MS = 3_600_000
DELAY = "log.segment.delete.delay.ms"
SCHEDULER = "log.flush.scheduler.interval.ms"


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("segment.bytes", 1 << 30),
        ("segment.ms", 7 * 24 * HOUR_MS),
        ("segment.index.bytes", 10 << 20),
        ("index.interval.bytes", 4096),
        ("max.message.bytes", 1_048_588),
        ("cleanup.policy", ("delete",)),
        ("min.cleanable.dirty.ratio", 0.5),
        ("min.compaction.lag.ms", 0),
        ("max.compaction.lag.ms", (1 << 63) - 1),
        ("delete.retention.ms", 24 * HOUR_MS),
        ("message.timestamp.after.max.ms", HOUR_MS),
        ("retention.ms", 168 * HOUR_MS),
        ("retention.bytes", -1),
        ("file.delete.delay.ms", 60_000),
        ("flush.messages", (1 << 63) - 1),
        ("flush.ms", (1 << 63) - 1),
        ("log.retention.check.interval.ms", 300_000),
        ("log.flush.scheduler.interval.ms", (1 << 63) - 1),
        ("log.flush.offset.checkpoint.interval.ms", 60_000),
        ("log.flush.start.offset.checkpoint.interval.ms", 60_000),
        ("num.recovery.threads.per.data.dir", 2),
        ("log.dirs", None),
        ("producer.id.expiration.ms", 24 * HOUR_MS),
        ("log.cleaner.dedupe.buffer.size", 128 << 20),
        ("log.cleaner.io.buffer.load.factor", 0.9),
        ("log.cleaner.enable", True),
        ("log.cleaner.threads", 1),
        ("log.cleaner.io.buffer.size", 512 << 10),
        ("log.cleaner.io.max.bytes.per.second", math.inf),
        ("log.cleaner.backoff.ms", 15_000),
        ("compression.gzip.level", -1),
        ("compression.lz4.level", 9),
        ("compression.zstd.level", 3),
        ("min.insync.replicas", 1),
        ("local.retention.ms", -2),
        ("tombstone.horizon", "batch"),
        ("compaction.strategy", "offset"),
        ("internal.segment.bytes", None),
    ],
)
def test_defaults_are_kafkas(name: str, default: object) -> None:
    settings = resolve({})
    assert settings.values[name] == default
    assert settings.sources[name] == DEFAULT
    assert not settings.is_given(name)


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("segment.bytes", "100", "Value must be at least 1048576"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "1_048_576", "Not a number of type INT"),
        ("segment.bytes", "", "Not a number of type INT"),
        ("segment.bytes", "1e9", "Not a number of type INT"),
        ("segment.ms", "0", "Value must be at least 1"),
        ("segment.ms", "9" * 30, "Not a number of type LONG"),
        ("log.roll.hours", "2562047788016", "Not a number of type LONG"),
        ("min.cleanable.dirty.ratio", "1.01", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("cleanup.policy", "compact,drop", "String must be one of: compact, delete"),
        ("message.timestamp.type", "Now", "String must be one of: CreateTime, LogAppendTime"),
        ("compaction.retain.null.key", "yes", "Expected value to be either true or false"),
        ("compression.type", "lzma", "String must be one of: uncompressed, zstd, lz4"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.bytes", "-2", "Value must be at least -1"),
        ("log.retention.hours", "0", "Value must be -1 (unlimited) or at least 1"),
        ("log.retention.hours", "2562047788016", "Not a number of type LONG"),
        ("file.delete.delay.ms", "-1", "Value must be at least 0"),
        ("flush.messages", "0", "Value must be at least 1"),
        ("flush.ms", "-1", "Value must be at least 0"),
        ("log.cleanup.interval.mins", "0", "Value must be at least 1"),
        ("log.flush.scheduler.interval.ms", "0", "Value must be at least 1"),
        ("num.recovery.threads.per.data.dir", "0", "Value must be at least 1"),
        ("log.dirs", "", "Value must not be empty"),
        ("tombstone.horizon", "record", "String must be one of: batch, segment"),
        ("compaction.strategy", "version", "String must be one of: offset, timestamp, header"),
        ("compaction.strategy", "header", "Needs compaction.strategy.header"),
        ("cleaner.engine", "flink", "String must be one of: auto, local, spark"),
        ("cleaner.history.size", "0", "Value must be at least 1"),
        ("cleaner.history.size", "1048577", "Value must be no more than 1048576"),
        ("log.cleaner.io.max.bytes.per.second", "0", "Value must be more than 0"),
        ("log.cleaner.enable", "1", "Expected value to be either true or false"),
        ("compression.gzip.level", "0", "Value must be at least 1"),
        ("compression.gzip.level", "10", "Value must be no more than 9"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.zstd.level", "-131073", "Value must be at least -131072"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("local.retention.ms", "-3", "Value must be at least -2"),
        ("log.cleaner.dedupe.buffer.size", "23", "Too small for one key"),
        ("log.cleaner.threads", "0", "Value must be at least 1"),
    ],
)
def test_bad_values_are_refused_in_kafkas_words(name: str, text: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve({name: text})
    assert str(refused.value).startswith(f"Invalid value {text} for configuration {name}: {reason}")


@pytest.mark.requirement("CFG-1", "RET-2")
@pytest.mark.parametrize(
    ("given", "name", "value", "source"),
    [
        ({"log.segment.bytes": "2097152"}, "segment.bytes", 2 << 20, "log.segment.bytes"),
        (
            {"log.segment.bytes": "2097152", "segment.bytes": "4194304"},
            "segment.bytes",
            4 << 20,
            "segment.bytes",
        ),
        ({"log.retention.hours": "2"}, "retention.ms", 2 * HOUR_MS, "log.retention.hours"),
        (
            {"log.retention.hours": "2", "log.retention.minutes": "30"},
            "retention.ms",
            HOUR_MS // 2,
            "log.retention.minutes",
        ),
        (
            {"log.retention.minutes": "30", "log.retention.ms": "5", "log.retention.hours": "2"},
            "retention.ms",
            5,
            "log.retention.ms",
        ),
        ({"log.retention.hours": "-1"}, "retention.ms", -1, "log.retention.hours"),
        ({"log.retention.minutes": "-5"}, "retention.ms", -1, "log.retention.minutes"),
        ({"retention.ms": "0"}, "retention.ms", 0, "retention.ms"),
        (
            {"retention.ms": "7", "log.retention.ms": "5", "log.retention.hours": "2"},
            "retention.ms",
            7,
            "retention.ms",
        ),
        ({"log.retention.bytes": "9"}, "retention.bytes", 9, "log.retention.bytes"),
        ({"log.segment.delete.delay.ms": "0"}, "file.delete.delay.ms", 0, DELAY),
        ({"log.flush.interval.messages": "1"}, "flush.messages", 1, "log.flush.interval.messages"),
        ({"log.flush.interval.ms": "8"}, "flush.ms", 8, "log.flush.interval.ms"),
        ({"log.flush.scheduler.interval.ms": "6"}, "flush.ms", 6, SCHEDULER),
        (
            {"log.flush.scheduler.interval.ms": "6", "log.flush.interval.ms": "8"},
            "flush.ms",
            8,
            "log.flush.interval.ms",
        ),
        (
            {"log.flush.scheduler.interval.ms": "6", "flush.ms": "8"},
            "log.flush.scheduler.interval.ms",
            6,
            SCHEDULER,
        ),
        ({"log.dir": "/a"}, "log.dirs", ("/a",), "log.dir"),
        ({"log.dir": "/a", "log.dirs": "/b, /c,/b"}, "log.dirs", ("/b", "/c"), "log.dirs"),
        ({"log.roll.hours": "3"}, "segment.ms", 3 * HOUR_MS, "log.roll.hours"),
        ({"message.max.bytes": "7"}, "max.message.bytes", 7, "message.max.bytes"),
        (
            {"cleanup.policy": " compact , delete,compact"},
            "cleanup.policy",
            ("compact", "delete"),
            "cleanup.policy",
        ),
        ({"cleanup.policy": ""}, "cleanup.policy", (), "cleanup.policy"),
        (
            {"compaction.retain.null.key": "TRUE"},
            "compaction.retain.null.key",
            True,
            "compaction.retain.null.key",
        ),
    ],
)
def test_topic_name_wins_then_synonyms_in_order(
    given: dict[str, str], name: str, value: object, source: str
) -> None:
    settings = resolve(given)
    assert settings.values[name] == value
    assert settings.sources[name] == source
    assert settings.is_given(name)


@pytest.mark.requirement("RET-1")
@pytest.mark.parametrize(
    ("given", "interval_ms", "source"),
    [
        ({}, 300_000, DEFAULT),
        ({"log.cleanup.interval.mins": "2"}, 120_000, "log.cleanup.interval.mins"),
        ({"log.retention.check.interval.ms": "7"}, 7, "log.retention.check.interval.ms"),
        (
            {"log.cleanup.interval.mins": "2", "log.retention.check.interval.ms": "7"},
            7,
            "log.retention.check.interval.ms",
        ),
    ],
)
def test_how_often_retention_looks(given: dict[str, str], interval_ms: int, source: str) -> None:
    settings = resolve(given)
    assert settings.integer("log.retention.check.interval.ms") == interval_ms
    assert settings.sources["log.retention.check.interval.ms"] == source


@pytest.mark.requirement("CFG-1")
def test_a_value_that_another_name_overrules_is_checked_too() -> None:
    with pytest.raises(UsageError, match=r"log\.segment\.bytes"):
        resolve({"segment.bytes": "1048576", "log.segment.bytes": "5"})


def test_internal_segment_bytes_has_no_minimum_and_wins() -> None:
    given = {"segment.bytes": "1048576", "internal.segment.bytes": "65536"}
    assert resolve(given).segment_bytes == 65_536
    assert resolve({"segment.bytes": "1048576"}).segment_bytes == 1 << 20


def test_defaults_of_a_command_lie_under_what_is_given() -> None:
    defaults = {"cleanup.policy": ("compact",)}
    assert resolve({}, defaults).is_compacted
    assert not resolve({}, defaults).is_given("cleanup.policy")
    assert not resolve({"cleanup.policy": "delete"}, defaults).is_compacted


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("segment.byte", "segment.bytes"),
        ("delete.retention", "delete.retention.ms"),
        ("log.cleaner.dedup.buffer.size", "log.cleaner.dedupe.buffer.size"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"Unknown configuration {name}; did you mean .*{hint}"):
        resolve({name: "1"})


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(UsageError, match=r"^Unknown configuration xyzzy$"):
        resolve({"xyzzy": "1"})


@pytest.mark.requirement("CMP-5", "EX-2")
@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({}, None),
        ({"log.cleaner.io.buffer.load.factor": "0.5"}, None),
        ({"log.cleaner.dedupe.buffer.size": "134217728"}, 5_033_164),
        ({"log.cleaner.dedupe.buffer.size": "134217728", "log.cleaner.threads": "2"}, 2_516_581),
        ({"log.cleaner.dedupe.buffer.size": "2424"}, 90),
        (
            {
                "log.cleaner.dedupe.buffer.size": "134217728",
                "log.cleaner.io.buffer.load.factor": "1",
            },
            5_592_405,
        ),
        # More than 2 GiB a thread is ignored, as in Kafka.
        (
            {
                "log.cleaner.dedupe.buffer.size": str(8 << 30),
                "log.cleaner.io.buffer.load.factor": "1",
            },
            ((1 << 31) - 1) // 24,
        ),
    ],
)
def test_keys_of_a_round(given: dict[str, str], keys: int | None) -> None:
    assert resolve(given).max_keys == keys


@pytest.mark.requirement("CFG-1")
def test_what_nothing_obeys_is_accepted_and_named() -> None:
    settings = resolve({"min.insync.replicas": "2", "segment.ms": "5", "log.preallocate": "true"})
    assert settings.without_effect == ("min.insync.replicas", "log.preallocate")
    assert settings.flag("preallocate")


@pytest.mark.requirement("CFG-1", "CMP-17")
@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "conflict topic config"),
        ({"cleaner.retry.backoff.ms": "3600001"}, r"\(3600001\) is more than .*\(3600000\)"),
        (
            {"remote.storage.enable": "true", "cleanup.policy": "compact,delete"},
            "Remote log storage only supports topics with cleanup.policy=delete",
        ),
        (
            {"remote.storage.enable": "true", "local.retention.ms": "-1"},
            "Value must not be -1 as retention.ms value is set as 604800000",
        ),
        (
            {
                "remote.storage.enable": "true",
                "retention.bytes": "5",
                "log.local.retention.bytes": "6",
            },
            (
                "6 for configuration local.retention.bytes: Value must not be more than "
                "retention.bytes property value: 5"
            ),
        ),
    ],
)
def test_what_is_valid_alone_and_not_together(given: dict[str, str], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        resolve(given)


@pytest.mark.parametrize(
    "given",
    [
        {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"},
        {"compaction.strategy": "header", "compaction.strategy.header": "v"},
        {"remote.storage.enable": "true", "cleanup.policy": ""},
        {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "-1"},
        {"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "5"},
        # As in Kafka, these say nothing without the remote store.
        {"retention.ms": "5", "local.retention.ms": "6"},
        {"cleaner.retry.backoff.ms": "5", "cleaner.retry.backoff.max.ms": "5"},
    ],
)
def test_what_goes_together(given: dict[str, str]) -> None:
    settings = resolve(given)
    assert all(settings.is_given(name) for name in given)


@pytest.mark.requirement("CFG-1")
def test_the_settings_of_kafkas_rounds_resolve() -> None:
    """What real brokers cleaned by comes out as it was, defaults included."""
    seen = {tuple(sorted(found.settings.items())) for found in rounds()}
    assert len(seen) > 10
    for items in seen:
        given = dict(items)
        given["internal.segment.bytes"] = given.pop("segment.bytes")  # below what Kafka 4 takes
        settings = SettingsBook(topics={"t": given}).of("t")
        assert settings.values == resolve(given).values
        for name, text in given.items():
            assert settings.values[name] == parse(name, text, setting(name).kind)
            assert str(settings.origin(name)) == f"DYNAMIC_TOPIC_CONFIG:{name}={text}"


@pytest.mark.parametrize("pair", ["segment.ms", "=5", "", " = "])
def test_pairs_of_another_form_are_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_pairs([pair])


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="a is given twice"):
        parse_pairs(["a=1", "a=1"])
