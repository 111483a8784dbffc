"""`compact`: what Kafka would have made, where it goes, and what failures leave behind."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog.admin.report import Mode
from stratalog.base.errors import CorruptionError, LogChangedError, StorageFullError, UsageError
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.log import swap
from stratalog.segment.names import FileKind
from tests.admin.helpers import (
    HOUR_MS,
    NOW_MS,
    copy_of,
    local_engine,
    records,
    run,
    settings_of,
    tree,
    write_log,
)
from tests.naive.records import parse_log
from tests.oracle import Round, compare_partitions, fold, golden_rounds, index_problems, rounds

CHECKPOINT = "cleaner-offset-checkpoint"


def entries(path: Path) -> str:
    """A checkpoint's text without the blanks at its end, which hold a checksum."""
    return path.read_text().rstrip() + "\n"


# ---------------------------------------------------------------- what comes of it


def _without_history(root: Path) -> dict[str, tuple[str, int]]:
    """The history says how long a run took."""
    return {name: item for name, item in tree(root).items() if not name.endswith("cleaner-history")}


@pytest.mark.requirement("CMP-1", "CMP-11", "CMP-12", "LOG-3")
@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(kafka, id=kafka.name, marks=[] if place % 4 == 0 else [pytest.mark.slow])
        for place, kafka in enumerate(kafka for kafka in rounds() if kafka.cleaned)
    ],
)
def test_out_makes_what_kafka_made(kafka: Round, tmp_path: Path) -> None:
    before = tree(kafka.before_dir)
    report = run(
        [kafka.before_dir],
        Mode.OUT,
        out=tmp_path / "out",
        keep_active=True,
        given=settings_of(kafka),
        now_ms=kafka.now_ms,
    )
    assert compare_partitions(kafka.after, tmp_path / "out" / kafka.partition, kafka.before) == []
    assert index_problems(tmp_path / "out" / kafka.partition) == []
    assert tree(kafka.before_dir) == before
    (found,) = report.partitions
    assert found.first_dirty == kafka.first_dirty
    assert found.first_uncleanable == kafka.first_uncleanable
    assert found.end_offset == kafka.end_offset
    assert found.map_is_full == (kafka.end_offset < kafka.first_uncleanable)
    # Kafka does not count what it drops with its whole batch.
    assert found.counts.records_before >= kafka.stats["messages_read"]
    assert found.counts.records_before - found.counts.dropped.total == found.counts.records_after
    assert found.counts.records_after == kafka.stats["messages_written"]
    assert found.counts.dropped.no_key == kafka.stats["invalid_messages_read"]


@pytest.mark.requirement("CMP-2")
@pytest.mark.parametrize("kafka", golden_rounds()[::5], ids=lambda kafka: kafka.name)
def test_in_place_equals_out_and_a_dry_run_foretells_both(kafka: Round, tmp_path: Path) -> None:
    copy = copy_of(kafka.before_dir, tmp_path / "copy")
    given, now_ms = settings_of(kafka), kafka.now_ms
    before = tree(copy)
    dry = run([copy], Mode.DRY_RUN, given=given, now_ms=now_ms)
    assert tree(copy) == before
    assert not (copy / ".lock").exists()
    out = run([copy], Mode.OUT, out=tmp_path / "out", given=given, now_ms=now_ms)
    assert tree(copy) == before
    in_place = run([copy], Mode.IN_PLACE, given=given, now_ms=now_ms)
    assert _without_history(copy) == _without_history(tmp_path / "out")
    for report in (out, in_place):
        assert report.totals == dry.totals
        assert report.partitions[0].end_offset == dry.partitions[0].end_offset
        assert report.partitions[0].log_bytes_after == dry.partitions[0].log_bytes_after
    size_bytes = sum(path.stat().st_size for path in copy.rglob("*.log"))
    segments = len(list(copy.rglob("*.log")))
    assert dry.partitions[0].log_bytes_after == size_bytes
    assert dry.partitions[0].log_segments_after == segments


