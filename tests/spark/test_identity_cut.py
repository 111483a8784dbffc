"""Segments and groups that several tasks share: the bytes are those of the local engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.base.errors import CorruptionError
from stratalog.clean.job import CleaningJob
from stratalog.clean.local_engine import LocalEngine
from stratalog.spark import cutting
from stratalog.spark.cutting import Piece
from tests.clean.driving import (
    FS,
    Case,
    batch_of,
    place,
    range_and_job,
    run,
    segment_files,
    write_case,
)
from tests.clean.test_properties import features_of, random_case, seeds
from tests.clean.test_versions import features_of as versions_of
from tests.spark.test_tasks import assert_engines_agree, stand_in

pytest.importorskip("pyspark")
pytestmark = pytest.mark.usefixtures("hasty_disk")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """Everything is worth cutting, into shares of a few hundred bytes; the pieces that were cut."""
    monkeypatch.setattr(cutting, "LEAST_SHARE_BYTES", 1)
    monkeypatch.setattr(cutting, "MOST_SHARE_BYTES", 400)
    seen: list[Piece] = []
    real = cutting.cut

    def cut(*arguments: object) -> list[Piece]:
        pieces = real(*arguments)  # type: ignore[arg-type]
        seen.extend(piece for piece in pieces if not piece.is_whole)
        return pieces

    monkeypatch.setattr(cutting, "cut", cut)
    return seen


@pytest.mark.requirement("SPK-1", "SPK-2")
@pytest.mark.parametrize("limited", [True, False], ids=["limit of keys", "any number of keys"])
def test_groups_that_are_cut_give_the_local_engines_bytes(
    limited: bool,
    tiny: list[Piece],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[str, int], None],
) -> None:
    """Every batch of every kind at the edge of a piece: without a codec, with one, of the oldest
    formats, with transactions, with versions."""
    done = 0
    for start in range(0, len(seeds(16)), 8):
        engine, _ = stand_in(start, monkeypatch)
        cases = [
            random_case(
                3000 + seed,
                tmp_path / f"{seed}",
                (features_of if seed % 4 else versions_of)(seed),
            )
            for seed in range(start, start + 8)
        ]
        changes = [{} if limited else {"max_keys": None}] * len(cases)
        done += assert_engines_agree(engine, cases, changes)
    assert len(tiny) > 5 * done, "they were not cut"
    assert done > len(seeds(16)) // 2
    count_cases("random logs, cut inside segments, Spark's plan = local engine", done)


def looks_like_a_batch(offset: int) -> bytes:
    """The head of one, as far as somebody may look who wants to cut there."""
    return offset.to_bytes(8, "big") + b"\0\0\0\x50" + bytes(4) + b"\2"


def one_segment(directory: Path, keys: int) -> tuple[Case, CleaningJob]:
    """A log of one large segment, every third batch of it in its index, and an empty active one.
    `keys`: how many its 80 records have."""
    made = [
        batch_of(
            2 * n,
            (b"%d" % (2 * n % keys), b"v" * 900 + looks_like_a_batch(2 * n + 1)),
            (b"%d" % ((2 * n + 1) % keys), b"w"),
        )
        for n in range(40)
    ]
    case = write_case(directory, {0: made, 80: []})
    _, job = range_and_job(case, max_keys=None)
    assert job is not None
    return case, job


@pytest.mark.requirement("CMP-19", "SPK-2")
@pytest.mark.parametrize("writes", [True, False], ids=["a clean", "a dry run"])
def test_a_segment_in_which_nothing_changes_stays_though_several_look_at_it(
    writes: bool, tiny: list[Piece], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, job = one_segment(tmp_path / "log", keys=1 << 20)
    before = segment_files(case.partition)
    engine, _ = stand_in(2, monkeypatch)
    [cleaned] = run(engine, [job], writes=writes)
    assert len(tiny) > 5
    [group] = cleaned.groups
    assert group.unchanged
    assert group.parts == ()
    assert cleaned == run(LocalEngine(FS), [job], writes=False)[0]
    assert segment_files(case.partition) == before
    assert list(case.partition.glob("*.part")) == [], "what was written to be joined is left"


@pytest.mark.requirement("SPK-2")
def test_what_was_written_to_be_joined_is_removed(
    tiny: list[Piece], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the pieces come out as they went in: those bytes come from the segment itself."""
    case, job = one_segment(tmp_path / "log", keys=60)
    engine, context = stand_in(2, monkeypatch)
    monkeypatch.setattr("tests.spark.stand_in.REPEATS", 0.0)  # a repeated task leaves its files
    [cleaned] = run(engine, [job])
    assert context.repeated == 0
    named = {name for group in cleaned.groups for _, name in group.parts}
    assert {path.name for path in case.partition.glob("*.part")} == named
    assert len(named) == 3
    assert cleaned.volume.drops.superseded == 20


@pytest.mark.requirement("SPK-2", "RCV-4")
@pytest.mark.parametrize("what", ["elsewhere", "absent", "empty", "random"])
def test_an_index_that_names_wrong_places_does_no_harm(
    what: str, tiny: list[Piece], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, job = one_segment(tmp_path / "log", keys=7)
    copy = case.copied(tmp_path / "copy")
    index = case.partition / f"{0:020d}.index"
    data = index.read_bytes()
    if what == "elsewhere":
        log = (case.partition / f"{0:020d}.log").read_bytes()
        entries = np.frombuffer(data, ">i4").reshape(-1, 2).copy()
        for entry in entries:
            entry[1] = log.index(looks_like_a_batch(int(entry[0])), int(entry[1]))
        index.write_bytes(entries.tobytes())
    elif what == "absent":
        index.unlink()
    else:
        index.write_bytes(b"" if what == "empty" else Random(1).randbytes(len(data)))
    engine, _ = stand_in(3, monkeypatch)
    [cleaned] = run(engine, [job])
    assert bool(tiny) == (what == "elsewhere")
    index.write_bytes(data)
    place(case, cleaned)
    _, same = range_and_job(copy, max_keys=None)
    assert same is not None
    place(copy, run(LocalEngine(FS), [same])[0])
    assert segment_files(case.partition) == segment_files(copy.partition)


@pytest.mark.requirement("CMP-16")
@pytest.mark.parametrize("position", [1, 20_000, -100])
def test_damage_in_a_segment_that_is_cut_is_told_as_the_local_engine_tells_it(
    position: int, tiny: list[Piece], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, job = one_segment(tmp_path / "log", keys=7)
    path = case.partition / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
    engine, _ = stand_in(4, monkeypatch)
    told = []
    for one in (engine, LocalEngine(FS)):
        with pytest.raises(CorruptionError) as caught:
            run(one, [job])
        told.append((str(caught.value), caught.value.file, caught.value.position))
    assert tiny
    assert told[0] == told[1]
