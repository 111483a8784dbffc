"""When is what on the disk (LOG-7), and what do readers see meanwhile (LOG-12). Real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogOfflineError, StorageIOError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from tests.log.helpers import NOW
from tests.log.stores import A, B, after_cut, changes, failing, keys, open_store, put
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RecordingDisk:
    """A disk that remembers the order of what happens to `.log` files. `events`: ("wrote", first
    offset), ("began", n) and ("synced", n) of the nth fsync. `before_fsync` may wait."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.events: list[tuple[str, int]] = []
        self.before_fsync: Callable[[], None] = lambda: None
        self.written = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._fsyncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    def open(self, path: str, mode: Any) -> Any:
        file = self.disk.open(path, mode)
        return _RecordingFile(self, file) if path.endswith(".log") else file

    def note(self, kind: str, number: int) -> None:
        with self._lock:
            self.events.append((kind, number))

    def next_fsync(self) -> int:
        with self._lock:
            self._fsyncs += 1
            return self._fsyncs

    @property
    def fsyncs(self) -> int:
        return self._fsyncs


class _RecordingFile:
    def __init__(self, owner: RecordingDisk, file: Any):
        self._owner = owner
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._file.pwrite(data, position)
        self._owner.note("wrote", int.from_bytes(memoryview(data)[:8], "big"))
        self._owner.written.release()

    def fsync(self) -> None:
        number = self._owner.next_fsync()
        self._owner.note("began", number)
        self._owner.before_fsync()
        self._file.fsync()
        self._owner.note("synced", number)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """`work(n)` in as many threads at once; the first error is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised by whoever started the thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def assert_each_was_synced_before_it_returned(disk: RecordingDisk, count: int) -> None:
    place = {event: slot for slot, event in enumerate(disk.events)}
    began = [(place["began", n], place["synced", n]) for n in range(1, disk.fsyncs + 1)]
    returned = [number for kind, number in disk.events if kind == "returned"]
    assert sorted(returned) == list(range(count))
    for offset in returned:
        wrote, back = place["wrote", offset], place["returned", offset]
        assert any(wrote < start and end < back for start, end in began), offset


# -- group commit ----------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-7")
def test_appends_that_wait_at_the_same_time_share_an_fsync() -> None:
    disk, count = RecordingDisk(), 24
    store = open_store(disk, flush_messages=1)  # type: ignore[arg-type]
    log = store.create(A)

    def wait_for_all_writes() -> None:
        # The first fsync ends only when all have written: so they all wait while it runs.
        disk.before_fsync = lambda: None
        for _ in range(count):
            assert disk.written.acquire(timeout=60)

    disk.before_fsync = wait_for_all_writes

    def append(_: int) -> None:
        result = log.append_records([NewRecord(b"k", b"v", NOW)])
        disk.note("returned", result.first_offset)

    in_threads(count, append)
    # One more if the last one's write was not published yet when the second began.
    assert disk.fsyncs <= 3
    assert_each_was_synced_before_it_returned(disk, count)
    assert log.recovery_point == count


@pytest.mark.requirement("LOG-7")
@pytest.mark.parametrize("threads", [2, 8])
def test_each_append_returns_after_an_fsync_that_began_after_its_write(
    threads: int, count_cases: Callable[[str, int], None]
) -> None:
    disk, each = RecordingDisk(), 150
    # Small segments: what is rolled has to be synced, too.
    store = open_store(disk, flush_messages=1, segment_bytes=1_000)  # type: ignore[arg-type]
    log = store.create(A)

    def append(_: int) -> None:
        for _ in range(each):
            result = log.append_records([NewRecord(b"k", b"v", NOW)])
            disk.note("returned", result.first_offset)

    in_threads(threads, append)
    assert_each_was_synced_before_it_returned(disk, threads * each)
    with open_store(after_cut(disk.disk), segment_bytes=1_000) as again:
        assert again.get(A).log_end_offset == threads * each
        assert len(keys(again.get(A))) == threads * each
    count_cases("appends that waited for their fsync", threads * each)


@pytest.mark.requirement("LOG-7")
@pytest.mark.parametrize("flush_messages", [1, 2, 5])
def test_at_most_so_many_messages_are_lost(flush_messages: int) -> None:
    disk = SimDisk()
    store = open_store(disk, flush_messages=flush_messages, segment_bytes=400)
    log = store.create(A)
    for number in range(23):
        put(log, str(number))
        with open_store(after_cut(disk), segment_bytes=400) as again:
            assert len(keys(again.get(A))) > number + 1 - flush_messages


@pytest.mark.requirement("LOG-7")
def test_a_duplicate_is_acknowledged_only_when_the_first_one_is_durable() -> None:
    disk = SimDisk()
    store = open_store(disk, flush_messages=1)
    log = store.create(A)
    batch = _idempotent(0)
    disk.hook = failing(lambda call: call.kind == "fsync", StorageIOError("once"))
    with pytest.raises(StorageIOError):
        log.append(batch)
    disk.hook = None
    with pytest.raises(LogOfflineError):
        log.append(batch)


def _idempotent(sequence: int) -> bytes:
    return build_batch(
        [NewRecord(b"k", b"v", NOW)], producer_id=7, producer_epoch=0, base_sequence=sequence
    )


# -- an fsync fails --------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-7", "CLN-7")
def test_after_a_failed_fsync_nothing_more_is_written_and_nothing_synced_again() -> None:
    disk = SimDisk()
    store = open_store(disk, flush_messages=1)
    log = store.create(A)
    put(log, "a")
    failures: list[Call] = []

    def fail_once(call: Call) -> None:
        if call.kind == "fsync" and call.path.endswith(".log") and not failures:
            failures.append(call)
            raise StorageIOError("input/output error")

    disk.hook = fail_once
    with pytest.raises(StorageIOError, match="input/output error"):
        put(log, "b")
    start = disk.operations
    assert "input/output error" in (log.offline or "")
    for act in (lambda: put(log, "c"), log.flush, log.roll, lambda: log.truncate_to(0)):
        with pytest.raises(LogOfflineError, match="until it is opened again"):
            act()
    assert list(store.offline_dirs) == ["/data"]
    assert keys(log)[:1] == ["a"], "it still can be read"
    store.checkpoint_points()
    store.flush()
    store.run_due()
    store.close()
    assert changes(disk, start) == [], "nothing is written, nothing is synced again"

    with open_store(disk, flush_messages=1) as again:
        assert again.get(A).recovery is not None
        assert keys(again.get(A))[0] == "a"
        put(again.get(A), "d")
        assert keys(again.get(A))[-1] == "d"
    lost = after_cut(disk)
    with open_store(lost) as again:
        assert keys(again.get(A))[0] == "a"


@pytest.mark.requirement("LOG-7")
def test_all_that_wait_for_a_failed_fsync_are_told() -> None:
    disk, count = RecordingDisk(), 8
    store = open_store(disk, flush_messages=1)  # type: ignore[arg-type]
    log = store.create(A)

    def fail_when_all_have_written() -> None:
        for _ in range(count):
            assert disk.written.acquire(timeout=60)
        raise StorageIOError("input/output error")

    disk.before_fsync = fail_when_all_have_written
    told: list[type[BaseException]] = []

    def append(_: int) -> None:
        try:
            log.append_records([NewRecord(b"k", b"v", NOW)])
        except (StorageIOError, LogOfflineError) as error:
            told.append(type(error))

    in_threads(count, append)
    assert sorted(kind.__name__ for kind in told) == (
        ["LogOfflineError"] * (count - 1) + ["StorageIOError"]
    )
    assert disk.fsyncs == 1


# -- readers go on ---------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-12")
def test_readers_keep_their_view_while_everything_else_changes(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """One writer, which rolls, deletes, truncates and runs retention; readers that check each view
    they took to its end."""
    store = open_store(
        LocalFileSystem(), [str(tmp_path / "data")], segment_bytes=2_000, file_delete_delay_ms=0
    )
    log = store.create(A)
    put(log, *map(str, range(50)))
    done = threading.Event()
    views = [0] * 3
    truth: dict[int, str] = {offset: str(offset) for offset in range(50)}
    truth_lock = threading.Lock()

    def read(number: int) -> None:
        while not done.is_set() or views[number] == 0:
            with truth_lock:
                view, expected = log.view, dict(truth)
            start, end = view.log_start_offset, view.log_end_offset
            for _ in range(2):
                found = {r.offset: (r.key or b"").decode() for r in view.read_records(start)}
                assert found == {offset: expected[offset] for offset in range(start, end)}
            views[number] += 1

    def write() -> None:
        for turn in range(60):
            with truth_lock:
                end = log.log_end_offset
                kept = end - turn % 7 if turn % 5 == 4 else end
                store.truncate(A, max(kept, log.log_start_offset))
                for offset in range(log.log_end_offset, log.log_end_offset + 12):
                    truth[offset] = f"{turn}:{offset}"
                    put(log, truth[offset])
            store.delete_records(A, max(log.log_start_offset, log.log_end_offset - 60))
            store.run_retention()
            store.unlink_due()
        done.set()

    def work(number: int) -> None:
        try:
            write() if number == 3 else read(number)
        finally:
            done.set()

    in_threads(4, work)
    last = log.view
    store.delete(A)
    assert len(list(last.read_records(last.log_start_offset))) > 0
    count_cases("views read to their end during changes", sum(views))


@pytest.mark.requirement("LOG-12")
def test_lookups_in_a_view_whose_segments_are_gone() -> None:
    disk = SimDisk()
    store = open_store(disk, segment_bytes=400, index_interval_bytes=1, file_delete_delay_ms=0)
    for key in (A, B):
        for number in range(30):
            put(store.create(key) if number == 0 else store.get(key), f"{number}", timestamp=number)
    views = [store.get(key).view for key in (A, B)]
    store.delete_records(A, 25)
    store.run_retention()
    store.unlink_due()
    put(store.get(A), "new")
    store.delete(B)
    store.unlink_due()
    for view in views:
        for number in range(30):
            found = view.offset_for_timestamp(number)
            assert found is not None
            assert found.offset == number
            assert next(iter(view.read_batches(number))).header.base_offset == number


@pytest.mark.requirement("LOG-7")
def test_a_log_without_a_store_is_recovered_from_what_was_flushed() -> None:
    disk = SimDisk()
    settings = LogSettings()
    log = PartitionLog.open("/t-0", settings, disk, FixedClock(NOW), create=True)
    put(log, "a", "b")
    point = log.flush()
    put(log, "c")
    image = after_cut(disk)
    again = PartitionLog.open("/t-0", settings, image, FixedClock(NOW), unclean=Unclean(point))
    assert keys(again) == ["a", "b"]