@pytest.mark.requirement("CMP-2")
def test_a_non_empty_active_segment_is_rolled_first(tmp_path: Path) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("ab")], [records("ac")]])
    dry = run([partition], Mode.DRY_RUN)
    report = run([partition], Mode.IN_PLACE)
    assert dry.partitions == report.partitions
    (found,) = report.partitions
    assert (found.rolled, found.log_segments_before, found.log_segments_after) == (True, 2, 2)
    assert (found.counts.segments_before, found.counts.segments_after) == (2, 1)
    assert (found.first_uncleanable, found.end_offset) == (4, 4)
    assert sorted(path.name for path in partition.glob("*.log")) == [
        f"{0:020d}.log",
        f"{4:020d}.log",
    ]
    assert (partition / f"{4:020d}.snapshot").exists()
    assert entries(tmp_path / CHECKPOINT) == "0\n1\norders 0 4\n"
    assert index_problems(partition) == []


@pytest.mark.requirement("CMP-2")
def test_keep_active_leaves_it(tmp_path: Path) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("ab")], [records("ac")]])
    active = (partition / f"{2:020d}.log").read_bytes()
    (found,) = run([partition], Mode.IN_PLACE, keep_active=True).partitions
    assert not found.rolled
    assert found.end_offset == 2
    assert (partition / f"{2:020d}.log").read_bytes() == active


def test_an_active_segment_that_the_round_does_not_reach_is_not_rolled(tmp_path: Path) -> None:
    old, young = records("aa", at_ms=NOW_MS - HOUR_MS), records("aa", at_ms=NOW_MS)
    partition = write_log(tmp_path / "orders-0", [[old], [young]])
    report = run([partition], Mode.IN_PLACE, given={"min.compaction.lag.ms": "1000"})
    (found,) = report.partitions
    assert (found.rolled, found.end_offset) == (False, 2)
    assert len(list(partition.glob("*.log"))) == 2


@pytest.mark.requirement("CMP-18", "CMP-19")
def test_many_partitions_in_one_run_and_nothing_to_do_the_second_time(tmp_path: Path) -> None:
    log_dir = tmp_path / "data"
    for number in range(3):
        write_log(log_dir / f"orders-{number}", [[records("abab" * (number + 1))]])
    write_log(log_dir / "other-0", [[records("xx")]])
    folds = {path.name: fold(path) for path in log_dir.iterdir()}
    jobs: list[int] = []

    class Counting:
        def clean(
            self, jobs_: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
        ) -> list[CleanedPartition]:
            jobs.append(len(jobs_))
            return local_engine().clean(jobs_, writes=writes, on_progress=on_progress)

    (log_dir / CHECKPOINT).write_text("0\n1\nelsewhere 5 77\n")
    targets = [log_dir / "orders-0", log_dir / "orders-1", log_dir / "orders-2"]
    report = run(targets, Mode.IN_PLACE, engine=Counting)
    assert jobs == [3]
    assert [found.partition for found in report.partitions] == ["orders-0", "orders-1", "orders-2"]
    assert report.totals.records_after == 6
    assert entries(log_dir / CHECKPOINT) == (
        "0\n4\nelsewhere 5 77\norders 0 4\norders 1 8\norders 2 12\n"
    )
    assert {path.name: fold(path) for path in log_dir.iterdir() if path.is_dir()} == folds
    before = tree(log_dir)
    again = run(targets, Mode.IN_PLACE, engine=Counting)
    assert jobs == [3]
    assert [found.skipped for found in again.partitions] == [
        f"everything up to its end, offset {end}, was cleaned before" for end in (4, 8, 12)
    ]
    assert tree(log_dir) == before


@pytest.mark.requirement("CMP-3")
def test_an_invalid_checkpoint_is_reset_even_if_nothing_is_cleaned(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [[]])
    (tmp_path / CHECKPOINT).write_text("0\n1\norders 0 99\n")
    dry = run([tmp_path], Mode.DRY_RUN)
    assert dry.partitions[0].skipped == "the log is empty"
    assert "99" in (tmp_path / CHECKPOINT).read_text()
    run([tmp_path], Mode.IN_PLACE)
    assert entries(tmp_path / CHECKPOINT) == "0\n1\norders 0 0\n"


