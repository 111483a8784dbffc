"""Copies of ledgers in a bucket: what is refused, made anew, or interrupted loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.location_manifest import MANIFEST, decode
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.config.book import SettingsBook
from stratalog.pipeline import remote
from stratalog.pipeline.remote import compact_to
from stratalog.pipeline.remote_target import Location
from stratalog.record.builder import NewRecord
from tests.log.helpers import NOW, open_log
from tests.pipeline.ledger_copies import (
    BOOK,
    SEGMENT_BYTES,
    beside,
    cut,
    manifest_in,
    one_log,
    segments,
)
from tests.pipeline.object_server import ObjectServer, object_server, stand_in_session
from tests.pipeline.test_objects import rows
from tests.pipeline.test_objects_crash import MortalClient
from tests.sim.sweeps import IS_SWEEP

pytestmark = [
    pytest.mark.requirement("LDG-1", "SPK-9"),
    pytest.mark.usefixtures("hasty_disk"),
]
Count = Callable[[str, int], None]


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


# ---------------------------------------------------------------- nothing is lost


def test_the_ledger_beside_the_log_is_begun_from(s3: ObjectServer, tmp_path: Path) -> None:
    """What only it has is in the copy, and the next run goes on from there."""
    spark, target = stand_in_session(), s3.uri("beside", "target")
    log_dir = one_log(tmp_path)
    beside(log_dir, NOW)
    with open_log(log_dir / "orders-0") as log:
        log.append_records([NewRecord(b"new", b"1", NOW)])
    cut(log_dir / "orders-0")
    source = s3.put(log_dir, "beside", "1")
    compact_to(spark, [source], target, book=BOOK, store=s3.store)
    assert segments(s3.contents("beside", "target")) == beside(log_dir, NOW)
    assert manifest_in(s3, "beside", "target").partitions[0].start_offset == 0
    assert len(rows(target, s3)) == 31


def test_refusals_change_nothing(s3: ObjectServer, tmp_path: Path) -> None:
    spark, target = stand_in_session(), s3.uri("refused", "target")
    log_dir = one_log(tmp_path)
    compact_to(spark, [s3.put(log_dir, "refused", "1")], target, book=BOOK, store=s3.store)
    before = s3.contents("refused", "target")
    path = log_dir / "orders-0"
    one_log(tmp_path, at=200)
    for base in sorted(int(p.stem) for p in path.glob("*.log"))[:-2]:
        for file in path.glob(f"{base:020d}.*"):
            file.unlink()
    shorter = tmp_path / "shorter" / "orders-0"
    with open_log(shorter) as log:
        log.append_records([NewRecord(b"a", b"1", NOW)])
    plain = SettingsBook(defaults=remote.COMPACTED)
    for logs, book, reason in (
        (log_dir, BOOK, "begins at offset .*, and its copy at .* ends at offset 200"),
        (log_dir, plain, "its ledger at .* holds records from 0 on, its raw log only from"),
        (shorter.parent, BOOK, "ends at offset 1, and its copy at .* at 200"),
    ):
        source = s3.put(logs, "refused", str(abs(hash(reason))))
        with pytest.raises(UsageError, match=reason) as caught:
            compact_to(spark, [source], target, book=book, store=s3.store)
        assert source in str(caught.value)
        assert "\n" not in str(caught.value)
        assert s3.contents("refused", "target") == before


@pytest.mark.parametrize("at_a_border", [False, True])
def test_a_log_that_was_cut_and_has_grown_again_is_refused(
    s3: ObjectServer, tmp_path: Path, at_a_border: bool
) -> None:
    """The segment with the copy's last offset is fetched, also where the next one begins there."""
    name = f"regrown-{at_a_border}"
    spark, target = stand_in_session(), s3.uri(name, "target")
    log_dir = one_log(tmp_path)
    path = log_dir / "orders-0"
    compact_to(spark, [s3.put(log_dir, name, "1")], target, book=BOOK, store=s3.store)
    before = s3.contents(name, "target")
    horizon = manifest_in(s3, name, "target").partitions[0].end_offset
    with open_log(path) as log:
        log.truncate_to(horizon - 1)
        log.append_records([NewRecord(b"other", b"1", NOW)])
        assert log.log_end_offset == horizon
        if at_a_border:
            log.roll()
        log.append_records([NewRecord(b"more", b"1", NOW)])
    with pytest.raises(UsageError, match="it was cut and has grown again"):
        compact_to(spark, [s3.put(log_dir, name, "2")], target, book=BOOK, store=s3.store)
    assert s3.contents(name, "target") == before


