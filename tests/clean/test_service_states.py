"""Who stops a round, who waits for whom, and what comes after: the states in life (CLN-4, CLN-5).

Real threads; the engine stands at a chunk until it is told to go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from stratalog.base.errors import RoundAbortedError, UnknownPartitionError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean import cleaner as cleaner_module
from stratalog.clean import memory as memory_module
from stratalog.clean.history import Entry, read_history
from stratalog.clean.manager import Request
from stratalog.clean.settings import CleanerSettings
from stratalog.clean.states import NONE, paused
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition
from tests.clean.gates import PATIENCE_SECONDS, Gate, Threads, wait_until
from tests.clean.services import COMPACTED, ORDERS, Parts, contents, opened, put

OTHER = TopicPartition("other", 0)
DELETING = LogSettings(cleanup_policy=("compact", "delete"), retention_ms=-1)


@dataclass
class Scene:
    """A round stands at a chunk of ORDERS, in a thread."""

    parts: Parts
    gate: Gate
    threads: Threads

    def stopped(self, act: Callable[[], object]) -> object:
        """`act` in another thread; it has to wait for the round, which stops at its next chunk."""
        acting = self.threads.run(act)
        wait_until(lambda: self.parts.manager.must_stop(ORDERS), "the round is told to stop")
        assert not acting.done(), "it does not wait for the round"
        self.gate.go.set()
        return acting.result(PATIENCE_SECONDS)

    def history(self) -> list[Entry]:
        return read_history(LocalFileSystem(), self.parts.store.get(ORDERS).path)

    def check_later_round(self) -> None:
        """The round left nothing behind, and the next one does its work."""
        parts, log = self.parts, self.parts.store.get(ORDERS)
        assert self.gate.chunks == 0, "it went on behind its chunk"
        assert parts.store.cleaner_point(ORDERS) is None
        assert not list(Path(log.path).glob("*.part"))
        latest = {key: value for _, key, value in contents(log)}
        assert parts.clean_all() == 1
        assert parts.store.cleaner_point(ORDERS) == log.segments.active.base_offset
        after = contents(log)
        assert {key: value for _, key, value in after} == latest
        assert len(after) == len(latest)


@contextmanager
def standing(
    tmp_path: Path, settings: CleanerSettings | None = None, *, by_itself: bool = False
) -> Iterator[Scene]:
    gate = Gate()
    with (
        Threads() as threads,
        opened(
            [str(tmp_path / "one")],
            log_settings=DELETING,
            engine_of=gate.engine_of,
            settings=settings,
        ) as parts,
    ):
        try:
            log = parts.log()
            for number in range(4):
                put(log, ("a", f"{number}"), (f"b{number}", "0"))
                log.roll()
            if by_itself:
                parts.cleaner.start()
            else:
                threads.run(parts.cleaner.run_once, "first")
            assert gate.arrived.wait(PATIENCE_SECONDS)
            yield Scene(parts, gate, threads)
        finally:
            gate.go.set()


@pytest.mark.requirement("CLN-4")
def test_a_truncation_stops_a_round_and_waits_for_it(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        assert scene.stopped(lambda: scene.parts.store.truncate(ORDERS, 5)) == 4
        log = scene.parts.store.get(ORDERS)
        assert [key for _, key, _ in contents(log)] == ["a", "b0", "a", "b1"]
        [entry] = scene.history()
        assert (entry.result, entry.drops.total) == ("aborted", 0)
        put(log, ("a", "new"))
        log.roll()
        scene.check_later_round()


@pytest.mark.requirement("CLN-4")
def test_a_deletion_stops_a_round_and_the_next_topic_of_the_name_is_its_own(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        parts = scene.parts
        scene.stopped(lambda: parts.store.delete(ORDERS))
        assert parts.store.partitions() == []
        log = parts.log()
        assert parts.manager.state_of(ORDERS) == NONE
        for _ in range(2):
            put(log, ("a", "1"))
            log.roll()
        assert scene.history() == []
        scene.check_later_round()


@pytest.mark.requirement("CLN-4", "CFG-2")
def test_a_topic_that_loses_compact_stops_its_round(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        parts = scene.parts
        parts.topics["orders"] = replace(COMPACTED, is_compacted=False, deletes=True)
        assert scene.stopped(lambda: parts.manager.abort(ORDERS)) is True
        assert parts.clean_all() == 0
        assert len(contents(parts.log())) == 8, "nothing of it is gone"
        del parts.topics["orders"]
        scene.check_later_round()


@pytest.mark.requirement("CLN-4", "CFG-2")
def test_a_topic_that_loses_compact_just_before_its_round(tmp_path: Path) -> None:
    with opened([str(tmp_path)]) as parts:
        log, grab = parts.log(), parts.manager.grab
        put(log, ("a", "1"), ("a", "2"))
        log.roll()

        def late_grab() -> object:
            grabbed = grab()
            parts.topics["orders"] = replace(COMPACTED, is_compacted=False)
            return grabbed

        parts.manager.grab = late_grab  # type: ignore[method-assign, assignment]
        parts.cleaner.run_once("test")
        assert len(contents(log)) == 2
        assert parts.store.cleaner_point(ORDERS) is None


@pytest.mark.requirement("CLN-4")
def test_a_pause_stops_a_round_and_outlives_the_process(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        assert scene.stopped(lambda: scene.parts.manager.pause(ORDERS)) is True
        assert scene.parts.manager.pause(ORDERS) is False
        assert scene.parts.clean_all() == 0
    with opened([str(tmp_path / "one")]) as parts:
        assert parts.clean_all() == 0
        assert len(contents(parts.log())) == 8
        assert parts.manager.resume(ORDERS) is True
        assert parts.manager.resume(ORDERS) is False
        assert parts.clean_all() == 1
        assert len(contents(parts.log())) == 5


@pytest.mark.requirement("CLN-4")
def test_pauses_nest(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        manager, threads = scene.parts.manager, scene.threads
        pauses = [threads.run(manager.pause, ORDERS) for _ in range(3)]
        truncation = threads.run(scene.parts.store.truncate, ORDERS, 6)
        wait_until(lambda: manager.state_of(ORDERS).pauses == 2, "both wait")
        assert not any(waiting.done() for waiting in (*pauses, truncation))
        scene.gate.go.set()
        assert sorted(pause.result(PATIENCE_SECONDS) for pause in pauses) == [False, False, True]
        assert truncation.result(PATIENCE_SECONDS) == 6
        assert manager.state_of(ORDERS) == paused(1)
        manager.abort_and_pause(ORDERS)
        assert manager.resume(ORDERS)
        assert scene.parts.clean_all() == 0, "one more keeps it"
        manager.resume_held(ORDERS)
        assert manager.state_of(ORDERS) == NONE
        scene.check_later_round()


@pytest.mark.requirement("CLN-4")
def test_whoever_gives_up_waiting_keeps_nobody_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing(tmp_path) as scene:
        manager = scene.parts.manager

        def interrupted(timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(manager._lock, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.abort(ORDERS)
        assert manager.must_stop(ORDERS)
        scene.gate.go.set()
        wait_until(lambda: manager.state_of(ORDERS) == NONE, "the round has ended")
        scene.check_later_round()


@pytest.mark.requirement("CLN-4")
def test_a_deletion_and_a_truncation_at_once(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        parts, threads = scene.parts, scene.threads
        deletion = threads.run(parts.store.delete, ORDERS)
        truncation = threads.run(parts.store.truncate, ORDERS, 4)
        wait_until(lambda: parts.manager.state_of(ORDERS).pauses == 2, "both wait")
        scene.gate.go.set()
        deletion.result(PATIENCE_SECONDS)
        error = truncation.exception(PATIENCE_SECONDS)
        assert error is None or isinstance(error, UnknownPartitionError)
        parts.log()
        assert parts.manager.state_of(ORDERS) == NONE


@pytest.mark.requirement("CLN-4", "CLN-7")
def test_a_directory_that_goes_offline_stops_its_rounds(tmp_path: Path) -> None:
    gate = Gate()
    dirs = [str(tmp_path / name) for name in ("one", "two")]
    with Threads() as threads, opened(dirs, engine_of=gate.engine_of) as parts:
        for key in (ORDERS, OTHER):
            put(parts.log(key), ("a", "1"), ("a", "2"))
            parts.log(key).roll()
        assert parts.store.log_dir_of(ORDERS) != parts.store.log_dir_of(OTHER)
        first = threads.run(parts.cleaner.run_once, "first")
        assert gate.arrived.wait(PATIENCE_SECONDS)
        [running] = parts.cleaner.activities()
        failing = running.topic_partition
        parts.store.disk_failed(failing, OSError("gone"))
        gate.go.set()
        assert first.result(PATIENCE_SECONDS) is True
        assert gate.chunks == 0
        assert parts.store.cleaner_point(failing) is None
        assert list(parts.store.offline_dirs) == [parts.store.log_dir_of(failing)]
        assert parts.clean_all() == 1
        [healthy] = {ORDERS, OTHER} - {failing}
        assert len(contents(parts.store.get(healthy))) == 1
        assert len(contents(parts.store.get(failing))) == 2, "it can still be read"


@pytest.mark.requirement("CLN-4")
def test_a_service_that_closes_stops_its_rounds(tmp_path: Path) -> None:
    with standing(tmp_path, by_itself=True) as scene:
        parts = scene.parts
        closing = scene.threads.run(parts.cleaner.close)
        wait_until(parts.cleaner._stop.is_set, "it is told to stop")
        scene.gate.go.set()
        closing.result(PATIENCE_SECONDS)
        assert scene.gate.chunks == 0
        assert parts.store.cleaner_point(ORDERS) is None
    with opened([str(tmp_path / "one")]) as parts:
        parts.clean_all()
        assert len(contents(parts.log())) == 5


@pytest.mark.requirement("CLN-4")
@pytest.mark.parametrize("by_itself", [False, True], ids=["a caller's", "the cleaner's own"])
def test_a_store_that_closes_waits_for_its_rounds(tmp_path: Path, by_itself: bool) -> None:
    with standing(tmp_path, by_itself=by_itself) as scene:
        parts = scene.parts
        scene.stopped(parts.store.close)
        assert scene.gate.chunks == 0
        assert parts.cleaner.run_once("late") is False
        with opened([str(tmp_path / "one")]) as again:
            [entry] = read_history(LocalFileSystem(), again.log().path)
            assert entry.result == "aborted"
            assert again.clean_all() == 1
            assert len(contents(again.log())) == 5


@pytest.mark.requirement("CLN-9")
def test_the_history_is_written_while_nobody_can_delete_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    with opened([str(tmp_path)]) as parts:

        def watched(*arguments: object) -> None:
            held.append(parts.manager.state_of(ORDERS).is_worked_on)

        monkeypatch.setattr(cleaner_module, "append_history", watched)
        put(parts.log(), ("a", "1"), ("a", "2"))
        parts.log().roll()
        assert parts.clean_all() == 1
    assert held == [True]


@pytest.mark.requirement("CLN-4", "CLN-7")
def test_no_note_is_written_while_somebody_has_the_partition_for_himself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a partition that is being deleted it would make the directory again."""
    written = []
    with Threads() as threads, opened([str(tmp_path)]) as parts:
        for key in (ORDERS, OTHER):
            parts.log(key)
        is_exclusive = threading.Event()

        def watched(_: object, path: str, note: object) -> None:
            written.append((Path(path).name, is_exclusive.is_set()))

        monkeypatch.setattr(memory_module, "write_note", watched)
        with parts.manager.exclusively(ORDERS):
            is_exclusive.set()
            waiting = threads.run(parts.manager.failed, ORDERS, ValueError("for a test"))
            parts.manager.failed(OTHER, ValueError("of another, which waits for nobody"))
            wait_until(waiting.running, "its thread runs")
            time.sleep(0.02)  # with more of it a wrong order would only be seen more often
            is_exclusive.clear()
        waiting.result(PATIENCE_SECONDS)
    assert sorted(written) == [("orders-0", False), ("other-0", True)]


