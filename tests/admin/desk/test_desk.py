"""A desk over real files: what is changed counts at once, and after a restart."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.desk import BareDesk, Desk, OwnDesk, describing, open_desk
from stratalog.admin.desk.registry import Entry, Registry, Stage, write_registry
from stratalog.admin.directories import PartitionPlace
from stratalog.base.clock import Clock, FixedClock, SystemClock
from stratalog.base.errors import (
    InvalidConfigError,
    LogLockedError,
    StratalogError,
    TooManyFilesError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.config.book import SettingsBook
from stratalog.log.log_store import LogStore
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, NOW_MS, records, tree, write_log
from tests.clean.gates import PATIENCE_SECONDS, Gate

pytestmark = pytest.mark.usefixtures("hasty_disk")
A0 = TopicPartition("a", 0)
CLOCK = FixedClock(NOW_MS)
LOOKS: tuple[Callable[[OwnDesk], dict[str, Any]], ...] = (
    lambda desk: desk.list_topics(),
    lambda desk: desk.describe_topic("a"),
    lambda desk: desk.describe_storage("a"),
    lambda desk: desk.describe_log_dirs(),
    lambda desk: desk.compaction_status(),
    lambda desk: desk.explain(),
    lambda desk: desk.history(),
    lambda desk: desk.cleaner_status(),
)


@contextmanager
def opened(path: Path, *, clock: Clock = CLOCK, **options: Any) -> Iterator[OwnDesk]:
    with open_desk([str(path)], DISK, clock, **options) as desk:
        yield desk


def bare(path: Path, **options: Any) -> BareDesk:
    return BareDesk([str(path)], DISK, CLOCK, **options)


def fill(desk: OwnDesk, key: TopicPartition, keys: str) -> None:
    log = desk.service.store.get(key)
    for record in records(keys):
        log.append_records([record])


# ---------------------------------------------------------------- settings at run time


@pytest.mark.requirement("CFG-2")
def test_a_change_counts_for_the_open_log_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1)
        log = desk.service.store.get(A0)
        assert log.settings.retention_ms == 604_800_000
        done = desk.alter_configs("topic", "a", {"retention.ms": "5"})
        assert done["changes"] == [
            {
                "name": "retention.ms",
                "before": "604800000",
                "after": "5",
                "source": "DYNAMIC_TOPIC_CONFIG",
                "effect": "with the next retention check",
            }
        ]
        assert log.settings.retention_ms == 5
        desk.alter_configs("broker", None, {"log.segment.bytes": "2000000"})
        desk.alter_configs("prefix", "a", {"segment.ms": "60000"})
        assert (log.settings.segment_bytes, log.settings.segment_ms) == (2_000_000, 60_000)
        desk.add_partitions("a", 2)
        assert desk.service.store.get(TopicPartition("a", 1)).settings == log.settings
    with opened(tmp_path) as desk:
        settings = desk.service.store.get(A0).settings
        assert (settings.retention_ms, settings.segment_ms) == (5, 60_000)
        assert settings.segment_bytes == 2_000_000
        desk.alter_configs("topic", "a", delete=["retention.ms"])
        assert desk.service.store.get(A0).settings.retention_ms == 604_800_000


@pytest.mark.requirement("CFG-2")
def test_retention_by_a_changed_setting(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1, {"segment.ms": "1"})
        fill(desk, A0, "ab")
        log = desk.service.store.get(A0)
        log.roll()
        desk.service.store.run_retention()
        assert log.log_start_offset == 0
        desk.alter_configs("topic", "a", {"retention.bytes": "0"})
        desk.service.store.run_retention()
        assert log.log_start_offset > 0


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize("policy", ["delete", ""])
def test_a_running_clean_is_aborted_as_compact_goes(tmp_path: Path, policy: str) -> None:
    gate = Gate()
    with opened(tmp_path, clock=SystemClock(), starts=True) as desk:
        desk.service.cleaner._engine_of = gate.engine_of
        desk.create_topic("a", 2, {"cleanup.policy": "compact"})
        fill(desk, A0, "aab")
        fill(desk, TopicPartition("a", 1), "cc")
        assert desk.compact("a", 0)["partitions"][0]["request"] == "started"
        assert gate.arrived.wait(PATIENCE_SECONDS)
        assert desk.compact("a", 1)["partitions"][0]["state"] == "waiting"
        again = desk.compact("a")["partitions"]
        assert [row["request"] for row in again] == ["running", "running"]
        assert [row["state"] for row in again] == ["running", "waiting"]
        told: list[dict[str, Any]] = []
        change = threading.Thread(
            target=lambda: told.append(desk.alter_configs("topic", "a", {"cleanup.policy": policy}))
        )
        change.start()
        until = time.monotonic() + PATIENCE_SECONDS
        while not desk.service.manager.must_stop(A0) and time.monotonic() < until:
            time.sleep(0.01)
        gate.go.set()
        change.join(PATIENCE_SECONDS)
        assert told[0]["aborted"] == ["a-0", "a-1"]
        [row] = desk.compaction_status("a", 0)["partitions"]
        assert (row["state"], row["is_compacted"]) == ("aborted", False)
        assert [row["state"] for row in desk.compaction_status("a", 1)["partitions"]] == ["never"]
        assert desk.service.store.get(A0).log_end_offset == 3
        keys = [record.key for record in desk.service.store.get(A0).read_records(0)]
        assert keys == [b"a", b"a", b"b"], "the log is as it was"


@pytest.mark.requirement("CFG-2")
def test_a_refused_change_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1, {"retention.ms": "9"})
        before, book = tree(tmp_path), desk.service.book
        for words, delete in (
            ({"retention.ms": "-7"}, ()),
            ({"retention.ms": "5", "no.such": "1"}, ()),
            ({"retention.ms": "5"}, ("retention.ms",)),
            ({}, ("no.such",)),
            ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, ()),
            ({"retention.ms": 5}, ()),
        ):
            with pytest.raises(InvalidConfigError):
                desk.alter_configs("topic", "a", words, delete)  # type: ignore[arg-type]
        # What is right at a topic alone may be wrong with what stands above it.
        desk.alter_configs("topic", "a", {"min.compaction.lag.ms": "9"}, dry_run=True)
        with pytest.raises(InvalidConfigError, match="Cannot update these configs dynamically"):
            desk.alter_configs("broker", None, {"log.dirs": "x"})
        with pytest.raises(UsageError):
            desk.alter_configs("broker", "7", {"log.retention.ms": "1"})
        with pytest.raises(UsageError):
            desk.alter_configs("topic", "a")
        assert tree(tmp_path) == before
        assert desk.service.book == book


@pytest.mark.requirement("CFG-2")
def test_a_change_above_that_breaks_a_topic_below_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1, {"min.compaction.lag.ms": "100"})
        with pytest.raises(InvalidConfigError, match=r"topic a: conflict .* \(100\) > .* \(50\)"):
            desk.alter_configs("broker", None, {"log.cleaner.max.compaction.lag.ms": "50"})
        assert desk.describe_configs("broker")["configs"] == []


@pytest.mark.requirement("CFG-1", "CFG-2")
def test_sources_and_synonyms_are_told(tmp_path: Path) -> None:
    book = SettingsBook({"log.retention.hours": "1", "log.segment.bytes": "5000000"})
    with opened(tmp_path, book=book) as desk:
        desk.create_topic("audit.x", 1, {"retention.ms": "5"})
        desk.alter_configs("prefix", "audit.", {"retention.ms": "6", "segment.ms": "70000"})
        desk.alter_configs("broker", None, {"log.retention.ms": "7"})
        found = {
            it["name"]: it for it in desk.describe_configs("topic", "audit.x", all=True)["configs"]
        }
        retention = found["retention.ms"]
        assert (retention["value"], retention["default"]) == ("5", "604800000")
        assert [
            (it["source"], it["name"], it["value"], it["place"]) for it in retention["synonyms"]
        ] == [
            ("DYNAMIC_TOPIC_CONFIG", "retention.ms", "5", None),
            ("DYNAMIC_NAMESPACE_CONFIG", "retention.ms", "6", "audit."),
            ("DYNAMIC_BROKER_CONFIG", "log.retention.ms", "7", None),
            ("STATIC_BROKER_CONFIG", "log.retention.hours", "1", None),
            ("DEFAULT_CONFIG", "log.retention.hours", "168", None),
        ]
        assert (found["segment.ms"]["source"], found["segment.ms"]["place"]) == (
            "DYNAMIC_NAMESPACE_CONFIG",
            "audit.",
        )
        assert found["segment.bytes"]["source"] == "STATIC_BROKER_CONFIG"
        assert found["segment.ms"]["is_set"] is False, "not at the topic"
        assert all(it["doc"] and it["effect"] for it in found.values())
        broker = {it["name"]: it for it in desk.describe_configs("broker", all=True)["configs"]}
        assert broker["log.dirs"]["is_dynamic"] is False
        assert broker["log.retention.ms"]["is_dynamic"] is True
        [only] = desk.describe_configs("topic", "audit.x")["configs"]
        assert only["name"] == "retention.ms"


# ---------------------------------------------------------------- topics


@pytest.mark.requirement("ADM-1")
def test_a_found_topic_is_left_alone_until_somebody_says_its_policy(tmp_path: Path) -> None:
    """Kafka's directories know no policies: nothing of them may go by a default."""
    write_log(tmp_path / "orders-0", [[records("ab")], [records("c")]])
    with opened(tmp_path) as desk:
        log = desk.service.store.get(TopicPartition("orders", 0))
        assert log.settings.cleanup_policy == ()
        desk.alter_configs("topic", "orders", {"retention.bytes": "1"})
        desk.service.store.run_retention()
        assert log.log_start_offset == 0
        desk.alter_configs("topic", "orders", {"cleanup.policy": "delete"})
        desk.service.store.run_retention()
        assert log.log_start_offset == 2
        desk.create_topic("mine")
        made = desk.service.store.get(TopicPartition("mine", 0))
        assert made.settings.cleanup_policy == ("delete",)
    assert [row["partitions"] for row in bare(tmp_path).list_topics()["topics"]] == [1, 1]


