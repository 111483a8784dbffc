"""What swaps and splits of Kafka leave, in every mixture, against a model of its loader (RCV-5)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.log.leftovers import resolve
from stratalog.log.opening import Unclean
from stratalog.log.swap import Replacement, SegmentParts, swap
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.names import FileKind
from tests.log.helpers import FS, NOW, contents, open_log
from tests.log.recording import PowerCutError, RecordingFileSystem
from tests.naive.leftovers import kafka_loads
from tests.sim.disk import SimDisk

pytestmark = pytest.mark.usefixtures("hasty_disk")

Files = dict[str, bytes]


def name(base: int, kind: str, state: str = "") -> str:
    return f"{base:020d}.{kind}{state and '.' + state}"


def batch(base: int, last: int, what: str) -> bytes:
    """One batch; its offsets are those between."""
    records = [NewRecord(b"k%d" % i, what.encode(), NOW + i) for i in range(base, last + 1)]
    return build_batch(records, base_offset=base)


OLD_ENDS = {0: 49, 50: 99}
"""The two old segments: base and last offset."""
NEW_ENDS = {(0,): {0: 97}, (0, 50): {0: 47, 50: 97}}
"""One new segment, or two; the last records of each are gone."""
COMPACTED: dict[str, Any] = {"create": False, "cleanup_policy": ("compact",)}
DIRECTORY = "/data/t-0"
ACTIVE = {name(100, "log"): batch(100, 101, "active"), name(100, "index"): b""}


def old_file(base: int, kind: str) -> bytes:
    return batch(base, OLD_ENDS[base], "old") if kind == "log" else f"old {kind} {base}".encode()


def new_file(base: int, kind: str, new: tuple[int, ...]) -> bytes:
    if kind == "log":
        return batch(base + 3, NEW_ENDS[new][base], "new")
    return f"new {kind} {base}".encode()


def mixtures(
    new: tuple[int, ...], kinds: tuple[str, ...], old_states: tuple[str, ...]
) -> Iterator[Files]:
    """Each old file plain, `.deleted` or gone; each new one `.cleaned`, `.swap`, plain or gone."""
    choices: list[list[Files]] = []
    for base, kind in product(OLD_ENDS, kinds):
        old: list[Files] = [
            {} if state == "gone" else {name(base, kind, state): old_file(base, kind)}
            for state in old_states
        ]
        coming: list[Files] = [{}]
        if base in new:
            content = new_file(base, kind, new)
            coming += [{name(base, kind, state): content} for state in ("cleaned", "swap", "")]
        choices.append([{**a, **b} for a, b in product(old, coming) if not a.keys() & b.keys()])
    for chosen in product(*choices):
        yield {key: data for files in (*chosen, ACTIVE) for key, data in files.items()}


def lay(directory: Path, files: Files) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    for key, data in files.items():
        (directory / key).write_bytes(data)


def laid_in_memory(files: Files) -> SimDisk:
    """Thousands of little directories: on a disk in memory."""
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    for key, data in files.items():
        file = disk.open(f"{DIRECTORY}/{key}", "create")
        file.pwrite(data, 0)
        file.close()
    return disk


def found_in_memory(disk: SimDisk) -> Files:
    """The files of the directory; nothing but `.stratalog` may be there beside them."""
    return {
        path.removeprefix(f"{DIRECTORY}/"): data
        for path, data in disk.tree(DIRECTORY).items()
        if data is not None
    }


def segment_files(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.mark.sweep
@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize(
    ("new", "kinds", "old_states", "number"),
    [
        ((0,), ("log", "index"), ("", "deleted", "gone"), 11 * 11 * 3 * 3),
        ((0, 50), ("log", "index"), ("", "deleted"), 7**4),
        ((0,), ("log", "timeindex", "txnindex"), ("", "deleted"), 7**3 * 2**3),
    ],
    ids=["one for two", "two for two", "one for two, with transactions"],
)
def test_every_mixture_is_resolved_as_kafka_does(
    new: tuple[int, ...],
    kinds: tuple[str, ...],
    old_states: tuple[str, ...],
    number: int,
    count_cases: Callable[[str, int], None],
) -> None:
    seen = 0
    for files in mixtures(new, kinds, old_states):
        disk = laid_in_memory(files)
        resolved = resolve(disk, DIRECTORY)
        expected = kafka_loads(files)
        assert found_in_memory(disk) == expected, sorted(files)
        again = resolve(disk, DIRECTORY)
        assert found_in_memory(disk) == expected
        assert (again.finished, again.undone, again.removed) == (None, (), ())
        assert {key for key in files if "cleaned" in key} <= {*resolved.undone}
        assert {*resolved.undone} <= files.keys() - expected.keys()
        seen += 1
    assert seen == number
    count_cases("mixtures of a swap's files resolved as by Kafka's loader", number)


@pytest.mark.requirement("RCV-5")
def test_the_older_suffix_clean_is_removed_too(tmp_path: Path) -> None:
    plain = {
        name(base, kind): old_file(base, kind) for base in OLD_ENDS for kind in ("log", "index")
    }
    for kind in ("log", "index", "timeindex", "txnindex"):
        for beside in ({}, {name(0, "log", "swap"): new_file(0, "log", (0,))}):
            directory = tmp_path / "t-0"
            files = {**plain, **ACTIVE, **beside, name(0, kind, "clean"): b"from 2012"}
            lay(directory, files)
            resolve(FS, str(directory))
            assert segment_files(directory) == kafka_loads(files)
            assert not any(path.suffix == ".clean" for path in directory.iterdir())


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("snapshots", [(0,), (0, 50)])
def test_snapshots_stay_where_a_segment_still_begins(
    tmp_path: Path, snapshots: tuple[int, ...]
) -> None:
    files = {
        **{name(base, "log"): old_file(base, "log") for base in OLD_ENDS},
        **{name(base, "snapshot"): b"" for base in snapshots},
        **ACTIVE,
        name(0, "log", "swap"): new_file(0, "log", (0,)),
    }
    lay(tmp_path / "t-0", files)
    resolve(FS, str(tmp_path / "t-0"))
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.snapshot")) == [
        name(0, "snapshot")
    ]


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("flip", [False, True])
def test_a_damaged_swap_file_costs_no_old_one(tmp_path: Path, flip: bool) -> None:
    """Kafka deletes the old segments first and looks later."""
    content = bytearray(new_file(0, "log", (0,)))
    content = bytearray(content[:-1]) if not flip else content
    content[-1] ^= 1
    files = {
        **{name(base, "log"): old_file(base, "log") for base in OLD_ENDS},
        **ACTIVE,
        name(0, "log", "swap"): bytes(content),
    }
    directory = tmp_path / "t-0"
    lay(directory, files)
    for unclean in (None, Unclean(0)):
        with pytest.raises(CorruptionError, match=r"log\.swap") as caught:
            open_log(directory, unclean=unclean)
        assert caught.value.file == str(directory / name(0, "log", "swap"))
        assert contents(directory) == files


# -- cut anywhere --------------------------------------------------------------------------------


def swap_of_kafka(new: tuple[int, ...]) -> Iterator[tuple[str, Files, bool]]:
    """The states that a crash of Kafka leaves, one after each of its steps: (step, files, whether
    the new content counts)."""
    kinds = ("log", "index")
    old = {name(base, kind): old_file(base, kind) for base in OLD_ENDS for kind in kinds}
    coming = {(base, kind): new_file(base, kind, new) for base in new for kind in kinds}
    files = {**old, **ACTIVE}
    steps = [(f"{kind} of {base} written", base, kind, None, "cleaned") for base, kind in coming]
    descending = sorted(coming, key=lambda item: (-item[0], kinds.index(item[1])))
    steps += [
        (f"{kind} of {base} is .swap", base, kind, "cleaned", "swap") for base, kind in descending
    ]
    wins_after = len(steps)
    ascending = sorted(coming, key=lambda item: (item[0], kinds.index(item[1])))
    for number, (what, base, kind, before, after) in enumerate(steps, start=1):
        if before is not None:
            files.pop(name(base, kind, before))
        files[name(base, kind, after)] = coming[base, kind]
        yield what, dict(files), number == wins_after
    for key, data in old.items():
        del files[key]
        files[key + ".deleted"] = data
        yield f"{key} is .deleted", dict(files), True
    for base, kind in ascending:
        files[name(base, kind)] = files.pop(name(base, kind, "swap"))
        yield f"{kind} of {base} is final", dict(files), True


@pytest.mark.requirement("RCV-5", "RCV-6")
@pytest.mark.parametrize("new", [(0,), (0, 50)], ids=["one", "two"])
def test_each_step_of_kafkas_swap_is_old_or_new(tmp_path: Path, new: tuple[int, ...]) -> None:
    for what, files, is_new in swap_of_kafka(new):
        lay(tmp_path / "t-0", files)
        log = open_log(tmp_path / "t-0", unclean=Unclean(0), **COMPACTED)
        expected = {"new", "active"} if is_new else {"old", "active"}
        found = list(log.read_records(0))
        assert {(record.value or b"").decode() for record in found} == expected, what
        ends = NEW_ENDS[new] if is_new else OLD_ENDS
        bases = [segment.base_offset for segment in log.segments]
        assert bases == [*ends, 100], what
        offsets = [record.offset for record in found]
        kept = [range(base + 3 * is_new, last + 1) for base, last in ends.items()]
        assert offsets == [*(offset for run in kept for offset in run), 100, 101], what
        log.close()


@pytest.mark.sweep
@pytest.mark.requirement("RCV-5", "RCV-6")
@pytest.mark.parametrize("new", [(0,), (0, 50)], ids=["one", "two"])
def test_a_resolution_that_is_cut_ends_the_same(
    tmp_path: Path, new: tuple[int, ...], count_cases: Callable[[str, int], None]
) -> None:
    cuts = 0
    for what, files, _ in swap_of_kafka(new):
        expected = kafka_loads(files)
        for allowed in range(200):
            lay(tmp_path / "t-0", files)
            try:
                resolve(RecordingFileSystem(allowed), str(tmp_path / "t-0"))  # type: ignore[arg-type]
            except PowerCutError:
                cuts += 1
            else:
                break
            resolve(FS, str(tmp_path / "t-0"))
            assert segment_files(tmp_path / "t-0") == expected, (what, allowed)
    assert cuts > 100
    count_cases("resolutions of Kafka's swaps cut between two changes", cuts)


# -- Kafka's own cases ---------------------------------------------------------------------------


SPLIT = (0, 20, 40)
"""What the old segment at 0 is split into; the one at 50 stays."""


def split_files(states: dict[int, str], old: str) -> Files:
    """`states`: of each part, per base; `old`: of the segment that is split."""
    files = {name(50, "log"): old_file(50, "log"), **ACTIVE}
    files[name(0, "log", old)] = old_file(0, "log")
    for base, state in states.items():
        last = {0: 19, 20: 39, 40: 49}[base]
        files[name(base, "log", state)] = batch(base, last, "old")
    return files


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize(
    ("states", "old", "is_split"),
    [
        # LogLoaderTest.testRecoveryOfSegmentWithOffsetOverflow + CrashDuringSplitPhase1 to 5
        pytest.param(dict.fromkeys(SPLIT, "cleaned"), "", False, id="phase 1, all .cleaned"),
        pytest.param(
            {0: "cleaned", 20: "cleaned", 40: "swap"}, "", False, id="phase 2, some .swap"
        ),
        pytest.param(dict.fromkeys(SPLIT, "swap"), "", True, id="phase 3, all .swap"),
        pytest.param(dict.fromkeys(SPLIT, "swap"), "deleted", True, id="phase 4, old .deleted"),
        pytest.param({0: "", 20: "swap", 40: "swap"}, "deleted", True, id="phase 5, some final"),
    ],
)
def test_a_crash_during_a_split(
    tmp_path: Path, states: dict[int, str], old: str, is_split: bool
) -> None:
    """LogLoaderTest.testRecoveryAfterCrashDuringSplitPhase1, 2, 3, 4, 5: no record is lost."""
    lay(tmp_path / "t-0", split_files(states, old))
    log = open_log(tmp_path / "t-0", unclean=Unclean(0), **COMPACTED)
    assert [record.offset for record in log.read_records(0)] == list(range(102))
    bases = [segment.base_offset for segment in log.segments]
    assert bases == ([*SPLIT, 50, 100] if is_split else [0, 50, 100])
    log.close()
    assert {path.suffix for path in (tmp_path / "t-0").iterdir() if path.is_file()} <= {
        ".log", ".index", ".timeindex", ".snapshot", ""
    }  # fmt: skip


@pytest.mark.requirement("RCV-5", "CMP-12")
def test_our_own_split_is_old_or_new_at_every_step(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """The same five phases and every step between them, of a swap that wrote its intent."""
    directory = tmp_path / "t-0"
    cuts = []
    for allowed in range(200):
        lay(directory, split_files({}, ""))
        parts = []
        for base, last in ((0, 19), (20, 39), (40, 49)):
            part = f"{name(base, 'log')}.split-0.part"
            (directory / part).write_bytes(batch(base, last, "old"))
            parts.append(SegmentParts(base, {FileKind.LOG: part}))
        try:
            swap(
                RecordingFileSystem(allowed),  # type: ignore[arg-type]
                str(directory),
                Replacement((0,), tuple(parts)),
            )
        except PowerCutError:
            pass
        else:
            break
        log = open_log(directory, unclean=Unclean(0), **COMPACTED)
        assert [record.offset for record in log.read_records(0)] == list(range(102))
        bases = tuple(segment.base_offset for segment in log.segments)
        assert bases in ((0, 50, 100), (*SPLIT, 50, 100))
        cuts.append(len(bases))
        log.close()
    assert cuts == sorted(cuts)
    assert len(set(cuts)) == 2
    count_cases("splits cut between two changes", len(cuts))