@pytest.mark.requirement("CLN-9")
def test_whoever_asked_is_answered_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened([str(tmp_path)]) as parts:
        put(parts.log(), ("a", "1"), ("a", "2"))
        request = parts.manager.ask(Request(ORDERS))
        assert parts.manager.ask(Request(ORDERS)) is request
        monkeypatch.setattr(parts.cleaner, "_sweep", lambda _: 1 / 0)
        monkeypatch.setattr(cleaner_module, "clean_log", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            parts.cleaner.run_once("test")
        assert request.done.is_set()
        assert isinstance(request.error, ZeroDivisionError)
        assert parts.manager.state_of(ORDERS) == NONE
        monkeypatch.undo()
        assert parts.cleaner.activities() == []
        second = parts.manager.ask(Request(ORDERS))
        assert not parts.manager.withdraw(request), "that is another one"
        assert parts.manager.withdraw(second)
        assert second.done.is_set()
        assert isinstance(second.error, RoundAbortedError)


@pytest.mark.requirement("CLN-5", "CLN-4")
def test_no_two_threads_in_a_partition(
    tmp_path: Path, hasty_disk: None, count_cases: Callable[[str, int], None]
) -> None:
    gate, rng = Gate(), Random(5)
    gate.go.set()
    keys = [TopicPartition("many", number) for number in range(10)]
    settings = CleanerSettings(threads=3, dedupe_buffer_bytes=3 << 16, backoff_ms=1)
    stop = threading.Event()
    with opened([str(tmp_path)], engine_of=gate.engine_of, settings=settings) as parts:
        store, manager = parts.store, parts.manager
        logs = {key: parts.log(key) for key in keys}
        sent: dict[TopicPartition, dict[str, str | None]] = {key: {} for key in keys}
        parts.topics["many"] = replace(COMPACTED, min_dirty_ratio=0.0)

        def disturb() -> int:
            own, count = Random(6), 0
            while not stop.is_set():
                key = own.choice(keys)
                match own.randrange(4):
                    case 0:
                        manager.abort(key)
                    case 1:
                        with manager.exclusively(key):
                            assert not manager.state_of(key).is_worked_on
                    case 2:
                        assert manager.pause(key)
                        assert manager.resume(key)
                    case _:
                        store.run_retention()
                count += 1
                stop.wait(0.002)
            return count

        with Threads() as threads:
            disturbing = threads.run(disturb)
            try:
                parts.cleaner.start()
                for number in range(400):
                    key = rng.choice(keys)
                    letter = rng.choice("abcdef")
                    put(logs[key], (letter, f"{number}"))
                    sent[key][letter] = f"{number}"
                    if number % 3 == 0:
                        logs[key].roll()
                for log in logs.values():
                    log.roll()
                parts.cleaner.wake()

                def is_clean() -> bool:
                    return all(
                        store.cleaner_point(key) == log.log_end_offset for key, log in logs.items()
                    )

                wait_until(is_clean, "all is cleaned")
            finally:
                stop.set()
            assert disturbing.result(PATIENCE_SECONDS) > 0
            assert parts.cleaner.dead_threads == 0
        parts.cleaner.close()
        assert set(gate.worst.values()) == {1}
        assert not manager._states.held, "somebody is still kept away"
        for key, log in logs.items():
            assert {name: value for _, name, value in contents(log)} == sent[key]
        count_cases("rounds beside disturbers", sum(parts.cleaner.stats.runs.values()))


@pytest.mark.requirement("CLN-1", "CFG-2")
def test_a_cleaner_that_was_disabled_starts_when_it_is_enabled(tmp_path: Path) -> None:
    off, on = CleanerSettings(enable=False), CleanerSettings(threads=2)
    with opened([str(tmp_path)], settings=off) as parts:
        parts.cleaner.configure(on)
        assert not parts.cleaner.is_running, "nobody has started it yet"
        parts.cleaner.configure(off)
        parts.cleaner.start()
        for settings in (on, off, on):
            parts.cleaner.configure(settings)
            assert parts.cleaner.thread_count == (2 if settings.enable else 0)
        assert parts.cleaner.dead_threads == 0


# -- retention beside the cleaner (CLN-6) ----------------------------------------------------------


def below_start(parts: Parts, key: TopicPartition = ORDERS) -> int:
    """Segments that lie wholly below the log start."""
    log = parts.store.get(key)
    return sum(base <= log.log_start_offset for base in log.segments.bases[1:])


@pytest.mark.requirement("CLN-6", "RET-5")
def test_retention_passes_over_what_is_worked_on_and_comes_back(tmp_path: Path) -> None:
    with standing(tmp_path) as scene:
        parts = scene.parts
        other = parts.log(OTHER)
        for _ in range(2):
            put(other, ("a", "1"))
            other.roll()
        for key, offset in ((ORDERS, 4), (OTHER, 1)):
            parts.store.delete_records(key, offset)
            assert below_start(parts, key) > 0
        assert list(parts.store.run_retention()) == [OTHER]
        assert below_start(parts) == 2
        assert below_start(parts, OTHER) == 0
        parts.store.build_digests()  # passes over it, too, and does not wait
        scene.gate.go.set()
        wait_until(lambda: parts.manager.state_of(ORDERS) == NONE, "the round has ended")
        wait_until(lambda: below_start(parts) == 0, "its thread sees to its retention")


@pytest.mark.requirement("CLN-6", "RET-5", "CLN-7")
@pytest.mark.parametrize("kept_away", ["paused", "quarantined", "disabled"])
def test_what_is_not_cleaned_still_loses_what_lies_below_its_start(
    kept_away: str, tmp_path: Path
) -> None:
    settings = CleanerSettings(enable=kept_away != "disabled")
    with opened([str(tmp_path)], log_settings=DELETING, settings=settings) as parts:
        log = parts.log()
        for number in range(6):
            put(log, ("a", f"{number}"))
            log.roll()
        if kept_away == "paused":
            parts.manager.pause(ORDERS)
        elif kept_away == "quarantined":
            parts.manager.failed(ORDERS, ValueError("for a test"))
        parts.cleaner.start()
        parts.cleaner.close()
        parts.store.delete_records(ORDERS, 2)
        parts.clock.sleep_ms(300_000)
        parts.store.run_due()
        assert below_start(parts) == 0
        if kept_away != "disabled":
            parts.manager.failed(ORDERS, ValueError("for a test"))
            parts.store.delete_records(ORDERS, 4)
            parts.cleaner._stop.clear()
            assert parts.cleaner.run_once("test") is False
            assert below_start(parts) == 0, "a loop of the cleaner does it, too"
        assert parts.store.cleaner_point(ORDERS) is None
