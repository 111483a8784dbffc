"""Compactions in batches and with partial progress, without Spark: `admin.compaction`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.report import CompactionReport, Mode
from stratalog.admin.steering import pause
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, StorageFullError, UsageError
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.config.settings import resolve
from tests.admin.helpers import DISK, NOW_MS, local_engine, records, tree, write_log

pytestmark = [pytest.mark.requirement("SPK-8"), pytest.mark.usefixtures("hasty_disk")]


class Recorder:
    """The local engine, which remembers what it was given, and fails where it is told to."""

    def __init__(self, fails_at: Callable[[Sequence[str]], BaseException | None] = lambda _: None):
        self.given: list[list[str]] = []
        self._fails_at = fails_at
        self._engine = local_engine()

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        self.given.append([job.name for job in jobs])
        cleaned = self._engine.clean(jobs, writes=writes, on_progress=on_progress)
        failure = self._fails_at(self.given[-1])
        if failure is not None:
            raise failure  # after its `.part` files were written
        return cleaned


def logs(root: Path, sizes: Sequence[int]) -> Path:
    """A partition `orders-N` for each of `sizes`, with that many records of three keys."""
    for number, size in enumerate(sizes):
        write_log(root / f"orders-{number}", [[records("abc" * size)], [records("ab")]])
    return root


def run(
    root: Path,
    engine: Engine,
    mode: Mode = Mode.IN_PLACE,
    on_progress: OnProgress = lambda _: None,
    **wishes: Any,
) -> CompactionReport:
    settings = resolve({}, {"cleanup.policy": ("compact",)})
    options = CompactionOptions(mode, settings, **wishes)
    return compact([str(root)], options, lambda: engine, DISK, FixedClock(NOW_MS), on_progress)


def damage(partition: Path) -> None:
    """Flip a bit inside of the first batch's records."""
    path = min(partition.glob("*.log"))
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(bytes(content))


def bytes_of(root: Path) -> dict[str, Any]:
    return {name: item for name, item in tree(root).items() if "cleaner-history" not in name}


def test_the_biggest_go_first_so_many_at_once_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    sizes = [2, 9, 4, 7, 5]
    one, other = Recorder(), Recorder()
    run(logs(tmp_path / "one", sizes), one, max_concurrent=2)
    run(logs(tmp_path / "other", sizes), other)
    assert one.given == [["orders-1", "orders-3"], ["orders-4", "orders-2"], ["orders-0"]]
    assert other.given == [[f"orders-{number}" for number in range(5)]]
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "other")


@pytest.mark.parametrize(
    ("mode", "at_once"),
    [(Mode.IN_PLACE, None), (Mode.IN_PLACE, 2), (Mode.IN_PLACE, 1), (Mode.DRY_RUN, None)],
)
def test_a_damaged_partition_is_told_and_the_others_go_on(
    mode: Mode, at_once: int | None, tmp_path: Path
) -> None:
    root, whole = logs(tmp_path / "logs", [2, 9, 4, 7]), logs(tmp_path / "whole", [2, 9, 4, 7])
    for name in ("orders-1", "orders-2"):
        damage(root / name)
    before = bytes_of(root)
    report = run(root, local_engine(), mode, max_concurrent=at_once, partial_progress=True)
    run(whole, local_engine(), mode)
    errors = {item.partition: item.error for item in report.partitions}
    assert errors["orders-0"] is None
    assert errors["orders-3"] is None
    for name in ("orders-1", "orders-2"):
        assert f"{root / name}" in (errors[name] or "")
        assert "\n" not in (errors[name] or "")
    dropped = [item.counts.dropped.total > 0 for item in report.partitions]
    assert dropped == [True, False, False, True]
    after = bytes_of(root)
    done = bytes_of(whole)
    for name in ("orders-0", "orders-3"):
        expected = before if mode is Mode.DRY_RUN else done
        assert within(after, name) == within(expected, name)
    for name in ("orders-1", "orders-2"):
        assert within(after, name) == within(before, name)


def within(files: dict[str, Any], name: str) -> dict[str, Any]:
    """Those below a partition, but for the directory of our own state, which tidying makes."""
    return {
        path: item
        for path, item in files.items()
        if path.startswith(f"{name}/") and item[0] != "directory"
    }