@pytest.mark.requirement("ADM-1")
def test_only_some_partitions_of_a_topic_get_no_new_ones(tmp_path: Path) -> None:
    for number in (0, 2):
        write_log(tmp_path / f"orders-{number}", [[records("a")]])
    with pytest.raises(UsageError, match="has only some of its partitions here: 0, 2"):
        bare(tmp_path).add_partitions("orders", 4)


@pytest.mark.requirement("ADM-1")
def test_a_topic_that_is_deleted_and_made_again_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path, clock=SystemClock()) as desk:
        desk.create_topic("a", 2, {"cleanup.policy": "compact", "segment.ms": "60000"})
        fill(desk, A0, "aabb")
        desk.compact("a", 0)
        desk.pause("a", 1)
        plan = desk.delete_topic("a", dry_run=True)
        assert (plan["deleted"], plan["applied"], len(plan["partitions"])) == (True, False, 2)
        assert plan["freed_bytes"] > 0
        desk.delete_topic("a")
        assert desk.topic_names() == []
        with pytest.raises(UnknownPartitionError, match="Topic 'a' does not exist as expected"):
            desk.describe_topic("a")
        desk.create_topic("a", 1)
        [row] = desk.describe_topic("a")["partitions"]
        assert (row["log_end_offset"], row["cleaner_checkpoint"]) == (0, None)
        assert desk.describe_topic("a")["configs"] == {}
        [status] = desk.compaction_status("a")["partitions"]
        assert (status["state"], status["paused"]) == ("never", False)