def test_why_nothing_is_cleaned(tmp_path: Path) -> None:
    def why(name: str, **options: object) -> str | None:
        (found,) = run([tmp_path / name], Mode.DRY_RUN, **options).partitions  # type: ignore[arg-type]
        return found.skipped

    write_log(tmp_path / "one-0", [[records("aa")]])
    assert why("one-0", keep_active=True) == (
        "all of it lies in the active segment, which stays as it is"
    )
    assert why("one-0", given={"min.compaction.lag.ms": "9"}) == (
        "the segment at 0 has records younger than min.compaction.lag.ms = 9"
    )
    write_log(tmp_path / "two-0", [[records("aa")], [records("ab")]])
    (tmp_path / CHECKPOINT).write_text("0\n1\ntwo 0 2\n")
    assert why("two-0", keep_active=True) == (
        "everything up to offset 2 was cleaned before, and the rest lies in the active segment, "
        "which stays as it is"
    )
    (tmp_path / CHECKPOINT).write_text("0\n1\ntwo 0 4\n")
    assert why("two-0") == "everything up to its end, offset 4, was cleaned before"


def test_why_nothing_is_cleaned_before_an_open_transaction(tmp_path: Path) -> None:
    kafka = next(k for k in golden_rounds() if k.name.startswith("transactions-none/1"))
    copy = copy_of(kafka.after_dir, tmp_path / "copy")
    (found,) = run([copy], Mode.DRY_RUN, given=settings_of(kafka), now_ms=kafka.now_ms).partitions
    assert found.skipped is not None
    assert "an open transaction" in found.skipped


@pytest.mark.requirement("CMP-5")
def test_a_full_map_is_told_and_the_next_run_goes_on(tmp_path: Path) -> None:
    partition = write_log(tmp_path / "orders-0", [[records([f"key-{n}"]) for n in range(20)] * 2])
    expected = fold(partition)
    given = {"log.cleaner.dedupe.buffer.size": "192", "log.cleaner.io.buffer.load.factor": "1"}
    ends = []
    for _ in range(10):
        (found,) = run([partition], Mode.IN_PLACE, given=given).partitions
        ends.append(found.end_offset)
        if not found.map_is_full:
            break
    assert ends == [8, 16, 24, 32, 40]
    assert fold(partition) == expected


# ---------------------------------------------------------------- out


