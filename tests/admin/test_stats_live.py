"""The page of a log that a live process owns: all figures are of one moment, nothing is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.admin.page import figures as figures_module
from stratalog.admin.page.figures import Unread
from stratalog.admin.page.pinned import pinned, reading
from stratalog.admin.report import Mode
from stratalog.admin.stats import partition_stats
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from tests.admin.helpers import DISK, NOW_MS, records, run, write_log
from tests.admin.test_stats_page import figures_of
from tests.log.test_locking import held_by_another_process


def test_a_log_is_read_beside_its_owner(tmp_path: Path) -> None:
    write_log(tmp_path / "x-0", [[records("aab")], []])
    alone = figures_of(tmp_path)
    with held_by_another_process(tmp_path):
        assert figures_of(tmp_path) == alone


def test_figures_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two of the looks its owner cleans the log, appends to it and deletes from it."""
    log_dir = tmp_path / "data"
    path = write_log(log_dir / "x-0", [[records(f"k{n % 9}" for n in range(300))], [records("ab")]])
    expected = figures_of(path)

    def meddling(
        real: Callable[..., object], meddle: Callable[[], object]
    ) -> Callable[..., object]:
        def look(*given: object) -> object:
            meddle()
            return real(*given)

        return look

    def append() -> None:
        with PartitionLog.open(str(path), LogSettings(), DISK, FixedClock(NOW_MS)) as log:
            log.append_records(records("cd"))
            log.roll()

    def delete() -> None:
        for name in path.iterdir():
            if name.is_file() and name.name.startswith(f"{0:020d}"):
                name.unlink()

    for name, meddle in (
        ("partition_stats", append),
        ("compact", lambda: run([path], Mode.IN_PLACE)),
        ("plan_retention", delete),
    ):
        real = getattr(figures_module, name)
        monkeypatch.setattr(figures_module, name, meddling(real, meddle))
    found = figures_of(path)
    assert found.is_ok
    assert found == expected
    assert not (path / f"{0:020d}.log").exists()


def test_a_swap_that_is_under_way_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(tmp_path / "x-0", [[records("aab")], []])
    expected = figures_of(path)
    unfinished = path / f"{0:020d}.log.swap"
    unfinished.write_bytes(b"")
    waited = []

    class Owner(FixedClock):
        def sleep_ms(self, duration_ms: int) -> None:
            waited.append(duration_ms)
            if len(waited) == 3:
                unfinished.unlink()

    monkeypatch.setattr("stratalog.admin.page.pinned._WAITS", Owner(0))
    assert figures_of(path) == expected
    assert len(waited) == 3
    unfinished.write_bytes(b"")
    monkeypatch.setattr("stratalog.admin.page.pinned._ATTEMPTS", 2)
    (unread,) = figures_of(path).unread
    assert "segments are being replaced" in unread.error


def test_what_is_read_cannot_be_written(tmp_path: Path) -> None:
    first = str(write_log(tmp_path / "x-0", [[records("aab")], []]) / f"{0:020d}.log")
    (place,) = find_partitions([str(tmp_path)], DISK)
    with pinned(place, reading(DISK)) as moment:
        for name in ("rename", "unlink", "make_directory", "remove_directory", "set_modified"):
            assert not hasattr(moment, name)
        with pytest.raises(AssertionError):
            moment.open(first, "update")
        with pytest.raises(AssertionError):
            moment.lock(first, exclusive=True)
        assert not hasattr(moment.open(first, "read"), "pwrite")


def test_what_fails_while_its_owner_changes_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(tmp_path / "x-0", [[records("aab")], []])
    real, calls = partition_stats, list[object]()
    failures, changes = 0, False

    def failing(place: object, *rest: object) -> object:
        calls.append(place)
        if len(calls) <= failures:
            if changes:
                os.utime(path / f"{0:020d}.log", ns=(0, len(calls) * 10**9))
            raise CorruptionError("a torn batch", file="x.log", position=7)
        return real(place, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("stratalog.admin.page.figures.partition_stats", failing)
    for failures, changes, tries in ((4, True, 5), (5, True, 5), (1, False, 1)):  # noqa: B007
        calls.clear()
        found = figures_of(path)
        assert len(calls) == tries
        assert found.is_ok == (failures < tries)
    assert found.unread == (Unread("x-0", str(path), "x.log: position 7: a torn batch"),)