@pytest.mark.requirement("ADM-1")
def test_partitions_are_spread_over_the_log_directories(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    with open_desk(paths, DISK, CLOCK) as desk:
        desk.create_topic("t", 4)
        sizes = [len(row["partitions"]) for row in desk.describe_log_dirs()["log_dirs"]]
        assert sizes == [2, 2]
    # In another order the registry is found all the same.
    found = BareDesk(paths[::-1], DISK, CLOCK).describe_topic("t")
    assert (found["partition_count"], found["ok"]) == (4, True)


@pytest.mark.requirement("ADM-1")
def test_segments_are_described_with_their_sections(tmp_path: Path) -> None:
    with opened(tmp_path, clock=SystemClock()) as desk:
        desk.create_topic("a", 1, {"cleanup.policy": "compact"})
        fill(desk, A0, "aab")
        desk.compact("a")
        log = desk.service.store.get(A0)
        fill(desk, A0, "ab")
        log.roll()
        fill(desk, A0, "c")
        own = desk.describe_storage("a")
        [row] = own["partitions"]
        assert [it["section"] for it in row["segments"]] == ["clean", "cleanable", "active"]
        assert sum(it["size_bytes"] for it in row["segments"]) == row["size_bytes"]
        assert row["bytes"]["total"] == row["size_bytes"]
        bounds = [(it["base_offset"], it["end_offset"]) for it in row["segments"]]
        assert bounds == [(0, 3), (3, 5), (5, 6)]
        # Beside the process that has it open, from the files alone: the same.
        beside = BareDesk([str(tmp_path)], DISK, CLOCK).describe_storage("a")
        told = [it["section"] for it in beside["partitions"][0]["segments"]]
        assert told == ["clean", "cleanable", "active"]


@pytest.mark.requirement("ADM-1")
def test_records_are_deleted_as_planned(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1)
        fill(desk, A0, "abc")
        wanted = [{"topic": "a", "partition": 0, "offset": 2}]
        plan = desk.delete_records(wanted, dry_run=True)
        done = desk.delete_records(wanted)
        assert {**plan, "applied": True} == done
        assert desk.service.store.get(A0).log_start_offset == 2
        both = [*wanted, {"topic": "a", "partition": 5, "offset": "end"}]
        refused = desk.delete_records(both)
        assert (refused["ok"], refused["applied"]) == (False, False)
        assert [it["error"] is None for it in refused["partitions"]] == [True, False]
        for odd in ([], [{}], [{"topic": "a", "partition": 0}], [7], [*wanted, *wanted]):
            with pytest.raises(UsageError):
                desk.delete_records(odd)  # type: ignore[arg-type]
        for offset in (-2, 1.5, None, True, "soon", 1 << 64):
            with pytest.raises(UsageError):
                desk.delete_records([{"topic": "a", "partition": 0, "offset": offset}])


@pytest.mark.requirement("ADM-1")
def test_a_directory_that_somebody_has_is_looked_at_and_not_changed(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1)
        fill(desk, A0, "ab")
        other = bare(tmp_path)
        assert other.list_topics() == desk.list_topics()
        assert other.describe_topic("a")["partitions"][0]["log_end_offset"] == 2
        changes: tuple[Callable[[Desk], object], ...] = (
            lambda it: it.create_topic("b"),
            lambda it: it.delete_topic("a"),
            lambda it: it.add_partitions("a", 2),
            lambda it: it.alter_configs("topic", "a", {"retention.ms": "5"}),
            lambda it: it.delete_records([{"topic": "a", "partition": 0, "offset": 1}]),
            lambda it: it.compact("a"),
            lambda it: it.pause("a"),
        )
        for change in changes:
            with pytest.raises(LogLockedError):
                change(other)


@pytest.mark.requirement("ADM-1")
def test_a_dry_run_says_what_the_run_does_and_changes_nothing(tmp_path: Path) -> None:
    desk = bare(tmp_path)
    desk.create_topic("a", 1, {"cleanup.policy": "compact,delete"})
    with opened(tmp_path) as own:
        fill(own, A0, "abc")
    before = tree(tmp_path)
    runs: tuple[Callable[..., dict[str, Any]], ...] = (
        lambda **how: desk.create_topic("b", 2, **how),
        lambda **how: desk.add_partitions("a", 2, **how),
        lambda **how: desk.alter_configs("topic", "a", {"retention.ms": "5"}, **how),
        lambda **how: desk.delete_records([{"topic": "a", "partition": 0, "offset": 1}], **how),
        lambda **how: desk.delete_topic("a", **how),
    )
    for run in runs:
        plan = run(dry_run=True)
        assert tree(tmp_path) == before
        done = run()
        assert (plan["applied"], done["applied"]) == (False, True)
        assert {**plan, "applied": True} == done
        before = tree(tmp_path)


@pytest.mark.requirement("ADM-1")
def test_threads_that_change_topics_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        failures: list[BaseException] = []

        def churn(name: str) -> None:
            try:
                for _ in range(2):
                    desk.create_topic(name, 2)
                    desk.add_partitions(name, 3)
                    desk.alter_configs("topic", name, {"retention.ms": "5"})
                    desk.list_topics()
                    desk.delete_topic(name)
                desk.create_topic(name, 1)
            except StratalogError as error:
                failures.append(error)

        threads = [threading.Thread(target=churn, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert desk.topic_names() == ["a", "b", "c"]
    assert [row["partitions"] for row in bare(tmp_path).list_topics()["topics"]] == [1, 1, 1]


@pytest.mark.requirement("ADM-1")
def test_unknown_topics_are_refused_everywhere(tmp_path: Path) -> None:
    with opened(tmp_path) as own:
        own.create_topic("a")
        calls: tuple[Callable[[Desk], object], ...] = (
            lambda it: it.describe_topic("x"),
            lambda it: it.describe_storage("x"),
            lambda it: it.describe_storage("a", [4]),
            lambda it: it.delete_topic("x"),
            lambda it: it.add_partitions("x", 2),
            lambda it: it.describe_configs("topic", "x"),
            lambda it: it.alter_configs("topic", "x", {"retention.ms": "5"}),
            lambda it: it.describe_log_dirs(["x"]),
            lambda it: it.compact("x"),
            lambda it: it.compact("a", 7),
            lambda it: it.cancel("x"),
            lambda it: it.compaction_status("x"),
            lambda it: it.explain("x"),
            lambda it: it.history("x"),
            lambda it: it.pause("x"),
            lambda it: it.resume("x"),
            lambda it: it.retry("x"),
        )
        for desk in (own, bare(tmp_path)):
            for call in calls:
                with pytest.raises(UnknownPartitionError):
                    call(desk)


def test_a_record_of_a_new_key_can_be_appended_beside_the_desk(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1, {"cleanup.policy": "compact"})
        log = desk.service.store.get(A0)
        assert log.append_records([NewRecord(b"k", b"v", NOW_MS)]).first_offset == 0
        assert desk.partition_count("a") == 1


@pytest.mark.requirement("ADM-1")
def test_what_a_ledger_has_taken_is_clean(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1, {"compaction.mode": "ledger"})
        fill(desk, A0, "aab")
        log = desk.service.store.get(A0)
        log.roll()
        [before] = desk.compaction_status("a")["partitions"]
        assert (before["ledger"], before["state"]) == (None, "never")
        assert before["bytes"]["cleanable"] == before["backlog_bytes"] > 0
        desk.compact("a")
        fill(desk, A0, "c")
        for told in (desk, bare(tmp_path)):
            [row] = told.compaction_status("a")["partitions"]
            assert (row["mode"], row["state"]) == ("ledger", "succeeded")
            assert (row["ledger"]["number"], row["ledger"]["horizon"]) == (1, 3)
            assert row["bytes"]["clean"] == before["bytes"]["cleanable"]
            assert row["bytes"]["cleanable"] == 0
            assert row["backlog_bytes"] == row["bytes"]["active"] > 0


@pytest.mark.requirement("ADM-1")
def test_a_topic_that_is_being_made_or_deleted_is_shown_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks wait for no change, which may take minutes, and take nothing for lost meanwhile."""
    told: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def looked(desk: OwnDesk) -> None:
        row = next((it for it in desk.list_topics()["topics"] if it["name"] == "a"), None)
        if row is not None:
            told.append((row, desk.describe_topic("a")))

    with opened(tmp_path) as desk:
        store = desk.service.store
        create, delete = store.create, store._delete

        def creating(key: TopicPartition) -> Any:
            looked(desk)
            made = create(key)
            looked(desk)
            return made

        def deleting(key: TopicPartition, forgotten: Any) -> None:
            looked(desk)
            delete(key, forgotten)
            looked(desk)

        monkeypatch.setattr(store, "create", creating)
        monkeypatch.setattr(store, "_delete", deleting)
        desk.create_topic("a", 3)
        desk.add_partitions("a", 4)
        desk.delete_topic("a")
    states = [row["state"] for row, _ in told]
    assert list(dict.fromkeys(states)) == ["creating", "adding", "deleting"]
    for row, described in told:
        assert row["error"] is None, row
        assert described["ok"], described
        assert described["state"] == row["state"]
        assert len(described["partitions"]) == described["partition_count"] == row["partitions"]


class _Flickering:
    """Topics that change while one looks: each look finds the next registry in force."""

    def __init__(self, desk: OwnDesk, registries: list[Registry]):
        self._looker, self._registries = desk._looker, registries
        self.registry = desk._looker.registry

    def places(self) -> list[PartitionPlace]:
        if self._registries:
            self.registry = self._registries.pop(0)
        return self._looker.places()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._looker, name)


@pytest.mark.requirement("ADM-1")
def test_what_is_told_is_of_one_moment(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 2)
        ready = desk._looker.registry
        more = ready.with_topic("a", Entry(5, made=True))  # of which three are not there
        for describe in (
            describing.list_topics,
            lambda looker: describing.describe_topic(looker, "a"),
        ):
            looker: Any = _Flickering(desk, [ready])
            looker.registry = more
            assert describe(looker)["ok"]
            looker = _Flickering(desk, [more])
            assert not describe(looker)["ok"], "they are lost, and stay so"


@pytest.mark.requirement("ADM-1")
def test_looks_walk_through_nothing_that_another_thread_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`failed` goes through all logs, of which there may be one more meanwhile."""

    def changed(_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with opened(tmp_path) as desk:
        desk.create_topic("a", 3)
        monkeypatch.setattr(LogStore, "failed", property(changed))
        for look in LOOKS:
            assert look(desk)["ok"]


@pytest.mark.requirement("ADM-1", "LDG-1")
def test_a_ledger_goes_on_showing_what_is_deleted_which_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1, {"compaction.mode": "ledger"})
        fill(desk, A0, "aab")
        wanted: list[dict[str, Any]] = [{"topic": "a", "partition": 0, "offset": 2}]
        assert desk.delete_records(wanted, dry_run=True)["warnings"] == []
        desk.compact("a")
        fill(desk, A0, "c")
        plan = desk.delete_records(wanted, dry_run=True)
        [warning] = plan["warnings"]
        assert "compacted and latest views still show" in warning
        assert desk.delete_records(wanted) == {**plan, "applied": True}
        assert desk.delete_records(wanted)["warnings"] == [], "nothing goes"
    to_end = [{"topic": "a", "partition": 0, "offset": "end"}]
    other = bare(tmp_path)
    for is_dry in (True, False):
        [warning] = other.delete_records(to_end, dry_run=is_dry)["warnings"]
        assert warning.startswith("a: what is deleted reaches past its ledgers, so they answer no")


@pytest.mark.requirement("ADM-1")
def test_limits_and_prefixes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as own:
        own.create_topic("a")
        for desk in (own, bare(tmp_path)):
            for limit in (0, -1):
                with pytest.raises(UsageError, match="1 or more"):
                    desk.history("a", limit=limit)
            assert desk.history("a", limit=1)["ok"]
            for prefix in ("", "/", "x" * 250):
                with pytest.raises(InvalidConfigError, match="no part of a topic's name"):
                    desk.describe_configs("prefix", prefix)
            assert desk.describe_configs("prefix", "a")["configs"] == []


@pytest.mark.requirement("ADM-1")
def test_looks_while_a_partition_goes_tell_of_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is closed before its name is gone: whoever looks in between finds it closed."""
    told: list[dict[str, Any]] = []
    with opened(tmp_path) as desk:
        desk.create_topic("a", 2, {"cleanup.policy": "compact"})
        desk.create_topic("b", 1)
        rename = desk.service.store._filesystem.rename

        def renaming(old: str, new: str) -> None:
            if new.endswith("-delete"):
                told.extend(look(desk) for look in LOOKS)
            rename(old, new)

        monkeypatch.setattr(type(DISK), "rename", lambda _, old, new: renaming(old, new))
        desk.delete_topic("a")
        monkeypatch.undo()
        assert len(told) == 2 * len(LOOKS)
        assert [document for document in told if not document["ok"]] == []


@pytest.mark.requirement("ADM-1")
def test_what_there_are_not_enough_open_files_for_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the next open begin it anew; the topic can be deleted then."""
    with opened(tmp_path) as desk:
        desk.create_topic("a", 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        try:
            with pytest.raises(TooManyFilesError, match="ulimit"):
                desk.create_topic("b", 200)
            with pytest.raises(TooManyFilesError, match="ulimit"):
                desk.add_partitions("a", 200)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [row["partitions"] for row in desk.list_topics()["topics"]] == [1]
        assert desk.describe_topic("a")["state"] == "ready"
        desk.create_topic("b", 2)
        registry = desk._looker.registry
        begun = Entry(200, stage=Stage.CREATING, made=True)
        write_registry(str(tmp_path), registry.with_topic("b", begun), DISK)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        with opened(tmp_path) as desk:
            row = desk.list_topics()["topics"][1]
            assert (row["name"], row["state"], row["failing"]) == ("b", "creating", 198)
            desk.delete_topic("b")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [row["name"] for row in bare(tmp_path).list_topics()["topics"]] == ["a"]