def test_out_holds_the_chosen_partitions_and_their_checkpoints(tmp_path: Path) -> None:
    log_dir, out = tmp_path / "data", tmp_path / "out"
    for name in ("orders-0", "orders-1"):
        write_log(log_dir / name, [[records("aab")]])
    (log_dir / "log-start-offset-checkpoint").write_text("0\n2\norders 0 1\norders 1 1\n")
    (log_dir / "recovery-point-offset-checkpoint").write_text("0\n1\norders 1 3\n")
    (log_dir / "replication-offset-checkpoint").write_text("")
    (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    (log_dir / "meta.properties").write_text("version=1\n")
    (log_dir / "orders-1" / "partition.metadata").write_text("version: 0\ntopic_id: x\n")
    (log_dir / "orders-1" / f"{0:020d}.log.local-0.part").write_text("stray")
    run([log_dir / "orders-1"], Mode.OUT, out=out)
    assert {path.name for path in out.iterdir()} == {
        "orders-1",
        ".lock",
        ".kafka_cleanshutdown",
        "meta.properties",
        CHECKPOINT,
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    }
    assert entries(out / CHECKPOINT) == "0\n1\norders 1 3\n"
    assert entries(out / "log-start-offset-checkpoint") == "0\n1\norders 1 1\n"
    assert entries(out / "recovery-point-offset-checkpoint") == "0\n1\norders 1 3\n"
    assert (out / "replication-offset-checkpoint").read_text() == ""
    assert (out / "orders-1" / "partition.metadata").exists()
    assert list(out.rglob("*.part")) == []


def test_out_takes_an_empty_directory_and_nothing_else(tmp_path: Path) -> None:
    log_dir = tmp_path / "data"
    write_log(log_dir / "orders-0", [[records("aab")]])
    write_log(tmp_path / "other" / "orders-0", [[records("aab")]])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    for out, reason in [
        ("full", "is not empty"),
        ("full/x", "is there and is no directory"),
        ("data/out", "which must not change"),
    ]:
        with pytest.raises(UsageError, match=reason):
            run([log_dir], Mode.OUT, out=tmp_path / out)
    with pytest.raises(UsageError, match="cannot go into one directory"):
        run([log_dir, tmp_path / "other"], Mode.OUT, out=tmp_path / "new")
    assert tree(tmp_path) == before
    run([log_dir], Mode.OUT, out=tmp_path / "empty")
    assert fold(tmp_path / "empty" / "orders-0") == fold(log_dir / "orders-0")


def test_partitions_of_several_log_directories_go_into_one(tmp_path: Path) -> None:
    write_log(tmp_path / "disk1" / "a-0", [[records("aab")]])
    write_log(tmp_path / "disk2" / "b-0", [[records("aab")]])
    (tmp_path / "disk1" / "recovery-point-offset-checkpoint").write_text("0\n1\na 0 3\n")
    (tmp_path / "disk2" / "recovery-point-offset-checkpoint").write_text("0\n1\nb 0 2\n")
    (tmp_path / "disk1" / ".kafka_cleanshutdown").touch()
    out = tmp_path / "out"
    run([tmp_path / "disk1", tmp_path / "disk2"], Mode.OUT, out=out)
    assert entries(out / CHECKPOINT) == "0\n2\na 0 3\nb 0 3\n"
    assert entries(out / "recovery-point-offset-checkpoint") == "0\n2\na 0 3\nb 0 2\n"
    assert not (out / ".kafka_cleanshutdown").exists()


# ---------------------------------------------------------------- failures


def _flipped(partition: Path, position: int, bit: int = 0) -> Path:
    path = sorted(partition.glob("*.log"))[0]
    data, times = bytearray(path.read_bytes()), path.stat()
    data[position] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


@pytest.mark.requirement("CMP-16")
@pytest.mark.parametrize("mode", list(Mode))
def test_damage_changes_nothing(tmp_path: Path, mode: Mode) -> None:
    log_dir = tmp_path / "data"
    write_log(log_dir / "orders-0", [[records("aab"), records("ab")]], rolls_last=True)
    write_log(log_dir / "orders-1", [[records("aab"), records("ab")]])
    second_batch = int.from_bytes((log_dir / "orders-0" / f"{0:020d}.log").read_bytes()[8:12]) + 12
    path = _flipped(log_dir / "orders-0", second_batch + 70)
    before = tree(tmp_path)
    with pytest.raises(CorruptionError) as damage:
        run([log_dir], mode, out=tmp_path / "out" if mode is Mode.OUT else None)
    assert (damage.value.file, damage.value.position) == (str(path), second_batch)
    assert tree(tmp_path) == before


@pytest.mark.requirement("CMP-16", "RCV-1")
def test_every_flip_and_cut_that_can_be_seen_is_refused(tmp_path: Path) -> None:
    log_dir = tmp_path / "data"
    partition = write_log(
        log_dir / "orders-0", [[records("aab"), records("b"), records("ca")]], rolls_last=True
    )
    path = partition / f"{0:020d}.log"
    original = path.read_bytes()
    starts = [0]
    while starts[-1] < len(original):
        size = int.from_bytes(original[starts[-1] + 8 : starts[-1] + 12]) + 12
        starts.append(starts[-1] + size)
    # The leader epoch lies outside the checksum, and any number may stand there.
    unseen = {start + at for start in starts for at in range(12, 16)}
    damaged = [
        bytes([*original[:at], original[at] ^ (1 << (at % 8)), *original[at + 1 :]])
        for at in range(len(original))
        if at not in unseen
    ]
    damaged += [original[:size] for size in range(1, len(original)) if size not in starts]
    before = tree(tmp_path)
    del before[f"data/orders-0/{path.name}"]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CorruptionError) as error:
            run([log_dir], Mode.IN_PLACE)
        assert error.value.file == str(path)
        assert path.read_bytes() == content
        after = tree(tmp_path)
        del after[f"data/orders-0/{path.name}"]
        assert after == before