def test_a_damaged_copy_is_made_anew_or_told(s3: ObjectServer, tmp_path: Path) -> None:
    spark, target = stand_in_session(), s3.uri("damaged", "target")
    log_dir = one_log(tmp_path)
    compact_to(spark, [s3.put(log_dir, "damaged", "1")], target, book=BOOK, store=s3.store)
    for damage in (flip, drop):
        with open_log(log_dir / "orders-0") as log:
            log.append_records([NewRecord(b"new", b"1", NOW)])
        damage(s3, target)
        source = s3.put(log_dir, "damaged", damage.__name__)
        compact_to(spark, [source], target, book=BOOK, store=s3.store)
        assert len(rows(target, s3)) == 31
    below = sorted(int(path.stem) for path in (log_dir / "orders-0").glob("*.log"))
    for base in below[:-1]:
        for file in (log_dir / "orders-0").glob(f"{base:020d}.*"):
            file.unlink()
    with open_log(log_dir / "orders-0") as log:
        log.append_records([NewRecord(b"new", b"2", NOW)])
    file = flip(s3, target)
    before = s3.contents("damaged", "target")
    source = s3.put(log_dir, "damaged", "cut")
    with pytest.raises(CorruptionError, match="bring the file back") as caught:
        compact_to(spark, [source], target, book=BOOK, store=s3.store)
    assert caught.value.file == file
    assert s3.contents("damaged", "target") == before


def victim(s3: ObjectServer, target: str) -> str:
    """The largest segment of the copy."""
    found = s3.contents(target.removeprefix(s3.uri()).strip("/"))
    directory = decode(found[MANIFEST], MANIFEST).directory
    logs = {n: c for n, c in found.items() if n.startswith(directory) and n.endswith(".log")}
    return f"{target}/{max(logs, key=lambda name: len(logs[name]))}"


def flip(s3: ObjectServer, target: str) -> str:
    path = victim(s3, target).removeprefix("s3://")
    content = bytearray(s3.client.open_input_file(path).read())
    content[-1] ^= 1
    with s3.client.open_output_stream(path) as out:
        out.write(bytes(content))
    return f"s3://{path}"


def drop(s3: ObjectServer, target: str) -> None:
    s3.client.delete_file(victim(s3, target).removeprefix("s3://"))


# ---------------------------------------------------------------- failures


class Mortal(MortalClient):
    """Copies are changes, too."""

    def copy_file(self, source: str, target: str) -> None:
        self.change()
        self._client.copy_file(source, target)


def test_a_driver_may_die_at_any_request(
    s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Count
) -> None:
    from stratalog.pipeline import object_store
    from tests.pipeline import test_objects_crash

    target, log_dir = s3.uri("mortal", "target"), one_log(tmp_path, keys=300)

    def run(last: int | None) -> int:
        mortal = Mortal(s3.store.client(), last)
        with monkeypatch.context() as patch:
            patch.setattr(object_store, "_client", lambda _: mortal)
            try:
                compact_to(stand_in_session(), [str(log_dir)], target, book=BOOK, store=s3.store)
            except test_objects_crash.Killed:
                assert last is not None
        return mortal.changes

    def count() -> int:
        return len(rows(target, s3))

    run(None)
    outcomes, last, runs = set(), 0, 0
    while not {True, False} <= outcomes or last < 40:
        with open_log(log_dir / "orders-0", segment_bytes=SEGMENT_BYTES) as log:
            log.append_records([NewRecord(b"new%d" % runs, b"1", NOW)])
        before, held = manifest_in(s3, "mortal", "target"), count()
        changes = run(last)
        after = manifest_in(s3, "mortal", "target")
        outcomes.add(after != before)
        assert count() == (200 + runs + 1 if after != before else held)
        last += 1 if IS_SWEEP else 5
        runs += 1
        assert runs < 300, changes
    run(None)
    found = s3.contents("mortal", "target")
    manifest = decode(found[MANIFEST], MANIFEST)
    there = {name.split("/", 1)[0] for name in found} - {MANIFEST}
    assert there == {manifest.directory, *manifest.kept}
    assert count() == 200 + runs
    count_cases("drivers that died while a copy in a bucket went on", runs)


def test_a_task_that_fails_leaves_no_scratch(
    s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratalog.pipeline import remote_task

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(remote_task.tempfile, "tempdir", str(tmp_path / "scratch"))
    log_dir, target = one_log(tmp_path), s3.uri("scratch", "target")

    def full(*_: Any) -> None:
        raise StorageIOError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Location, "upload", full)
        with pytest.raises(StorageIOError, match="no space left"):
            compact_to(stand_in_session(), [str(log_dir)], target, book=BOOK, store=s3.store)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert s3.contents("scratch") == {}
    compact_to(stand_in_session(), [str(log_dir)], target, book=BOOK, store=s3.store)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert len(rows(target, s3)) == 30


def test_ends_of_topics_that_have_no_records(s3: ObjectServer, tmp_path: Path) -> None:
    spark, target = stand_in_session(), s3.uri("empty", "target")
    log_dir = tmp_path / "data"
    open_log(log_dir / "orders-0").close()
    compact_to(spark, [str(log_dir)], target, book=BOOK, store=s3.store)
    assert rows(target, s3) == []
    with open_log(log_dir / "orders-0") as log:
        log.append_records([NewRecord(b"a", b"1", NOW)])
    compact_to(spark, [str(log_dir)], target, book=BOOK, store=s3.store)
    assert [row["offset"] for row in rows(target, s3)] == [0]