def test_all_or_nothing_puts_nothing_in_place_after_a_failure_in_the_last_batch(
    tmp_path: Path,
) -> None:
    root = logs(tmp_path / "logs", [2, 9, 4])
    damage(root / "orders-0")
    before = bytes_of(root)
    engine = Recorder()
    with pytest.raises(CorruptionError, match="orders-0"):
        run(root, engine, max_concurrent=1)
    assert engine.given == [["orders-1"], ["orders-2"], ["orders-0"]]
    assert bytes_of(root) == before


def test_of_a_failure_that_names_no_file_each_partition_is_tried_alone(tmp_path: Path) -> None:
    """A full disk, a lost cluster: nobody knows whose it is."""
    root = logs(tmp_path / "logs", [2, 9, 4])
    engine = Recorder(lambda names: StorageFullError("disk full") if "orders-2" in names else None)
    report = run(root, engine, partial_progress=True)
    assert engine.given[0] == ["orders-0", "orders-1", "orders-2"]
    assert engine.given[1:] == [["orders-0"], ["orders-1"], ["orders-2"]]
    assert [item.error for item in report.partitions] == [None, None, "disk full"]
    assert [item.rewritten.segments_before for item in report.partitions] == [2, 2, 0]
    assert not list(root.rglob("*.part"))


def test_an_error_that_is_not_ours_is_told_by_its_kind_in_one_line(tmp_path: Path) -> None:
    root = logs(tmp_path / "logs", [2])
    engine = Recorder(lambda _: RuntimeError("An error occurred\n\tat org.apache"))
    (item,) = run(root, engine, partial_progress=True).partitions
    assert item.error == "RuntimeError: An error occurred at org.apache"


def test_a_watcher_that_raises_is_no_partitions_failure(tmp_path: Path) -> None:
    root = logs(tmp_path / "logs", [2, 9])
    before = bytes_of(root)

    def stop(progress: Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        run(root, local_engine(), on_progress=stop, partial_progress=True)
    assert bytes_of(root) == before


def test_a_paused_partition_is_refused_or_with_partial_progress_passed_over(
    tmp_path: Path,
) -> None:
    root = logs(tmp_path / "logs", [2, 9])
    pause([str(root / "orders-1")], DISK)
    with pytest.raises(UsageError, match="paused"):
        run(root, local_engine())
    report = run(root, local_engine(), partial_progress=True)
    assert [item.skipped for item in report.partitions] == [None, "cleaning is paused"]


def test_progress_of_batches_is_one_story(tmp_path: Path) -> None:
    """Each stage grows, over all batches, up to the bytes of all partitions."""
    told: list[Progress] = []
    run(logs(tmp_path, [2, 9, 4]), local_engine(), on_progress=told.append, max_concurrent=1)
    total_bytes = {progress.total_bytes for progress in told}
    assert len(total_bytes) == 1
    for phase in ("index", "rewrite", "swap"):
        done = [progress.done_bytes for progress in told if progress.phase == phase]
        assert done == sorted(done)
        assert {done[-1]} == total_bytes


def test_wishes_that_cannot_be(tmp_path: Path) -> None:
    root = logs(tmp_path / "logs", [2])
    with pytest.raises(UsageError, match="at least 1"):
        run(root, local_engine(), max_concurrent=0)
    with pytest.raises(UsageError, match="partial_progress"):
        run(root, local_engine(), Mode.OUT, out=str(tmp_path / "out"), partial_progress=True)


def test_whatever_fails_every_log_is_old_or_new(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """Random sizes, batches and failures, partly ours and partly not."""
    failures = 0
    for seed in range(8):
        random = Random(seed)
        sizes = [random.randint(1, 9) for _ in range(random.randint(2, 5))]
        root, whole = tmp_path / f"{seed}", tmp_path / f"{seed}-whole"
        logs(root, sizes), run(logs(whole, sizes), local_engine())
        broken = {f"orders-{random.randrange(len(sizes))}" for _ in range(2)}
        damaged = [name for name in sorted(broken) if random.random() < 0.5]
        for name in damaged:
            damage(root / name)
        rest = broken - set(damaged)
        engine = Recorder(lambda names, rest=rest: OSError("lost") if rest & set(names) else None)
        before, done = bytes_of(root), bytes_of(whole)
        report = run(
            root, engine, partial_progress=True, max_concurrent=random.choice([None, 1, 2])
        )
        assert {item.partition for item in report.partitions if item.error} == broken
        after = bytes_of(root)
        for item in report.partitions:
            expected = before if item.partition in broken else done
            assert within(after, item.partition) == within(expected, item.partition), seed
        failures += len(broken)
    count_cases("partitions that failed while others were compacted", failures)