class Failing:
    """An engine that leaves `.part` files, then fails, as a full disk or Ctrl-C would have it."""

    def __init__(self, error: BaseException):
        self._error = error

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        local_engine().clean(jobs, writes=writes, on_progress=on_progress)
        raise self._error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageFullError("full"), MemoryError()])
@pytest.mark.parametrize("mode", [Mode.IN_PLACE, Mode.OUT])
def test_a_failing_engine_leaves_nothing(tmp_path: Path, mode: Mode, error: BaseException) -> None:
    log_dir = tmp_path / "data"
    write_log(log_dir / "orders-0", [[records("aab"), records("ab")]])
    before = tree(tmp_path)
    out = tmp_path / "out" if mode is Mode.OUT else None
    with pytest.raises(type(error)):
        run([log_dir], mode, out=out, engine=lambda: Failing(error))
    assert tree(tmp_path) == before


def test_an_empty_out_directory_that_was_there_stays_after_a_failure(tmp_path: Path) -> None:
    write_log(tmp_path / "data" / "orders-0", [[records("aab")]])
    (tmp_path / "out").mkdir()
    before = tree(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(
            [tmp_path / "data"],
            Mode.OUT,
            out=tmp_path / "out",
            engine=lambda: Failing(KeyboardInterrupt()),
        )
    assert tree(tmp_path) == before
    assert list((tmp_path / "out").iterdir()) == []


def test_progress_can_stop_the_threads(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [[records("aab")]])
    before = tree(tmp_path)

    def stop(progress: Progress) -> None:
        if progress.phase == "rewrite" and progress.done_bytes > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([tmp_path], Mode.IN_PLACE, on_progress=stop)
    assert tree(tmp_path) == before


@pytest.mark.requirement("CMP-12")
@pytest.mark.parametrize("stops_at", range(1, 30))
def test_an_interrupt_while_swapping_leaves_old_or_new(
    tmp_path: Path, stops_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = tmp_path / "data"
    partition = write_log(log_dir / "orders-0", [[records("aab")], [records("ab")], [records("b")]])
    expected = fold(partition)
    steps = 0
    apply = swap.apply

    def interrupted(operations: list[swap.Operation], *rest: object) -> None:
        nonlocal steps
        for operation in operations:
            steps += 1
            if steps == stops_at:
                raise KeyboardInterrupt
            apply([operation], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(swap, "apply", interrupted)
    try:
        run([log_dir], Mode.IN_PLACE)
    except KeyboardInterrupt:
        pass
    else:
        assert steps < stops_at
    assert fold(partition) == expected
    left = [p.name for p in partition.rglob("*") if p.suffix in (".part", ".cleaned", ".swap")]
    assert left == []
    assert list(partition.rglob("swap-intent")) == []
    monkeypatch.undo()
    run([log_dir], Mode.IN_PLACE)
    assert fold(partition) == expected
    assert index_problems(partition) == []


@pytest.mark.requirement("RCV-5")
def test_an_unfinished_swap_is_finished_first(tmp_path: Path) -> None:
    log_dir = tmp_path / "data"
    partition = write_log(log_dir / "orders-0", [[records("aab")], [records("ab")], []])
    expected = fold(partition)
    done = copy_of(log_dir, tmp_path / "done")
    run([done], Mode.IN_PLACE, keep_active=True)
    new = done / "orders-0" / f"{0:020d}"
    for kind in ("log", "index", "timeindex"):
        shutil.copy2(f"{new}.{kind}", partition / f"{0:020d}.{kind}.cleaned")
    kinds = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    intent = swap.SwapIntent((0, 3), (swap.NewSegment(0, kinds),))
    (partition / ".stratalog" / "swap-intent").write_bytes(intent.encode())
    before = tree(log_dir)
    with pytest.raises(LogChangedError, match="segments are being replaced"):
        run([log_dir], Mode.DRY_RUN)
    assert tree(log_dir) == before
    run([log_dir], Mode.OUT, out=tmp_path / "out")
    assert tree(log_dir) == before
    run([log_dir], Mode.IN_PLACE)
    for directory in (partition, tmp_path / "out" / "orders-0"):
        assert fold(directory) == expected
        assert sorted(path.name for path in directory.glob("*.log*")) == [
            f"{0:020d}.log",
            f"{5:020d}.log",
        ]


@pytest.mark.requirement("RCV-5")
def test_strays_of_dead_attempts_go_and_kafkas_swaps_are_finished(
    tmp_path: Path, golden_dir: Path
) -> None:
    copy = copy_of(golden_dir / "crash-states" / "2a-cleaned-left", tmp_path / "cleaned")
    assert list(copy.rglob("*.cleaned"))
    expected = fold(copy / "golden-0")
    run([copy], Mode.IN_PLACE)
    assert list(copy.rglob("*.cleaned")) == []
    assert fold(copy / "golden-0") == expected
    copy = copy_of(golden_dir / "crash-states" / "3a-swap-all-old-present", tmp_path / "swap")
    assert list(copy.rglob("*.swap"))
    run([copy], Mode.IN_PLACE)
    assert list(copy.rglob("*.swap")) == []
    assert fold(copy / "golden-0") == expected
    assert index_problems(copy / "golden-0") == []


@pytest.mark.requirement("RCV-1")
@pytest.mark.parametrize("mode", list(Mode))
def test_a_torn_end_is_a_case_for_repair(tmp_path: Path, mode: Mode) -> None:
    partition = write_log(tmp_path / "data" / "orders-0", [[records("aab")], [records("ab")]])
    path = partition / f"{3:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    before = tree(tmp_path)
    advice = f"`stratalog log repair {partition} --apply` puts it in order"
    out = tmp_path / "out" if mode is Mode.OUT else None
    with pytest.raises(CorruptionError, match=re.escape(advice)) as refused:
        run([partition], mode, out=out)
    assert refused.value.file == str(path)
    assert tree(tmp_path) == before
    # Closed in order, so no crash did it.
    (tmp_path / "data" / ".kafka_cleanshutdown").touch()
    with pytest.raises(CorruptionError) as refused:
        run([partition], mode, out=out)
    assert "repair" not in str(refused.value)


@pytest.mark.requirement("CMP-8")
def test_a_retention_beyond_all_time_keeps_tombstones(golden_dir: Path, tmp_path: Path) -> None:
    """now + delete.retention.ms must not wrap: the next round would drop them all."""
    copy = copy_of(golden_dir / "tombstones-none" / "2-more-dirty", tmp_path / "log")
    for hour in (0, 1):
        given = {"delete.retention.ms": str((1 << 63) - 1)}
        report = run([copy], Mode.IN_PLACE, given=given, now_ms=NOW_MS + hour * HOUR_MS)
        assert report.totals.dropped.tombstone_expired == 0
    segments = parse_log((copy / "golden-0" / f"{0:020d}.log").read_bytes())
    horizons = [batch.horizon_ms for batch in segments]
    assert all(horizon is None or horizon > 0 for horizon in horizons)


def test_a_policy_without_compact_and_wrong_modes_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [[records("aab")]])
    with pytest.raises(UsageError, match="without compact"):
        run([tmp_path], Mode.IN_PLACE, given={"cleanup.policy": "delete"})
    with pytest.raises(UsageError, match="mode out"):
        run([tmp_path], Mode.OUT)
    with pytest.raises(UsageError, match="mode out"):
        run([tmp_path], Mode.DRY_RUN, out=tmp_path / "out")


def test_an_engine_is_started_only_for_work(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [[]])

    def start() -> Engine:
        raise AssertionError

    report = run([tmp_path], Mode.DRY_RUN, engine=start)
    assert report.totals.records_before == 0
    assert report.megabytes_per_second == 0
