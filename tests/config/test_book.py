"""Levels: broker, namespaces, topics, the command line; sources; changes at run time."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.errors import UsageError
from stratalog.config.book import SettingsBook
from stratalog.config.levels import Source
from stratalog.config.table import setting

HOUR_MS = 3_600_000

BOOK = SettingsBook(
    {"log.retention.hours": "2", "log.segment.bytes": "2097152", "num.io.threads": "8"},
    {
        "audit.": {"retention.ms": "30", "segment.ms": "31"},
        "audit.eu.": {"retention.ms": "40"},
        "a": {"segment.ms": "21", "segment.jitter.ms": "22"},
    },
    {"audit.eu.x": {"retention.ms": "50"}, "b": {"cleanup.policy": "compact"}},
)


def said(book: SettingsBook, topic: str, name: str) -> list[str]:
    return [str(origin) for origin in book.of(topic).origins(name)]


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("topic", "retention_ms", "segment_ms", "jitter_ms"),
    [
        ("c", 2 * HOUR_MS, 7 * 24 * HOUR_MS, 0),
        ("a", 2 * HOUR_MS, 21, 22),
        ("audit", 2 * HOUR_MS, 21, 22),
        ("audit.", 30, 31, 22),
        ("audit.us", 30, 31, 22),
        ("audit.eu.y", 40, 31, 22),
        ("audit.eu.x", 50, 31, 22),
        ("b", 2 * HOUR_MS, 7 * 24 * HOUR_MS, 0),
    ],
)
def test_namespaces_stack_by_length(
    topic: str, retention_ms: int, segment_ms: int, jitter_ms: int
) -> None:
    settings = BOOK.of(topic)
    assert settings.integer("retention.ms") == retention_ms
    assert settings.integer("segment.ms") == segment_ms
    assert settings.integer("segment.jitter.ms") == jitter_ms
    assert settings.segment_bytes == 2 << 20
    assert settings.is_compacted == (topic == "b")


@pytest.mark.requirement("CFG-1")
def test_a_value_says_where_it_comes_from_and_what_it_hides() -> None:
    book = BOOK.with_broker({"log.retention.ms": "60"})
    assert said(book, "audit.eu.x", "retention.ms") == [
        "DYNAMIC_TOPIC_CONFIG:retention.ms=50",
        "DYNAMIC_NAMESPACE_CONFIG(audit.eu.):retention.ms=40",
        "DYNAMIC_NAMESPACE_CONFIG(audit.):retention.ms=30",
        "DYNAMIC_BROKER_CONFIG:log.retention.ms=60",
        "STATIC_BROKER_CONFIG:log.retention.hours=2",
        "DEFAULT_CONFIG:log.retention.hours=168",
    ]
    assert said(book, "b", "cleanup.policy") == [
        "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact",
        "DEFAULT_CONFIG:log.cleanup.policy=delete",
    ]
    origin = book.of("audit.us").origin("retention.ms")
    assert (origin.source, origin.place, origin.name) == (
        Source.NAMESPACE,
        "audit.",
        "retention.ms",
    )
    assert said(book, "c", "flush.ms") == [f"DEFAULT_CONFIG:log.flush.scheduler.interval.ms={MAX}"]
    assert said(book, "c", "compression.type") == ["DEFAULT_CONFIG:compression.type=producer"]
    assert said(book, "c", "log.dirs") == []
    assert str(book.of("c").origin("log.dirs")) == "DEFAULT_CONFIG:log.dirs="
    with pytest.raises(UsageError, match="Unknown configuration retention"):
        book.of("c").origins("retention")


MAX = (1 << 63) - 1


@pytest.mark.requirement("CFG-1")
def test_the_command_line_wins_over_all_under_any_name() -> None:
    book = SettingsBook(
        BOOK.broker, BOOK.namespaces, BOOK.topics, overrides={"log.retention.minutes": "1"}
    )
    for topic in ("c", "audit.us", "audit.eu.x"):
        assert book.of(topic).integer("retention.ms") == 60_000
        assert said(book, topic, "retention.ms")[0] == "COMMAND_LINE_CONFIG:log.retention.minutes=1"
    assert book.of("audit.us").integer("segment.ms") == 31
    with pytest.raises(UsageError, match=r"^Unknown configuration segment\.byte; did you mean"):
        SettingsBook(overrides={"segment.byte": "1"})


@pytest.mark.requirement("CFG-1")
def test_a_commands_defaults_lie_below_the_broker() -> None:
    defaults = {"cleanup.policy": ("compact",)}
    assert SettingsBook(defaults=defaults).of("t").is_compacted
    book = SettingsBook({"log.cleanup.policy": "delete"}, defaults=defaults)
    assert not book.of("t").is_compacted
    assert said(book, "t", "cleanup.policy")[-1] == "DEFAULT_CONFIG:log.cleanup.policy=compact"


@pytest.mark.requirement("CFG-1")
def test_what_has_no_effect_is_told_with_what_would_have() -> None:
    book = SettingsBook(
        {"num.io.threads": "8", "retention.ms": "5", "internal.segment.bytes": "9"},
        {"a": {"preallocate": "true", "segment.ms": "5"}},
        {"t": {"min.insync.replicas": "2"}},
        dynamic_broker={"min.insync.replicas": "2", "listeners": "x"},
        overrides={"remote.storage.enable": "false", "segment.ms": "6"},
    )
    assert list(book.notes("server.properties")) == [
        "remote.storage.enable has no effect here",
        (
            "of server.properties these have no effect here: "
            "internal.segment.bytes (only at a topic), listeners, min.insync.replicas, "
            "num.io.threads, retention.ms (log.retention.ms)"
        ),
        "of prefix a these have no effect here: preallocate",
        "of topic t these have no effect here: min.insync.replicas",
    ]
    assert book.of("x").integer("retention.ms") == 7 * 24 * HOUR_MS
    assert list(SettingsBook({"log.retention.ms": "5"}).notes()) == []


@pytest.mark.requirement("CFG-1", "CFG-2")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"log.retention.ms": "5"},
            "Unknown topic config name: log.retention.ms; it is the broker's name of retention.ms",
        ),
        (
            {"log.cleaner.threads": "2"},
            "Unknown topic config name: log.cleaner.threads; only a broker has it",
        ),
        ({"xyzzy": "2"}, "Unknown topic config name: xyzzy"),
        (
            {"segment.mss": "2"},
            (
                "Unknown topic config name: segment.mss; did you mean segment.ms or "
                "segment.bytes or segment.jitter.ms?"
            ),
        ),
        (
            {"segment.ms": "5", "segment.bytes": "1"},
            "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
        ),
    ],
)
def test_a_topic_refuses_what_cannot_be_and_stays_as_it_was(
    words: dict[str, str], message: str
) -> None:
    before = BOOK.of("b")
    with pytest.raises(UsageError) as refused:
        BOOK.with_topic("b", words)
    assert str(refused.value) == message
    assert BOOK.of("b") is before
    assert BOOK.topics["b"] == {"cleanup.policy": "compact"}
    with pytest.raises(UsageError) as refused:
        BOOK.with_namespace("b", words)
    assert str(refused.value) == f"prefix b: {message}"
    with pytest.raises(UsageError) as refused:
        SettingsBook(topics={"b": words})
    assert str(refused.value) == f"topic b: {message}"


@pytest.mark.requirement("CFG-2")
def test_a_change_at_a_topic() -> None:
    changed = BOOK.with_topic("b", {"segment.ms": "5"}, delete=("cleanup.policy", "retention.ms"))
    assert changed.topics["b"] == {"segment.ms": "5"}
    assert changed.of("b").integer("segment.ms") == 5
    assert not changed.of("b").is_compacted
    assert BOOK.of("b").is_compacted
    assert changed.of("audit.eu.x") is BOOK.of("audit.eu.x")
    assert changed.of("zzz") is BOOK.of("zzz")
    assert changed.without_topic("b").topics.keys() == {"audit.eu.x"}
    assert changed.without_topic("nowhere") == changed
    with pytest.raises(UsageError, match=r"set and deleted at once: segment\.ms"):
        BOOK.with_topic("b", {"segment.ms": "5"}, delete=["segment.ms"])


@pytest.mark.requirement("CFG-2")
def test_a_change_at_a_namespace_reaches_its_topics_and_no_other() -> None:
    changed = BOOK.with_namespace("audit.", {"segment.ms": "77"})
    assert changed.of("audit.eu.x").integer("segment.ms") == 77
    assert changed.of("audit.eu.y").integer("segment.ms") == 77
    assert changed.of("audit.us").integer("segment.ms") == 77
    assert changed.of("au").integer("segment.ms") == 21
    assert changed.of("b") is BOOK.of("b")
    new = BOOK.with_namespace("audit.eu.x", {"segment.ms": "78"})
    assert new.of("audit.eu.x").integer("segment.ms") == 78
    assert new.of("audit.eu.x").integer("retention.ms") == 50
    gone = new.with_namespace("audit.eu.", {}, delete=["retention.ms"])
    assert "audit.eu." not in gone.namespaces
    assert gone.of("audit.eu.y").integer("retention.ms") == 30


@pytest.mark.requirement("CFG-2")
def test_a_change_of_the_broker_reaches_everybody() -> None:
    changed = BOOK.with_broker({"log.segment.bytes": "3145728", "log.retention.ms": "-1"})
    for topic, retention_ms in (("c", -1), ("audit.us", 30), ("audit.eu.x", 50), ("b", -1)):
        assert changed.of(topic).segment_bytes == 3 << 20
        assert changed.of(topic).integer("retention.ms") == retention_ms
    back = changed.with_broker({}, delete=["log.retention.ms"])
    assert back.of("c").integer("retention.ms") == 2 * HOUR_MS
    assert back.with_broker({}, delete=["log.segment.bytes"]) == BOOK


@pytest.mark.requirement("CFG-2", "CLN-1")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"log.retention.hours": "3", "log.dirs": "/x", "log.cleaner.backoff.ms": "1"},
            "Cannot update these configs dynamically: Set(log.dirs, log.retention.hours)",
        ),
        (
            {"log.cleaner.enable": "false"},
            "Cannot update these configs dynamically: Set(log.cleaner.enable)",
        ),
        (
            {"log.cleaner.threads": "1"},
            "Log cleaner threads cannot be reduced to less than half the current value 4",
        ),
        (
            {"log.cleaner.threads": "9"},
            "Log cleaner threads cannot be increased to more than double the current value 4",
        ),
        (
            {"log.cleaner.threads": "0"},
            "Invalid value 0 for configuration log.cleaner.threads: Value must be at least 1",
        ),
        (
            {"num.recovery.threads.per.data.dir": "1"},
            (
                "Dynamic thread count update validation failed for "
                "num.recovery.threads.per.data.dir=1, value should be at least half the current "
                "value 5"
            ),
        ),
        (
            {"num.recovery.threads.per.data.dir": "11"},
            (
                "Dynamic thread count update validation failed for "
                "num.recovery.threads.per.data.dir=11, value should not be greater than double the "
                "current value 5"
            ),
        ),
        (
            {"log.cleaner.dedupe.buffer.size": str(4 << 20)},
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        (
            {"log.cleaner.min.compaction.lag.ms": "9"},
            (
                "topic t: conflict topic config setting min.compaction.lag.ms (9) > "
                "max.compaction.lag.ms (8)"
            ),
        ),
    ],
)
def test_a_broker_refuses_what_only_a_start_can_change(words: dict[str, str], message: str) -> None:
    file = {"log.cleaner.threads": "4", "num.recovery.threads.per.data.dir": "5"}
    book = SettingsBook(file, topics={"t": {"max.compaction.lag.ms": "8"}})
    with pytest.raises(UsageError) as refused:
        book.with_broker(words)
    assert str(refused.value) == message


@pytest.mark.requirement("CFG-2", "CLN-1")
def test_threads_go_to_half_and_to_double() -> None:
    names = ("log.cleaner.threads", "num.recovery.threads.per.data.dir")
    book = SettingsBook(dict.fromkeys(names, "5"))
    for count in (2, 10):  # half of five is two, as in Kafka
        changed = book.with_broker(dict.fromkeys(names, str(count))).of_broker()
        assert [changed.integer(name) for name in names] == [count, count]


@pytest.mark.requirement("CLN-1")
def test_a_broker_wants_a_mebibyte_of_map_a_thread() -> None:
    buffer, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    SettingsBook({buffer: str((2 << 20) + 2), threads: "2"})
    for given in ({buffer: str(2 << 20), threads: "2"}, {threads: "128"}):
        with pytest.raises(UsageError, match="at least 1MB per cleaner thread"):
            SettingsBook(given)
        SettingsBook({**given, "log.cleaner.enable": "false"})
    # A command may ask for less: it is how a round is made to end early.
    assert SettingsBook(overrides={buffer: "2424"}).of("t").max_keys == 90


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 250, "a/b"])
def test_names_that_no_topic_can_have_are_refused(name: str) -> None:
    for change in (BOOK.with_topic, BOOK.with_namespace):
        with pytest.raises(UsageError, match="is no part of a topic's name"):
            change(name, {"segment.ms": "5"})


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("broker", [{}, {"log.retention.hours": "2"}])
def test_ten_thousand_topics_share_what_they_do_not_say(broker: dict[str, str]) -> None:
    topics = {f"t{number}": {"segment.ms": str(number + 1)} for number in range(10_000)}
    book = SettingsBook(broker, BOOK.namespaces, topics)
    assert book.of("u1") is book.of("u2")
    changed = book.with_topic("t5", {"retention.ms": "1"})
    assert sum(changed.of(topic) is book.of(topic) for topic in topics) == len(topics) - 1
    tables = [book.of(topic).values for topic in topics]
    assert all(isinstance(values, ChainMap) for values in tables)
    assert len({id(values.maps[1]) for values in tables if isinstance(values, ChainMap)}) == 1
    assert max(len(values.maps[0]) for values in tables if isinstance(values, ChainMap)) < 5


NAMES = ("retention.ms", "segment.ms", "min.compaction.lag.ms", "max.compaction.lag.ms")
PLACES = ("a", "aa", "aab", "ab", "b", "ba")
TOPICS = ("a", "aa", "aab", "aabc", "abc", "b", "bab", "c")


@pytest.mark.requirement("CFG-1", "CFG-2")
@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(5))
def test_changes_one_by_one_come_to_what_is_written_at_once(
    seed: int, count_cases: Callable[[str, int], None]
) -> None:
    """After each change the book answers as a new one does, and as a plain look-up would."""
    random, book, refused = Random(seed), SettingsBook(), 0
    for _ in range(80):
        words = {name: str(random.randint(1, 9)) for name in random.sample(NAMES, 2)}
        gone = [name for name in NAMES if name not in words and random.random() < 0.5]
        at_topic, at_prefix = random.choice(TOPICS), random.choice(PLACES)
        before = {topic: book.of(topic) for topic in TOPICS}
        try:
            match random.randrange(3):
                case 0:
                    book = book.with_topic(at_topic, words, gone)
                case 1:
                    book = book.with_namespace(at_prefix, words, gone)
                case _:
                    # The broker's names of these, in the same order.
                    to = {name: setting(name).synonyms[0].name for name in NAMES}
                    book = book.with_broker(
                        {to[name]: text for name, text in words.items()},
                        [to[name] for name in gone],
                    )
        except UsageError as error:
            assert "conflict topic config setting" in str(error)
            refused += 1
            assert all(book.of(topic) is before[topic] for topic in TOPICS)
        fresh = SettingsBook({}, book.namespaces, book.topics, book.dynamic_broker)
        assert fresh == book
        for topic in TOPICS:
            assert book.of(topic).values == fresh.of(topic).values
            assert book.of(topic).levels == fresh.of(topic).levels
            for name in NAMES:
                assert book.of(topic).values[name] == looked_up(book, topic, name)
    assert 0 < refused < 80
    count_cases("changes of settings", 80)


def looked_up(book: SettingsBook, topic: str, name: str) -> int:
    """The naive twin: the first place that says it."""
    prefixes = sorted((p for p in book.namespaces if topic.startswith(p)), key=len, reverse=True)
    places = [book.topics.get(topic, {}), *(book.namespaces[prefix] for prefix in prefixes)]
    for words in places:
        if name in words:
            return int(words[name])
    default = setting(name).default
    assert isinstance(default, int)
    return int(book.dynamic_broker.get(setting(name).synonyms[0].name, default))


@pytest.mark.requirement("CFG-2")
def test_a_book_is_read_and_changed_by_threads_at_once() -> None:
    book, errors = BOOK, []

    def read() -> None:
        try:
            for number in range(3000):
                held = book
                topic = f"audit.eu.{number}"
                assert held.of(topic).integer("retention.ms") == 40
                assert held.of(f"t{number}") is not held.of(topic)
        except Exception as error:  # noqa: BLE001  told by the thread that asserts
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(300):
        book = book.with_topic(f"t{number}", {"segment.ms": str(number + 1)})
        book.with_namespace(f"n{number}", {"segment.ms": "5"})
    for reader in readers:
        reader.join()
    assert errors == []
    assert book.of("t299").integer("segment.ms") == 300


def test_words_over_everything_are_seen_by_topics_that_were_asked_before() -> None:
    book = SettingsBook(topics={"a": {"segment.ms": "5"}})
    assert (book.of("a").integer("segment.ms"), book.of("b").integer("segment.ms")) == (
        5,
        604800000,
    )
    changed = book.with_overrides({"segment.ms": "7"})
    assert {changed.of(topic).integer("segment.ms") for topic in "ab"} == {7}
    assert book.of("a").integer("segment.ms") == 5
