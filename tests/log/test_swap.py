"""The swap: its order, every point at which it can be cut, redoing, strays, damaged intents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.swap import (
    NewSegment,
    Replacement,
    SegmentParts,
    SwapIntent,
    decode_intent,
    finish_swap,
    remove_deleted,
    swap,
)
from stratalog.record.checksum import crc32c
from stratalog.segment.names import FileKind, file_name
from tests.log.recording import PowerCutError, RecordingFileSystem

pytestmark = pytest.mark.usefixtures("hasty_disk")

FS = LocalFileSystem()
LOG, INDEX, TIMES, TXNS, SNAPSHOT = (
    FileKind.LOG,
    FileKind.OFFSET_INDEX,
    FileKind.TIME_INDEX,
    FileKind.TXN_INDEX,
    FileKind.SNAPSHOT,
)
INTENT = Path(".stratalog", "swap-intent")


@dataclass(frozen=True)
class Scene:
    """What lies there before, and what comes: file kinds of each old base and the new segment."""

    name: str
    old: dict[int, tuple[FileKind, ...]]
    new: tuple[FileKind, ...]
    others: tuple[str, ...] = ()
    """Files that have no part in it, but for strays that the swap removes."""


PLAIN = (LOG, INDEX, TIMES)
ALL = (LOG, INDEX, TIMES, TXNS)
SCENES = [
    Scene("one for three", {0: PLAIN, 50: PLAIN, 100: PLAIN}, PLAIN),
    Scene("one for itself", {50: PLAIN}, PLAIN),
    Scene("aborted transactions stay", {0: ALL, 50: ALL}, ALL),
    Scene("aborted transactions go", {0: ALL, 50: ALL}, PLAIN),
    Scene("aborted transactions move down", {0: PLAIN, 50: ALL}, ALL),
    Scene("indexes were missing", {0: (LOG,), 50: (LOG, TXNS)}, PLAIN),
    Scene(
        "strays of dead attempts",
        {0: PLAIN, 50: PLAIN},
        PLAIN,
        (
            file_name(0, LOG) + ".cleaned",
            file_name(0, TXNS) + ".cleaned",
            file_name(50, LOG) + ".cleaned",
            file_name(0, LOG) + ".deleted",
            file_name(50, INDEX) + ".deleted",
            file_name(0, LOG) + ".dead-7.part",
        ),
    ),
]
ALL_SCENES = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
SOME_SCENES = pytest.mark.parametrize("scene", SCENES[::3], ids=lambda scene: scene.name)


def set_up(scene: Scene, directory: Path) -> Replacement:
    """Lay the scene; the active segment at 150 and snapshots of all bases are there too."""
    directory.mkdir(parents=True)
    for base, kinds in {**scene.old, 150: PLAIN}.items():
        for kind in (*kinds, SNAPSHOT):
            (directory / file_name(base, kind)).write_text(f"old {kind.value} of {base}")
    for name in scene.others:
        (directory / name).write_text(f"stray {name}")
    base = min(scene.old)
    parts = {kind: f"{file_name(base, kind)}.job-1.part" for kind in scene.new}
    for kind, part in parts.items():
        (directory / part).write_text(f"new {kind.value}")
    return Replacement(tuple(scene.old), (SegmentParts(base, parts),))


def live(directory: Path) -> dict[str, str]:
    """The files that a loader goes by, with what they hold."""
    return {
        path.name: path.read_text()
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name.count(".") == 1
    }


def old_content(scene: Scene) -> dict[str, str]:
    return {
        file_name(base, kind): f"old {kind.value} of {base}"
        for base, kinds in {**scene.old, 150: PLAIN}.items()
        for kind in (*kinds, SNAPSHOT)
    }


def new_content(scene: Scene) -> dict[str, str]:
    """The new segment, the active one, and the snapshots of bases that still are one (CMP-12)."""
    base = min(scene.old)
    content = {file_name(base, kind): f"new {kind.value}" for kind in scene.new}
    for kept in (base, 150):
        content[file_name(kept, SNAPSHOT)] = f"old snapshot of {kept}"
    for kind in PLAIN:
        content[file_name(150, kind)] = f"old {kind.value} of 150"
    return content


def assert_over(scene: Scene, directory: Path) -> None:
    """The swap is over: nothing of it is left but files that wait for deletion."""
    assert live(directory) == new_content(scene)
    assert list((directory / ".stratalog").iterdir()) == []
    suffixes = {path.suffix for path in directory.iterdir() if path.is_file()}
    assert suffixes & {".cleaned", ".swap", ".tmp"} == set()


@pytest.mark.requirement("CMP-12")
@ALL_SCENES
def test_a_swap_leaves_the_new_segment_and_nothing_of_the_old(scene: Scene, tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    replacement = set_up(scene, directory)
    published: list[dict[str, str]] = []
    swap(FS, str(directory), replacement, lambda: published.append(live(directory)))
    assert_over(scene, directory)
    # Readers are shown the new segment while the old files still have their names.
    assert published == [old_content(scene)]
    waiting = [path.name for path in directory.glob("*.deleted")]
    assert sorted(remove_deleted(FS, str(directory))) == sorted(waiting)
    assert list(directory.glob("*.deleted")) == []
    assert live(directory) == new_content(scene)


@pytest.mark.requirement("CMP-12")
def test_the_steps_come_in_order(tmp_path: Path) -> None:
    """DESIGN, "The swap, step by step", word for word."""
    directory = tmp_path / "topic-0"
    replacement = set_up(Scene("", {0: ALL, 50: PLAIN}, PLAIN), directory)
    recording = RecordingFileSystem()
    swap(recording, str(directory), replacement, lambda: recording.note("publish"))
    zero, fifty = "0" * 20, "50".zfill(20)
    assert recording.done == [
        # 1
        ("rename", f"{zero}.log.job-1.part", f"{zero}.log.cleaned"),
        ("rename", f"{zero}.index.job-1.part", f"{zero}.index.cleaned"),
        ("rename", f"{zero}.timeindex.job-1.part", f"{zero}.timeindex.cleaned"),
        ("fsync_directory", "topic-0"),
        # 2
        ("make_directory", ".stratalog"),
        ("fsync_directory", "topic-0"),
        ("create", "swap-intent.tmp"),
        ("rename", "swap-intent.tmp", "swap-intent"),
        ("fsync_directory", ".stratalog"),
        # 3
        ("rename", f"{zero}.log.cleaned", f"{zero}.log.swap"),
        ("rename", f"{zero}.index.cleaned", f"{zero}.index.swap"),
        ("rename", f"{zero}.timeindex.cleaned", f"{zero}.timeindex.swap"),
        ("publish",),
        ("unlink", f"{zero}.digest"),
        ("unlink", f"{fifty}.digest"),
        ("rename", f"{zero}.log", f"{zero}.log.deleted"),
        ("rename", f"{zero}.index", f"{zero}.index.deleted"),
        ("rename", f"{zero}.timeindex", f"{zero}.timeindex.deleted"),
        ("rename", f"{zero}.txnindex", f"{zero}.txnindex.deleted"),
        ("rename", f"{fifty}.log", f"{fifty}.log.deleted"),
        ("rename", f"{fifty}.index", f"{fifty}.index.deleted"),
        ("rename", f"{fifty}.timeindex", f"{fifty}.timeindex.deleted"),
        ("rename", f"{zero}.log.swap", f"{zero}.log"),
        ("rename", f"{zero}.index.swap", f"{zero}.index"),
        ("rename", f"{zero}.timeindex.swap", f"{zero}.timeindex"),
        ("unlink", f"{fifty}.snapshot"),
        # 4
        ("fsync_directory", "topic-0"),
        ("unlink", "swap-intent"),
        ("fsync_directory", ".stratalog"),
    ]


def number_of_changes(scene: Scene, directory: Path) -> int:
    recording = RecordingFileSystem()
    swap(recording, str(directory), set_up(scene, directory))
    return len(recording.done)


def cut_swap(scene: Scene, directory: Path, changes: int) -> bool:
    """Stop after that many changes; whether the intent had its name by then."""
    replacement = set_up(scene, directory)
    with pytest.raises(PowerCutError):
        swap(RecordingFileSystem(changes), str(directory), replacement)
    return (directory / INTENT).exists()


@pytest.mark.requirement("CMP-12")
@ALL_SCENES
def test_cut_anywhere_it_is_the_old_content_or_becomes_the_new(
    scene: Scene, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    total = number_of_changes(scene, tmp_path / "whole")
    outcomes = []
    for changes in range(total):
        directory = tmp_path / f"{changes}"
        has_intent = cut_swap(scene, directory, changes)
        is_over = changes == total - 1  # the intent is gone, only its directory's fsync is missing
        outcomes.append(has_intent or is_over)
        if not has_intent:
            expected = new_content(scene) if is_over else old_content(scene)
            assert live(directory) == expected
            assert not finish_swap(FS, str(directory))
            assert live(directory) == expected
            continue
        assert finish_swap(FS, str(directory))
        assert_over(scene, directory)
        assert not finish_swap(FS, str(directory))
        assert_over(scene, directory)
    # Old up to the intent's rename, new from there on: never old again.
    assert outcomes == sorted(outcomes)
    assert outcomes.count(True) > 6
    count_cases("swaps cut between two changes", total)


@pytest.mark.requirement("CMP-12")
@SOME_SCENES
def test_a_recovery_that_is_cut_too_ends_the_same(
    scene: Scene, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    total = number_of_changes(scene, tmp_path / "whole")
    cut_twice = 0
    for changes in range(total):
        first = tmp_path / f"{changes}"
        if not cut_swap(scene, first, changes):
            continue
        for more in range(total):
            second = tmp_path / f"{changes}-{more}"
            shutil.copytree(first, second)
            recording = RecordingFileSystem(more)
            try:
                finish_swap(recording, str(second))
            except PowerCutError:
                cut_twice += 1
                finish_swap(FS, str(second))
            assert_over(scene, second)
            shutil.rmtree(second)
    assert cut_twice > 20
    count_cases("swaps cut twice", cut_twice)


@pytest.mark.requirement("CMP-12")
def test_a_swap_after_a_cut_one_starts_afresh(tmp_path: Path) -> None:
    """Files of an attempt that never got its intent do not mix with those of the next."""
    scene = SCENES[2]  # with a transaction index, which the next attempt does not have
    directory = tmp_path / "topic-0"
    assert not cut_swap(scene, directory, 4)
    assert (directory / f"{file_name(0, TXNS)}.cleaned").exists()
    parts = {kind: f"{file_name(0, kind)}.job-2.part" for kind in PLAIN}
    for kind, part in parts.items():
        (directory / part).write_text(f"new {kind.value}")
    swap(FS, str(directory), Replacement((0, 50), (SegmentParts(0, parts),)))
    assert_over(Scene("", scene.old, PLAIN), directory)


@pytest.mark.requirement("CMP-12")
def test_groups_are_swapped_one_after_another(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    first = set_up(Scene("", {0: PLAIN, 50: PLAIN}, PLAIN), directory)
    for kind in PLAIN:
        (directory / file_name(100, kind)).write_text("old")
        (directory / f"{file_name(100, kind)}.job-3.part").write_text("newer")
    parts = {kind: f"{file_name(100, kind)}.job-3.part" for kind in PLAIN}
    second = Replacement((100,), (SegmentParts(100, parts),))
    swap(FS, str(directory), first)
    between = live(directory)
    with pytest.raises(PowerCutError):
        swap(RecordingFileSystem(3), str(directory), second)
    assert live(directory) == between
    assert between[file_name(0, LOG)] == "new log"
    assert between[file_name(100, LOG)] == "old"
    for kind in PLAIN:
        (directory / f"{file_name(100, kind)}.job-3.part").write_text("newest")
    swap(FS, str(directory), second)
    expected = between | {file_name(100, kind): "newest" for kind in PLAIN}
    assert live(directory) == expected


def test_without_an_intent_there_is_nothing_to_finish(tmp_path: Path) -> None:
    assert not finish_swap(FS, str(tmp_path))
    (tmp_path / ".stratalog").mkdir()
    assert not finish_swap(FS, str(tmp_path))


# ---------------------------------------------------------------- the intent record

FILES = ["log", "index", "timeindex"]
FIRST = {"base": 0, "files": FILES}
GOOD = {"version": 2, "old": [0, 50], "new": [FIRST, {"base": 70, "files": FILES}]}


def sealed(content: object) -> bytes:
    """A record with a right checksum, whatever it says."""
    line = json.dumps(content).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def test_an_intent_comes_back() -> None:
    intent = SwapIntent((7, 50, 1 << 62), (NewSegment(7, ALL), NewSegment(60, PLAIN)))
    assert decode_intent(intent.encode()) == intent
    expected = SwapIntent((0, 50), (NewSegment(0, PLAIN), NewSegment(70, PLAIN)))
    assert decode_intent(sealed(GOOD)) == expected
    assert expected.vanishing == (50,)


BAD_INTENTS = {
    "empty": b"",
    "cut off": sealed(GOOD)[:-1],
    "another checksum": sealed(GOOD)[:-9] + b"00000000\n",
    "zeros": bytes(80),
    "no text": b"\xff\xfe\x00",
    "a list": [],
    "a number": 1,
    "nested without end": b"[" * 200_000 + b"\n" + b"%08x\n" % crc32c(b"[" * 200_000 + b"\n"),
    "another version": {**GOOD, "version": 1},
    "no version": {k: v for k, v in GOOD.items() if k != "version"},
    "no old": {k: v for k, v in GOOD.items() if k != "old"},
    "old is text": {**GOOD, "old": "05"},
    "old out of order": {**GOOD, "old": [0, 50, 20]},
    "old twice": {**GOOD, "old": [0, 0]},
    "old below zero": {**GOOD, "old": [-1, 0]},
    "old past all offsets": {**GOOD, "old": [0, 1 << 63]},
    "old is a fraction": {**GOOD, "old": [0, 50.5]},
    "old is a truth": {**GOOD, "old": [False, 50]},
    "nothing new": {**GOOD, "new": []},
    "new is nothing": {**GOOD, "new": None},
    "new out of order": {**GOOD, "new": [{"base": 70, "files": FILES}, FIRST]},
    "new is a fraction": {**GOOD, "new": [{"base": 0.0, "files": FILES}]},
    "no files": {**GOOD, "new": [{"base": 0, "files": []}]},
    "a snapshot": {**GOOD, "new": [{"base": 0, "files": ["log", "snapshot"]}]},
    "an unknown file": {**GOOD, "new": [{"base": 0, "files": ["log", "../../etc"]}]},
    "files are nothing": {**GOOD, "new": [{"base": 0, "files": None}]},
    "a file of no name": {**GOOD, "new": [{"base": 0, "files": ["log", ["index"]]}]},
}


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("what", BAD_INTENTS)
def test_a_damaged_intent_is_refused_and_nothing_is_touched(what: str, tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    cut_swap(SCENES[0], directory, 9)
    bad = BAD_INTENTS[what]
    (directory / INTENT).write_bytes(bad if isinstance(bad, bytes) else sealed(bad))
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(CorruptionError, match="swap intent") as caught:
        finish_swap(FS, str(directory))
    assert caught.value.file == str(directory / INTENT)
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.requirement("RCV-5")
def test_every_flip_of_an_intents_bits_is_refused() -> None:
    good = sealed(GOOD)
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_intent(bytes(data))


def test_a_swap_asks_for_its_own_files_only(tmp_path: Path) -> None:
    """Thousands of groups in one directory: listing it for each would take hours."""

    class Unlisted(LocalFileSystem):
        def list_directory(self, path: str) -> list[str]:
            raise AssertionError(path)

    scene = SCENES[0]
    directory = tmp_path / "orders-0"
    replacement = set_up(scene, directory)
    swap(Unlisted(), str(directory), replacement)
    assert live(directory) == new_content(scene)
