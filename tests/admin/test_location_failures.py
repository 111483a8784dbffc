"""Runs at a location that fail, or that cannot be: one generation counts, and it is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin import location
from stratalog.admin.location_manifest import MANIFEST, Manifest, decode
from stratalog.base.errors import CorruptionError, LogLockedError, UsageError
from stratalog.clean.local_engine import LocalEngine
from stratalog.log.locking import locked
from tests.admin.helpers import records, tree, write_log
from tests.admin.locations import (
    DISK,
    append,
    current,
    held,
    make,
    manifest_of,
    refused,
)

pytestmark = pytest.mark.requirement("LDG-1")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    batches = [[records("abcab"), records("abd")], [records("ca"), records("b")]]
    return write_log(tmp_path / "data" / "orders-0", batches, policy=("delete",))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "copy"


# ---------------------------------------------------------------- failures


def test_places_that_cannot_be_are_refused(log: Path, out: Path, tmp_path: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    refused(log, out=out, match="holds 'thesis.txt': --out wants a place of its own")
    refused(log, out=log.parent / "inside", match="wants a place apart from")
    refused(log, out=log.parent.parent, match="wants a place apart from|holds 'copy'")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is there and is no directory"):
        make(log, out=tmp_path / "file")


def test_one_run_at_a_time(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "q")
    with locked([str(out)], DISK, exclusive=True), pytest.raises(LogLockedError, match="in use"):
        make(log, out=out)


class PowerCutError(BaseException):
    """Nothing is done after it."""


STEPS: list[tuple[Any, str]] = [
    (location, "sweep"),
    (location, "frame_files"),
    (location, "write_checkpoints"),
    (location, "switch"),
    (location, "remove_old"),
    (LocalEngine, "clean"),
    (location.DirectoryTarget, "copy"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
def test_what_is_interrupted_leaves_a_whole_generation(
    log: Path, out: Path, step: tuple[Any, str], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before or after each step, with nobody left to clean up, and with somebody."""
    make(log, out=out)
    make(log, out=out)
    for turn, cleans_up in enumerate((False, True)):
        append(log, "ab")
        old = {"manifest": manifest_of(out), "held": held(current(out) / "orders-0")}
        owner, name = step
        real = getattr(owner, name)

        def cut(*arguments: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            if after:
                real(*arguments, **named)
            raise PowerCutError

        with monkeypatch.context() as patch:
            if not cleans_up:
                patch.setattr(location.DirectoryTarget, "remove", lambda *_: None)
            patch.setattr(owner, name, cut)
            with pytest.raises(PowerCutError):
                make(log, out=out)
        found = manifest_of(out)
        switched = name == "remove_old" or (after and name == "switch")
        assert (found != old["manifest"]) == switched
        if not switched:
            assert held(current(out) / "orders-0") == old["held"]
            if cleans_up:
                assert {path.name for path in out.glob("generation-*")} == {
                    found.directory,
                    *found.kept,
                }
        make(log, out=out)
        append(log, "c")
        make(log, out=out)
        found = manifest_of(out)
        assert [key for _, key, _ in held(current(out) / "orders-0")] == [b"d", b"a", b"b", b"c"]
        assert {path.name for path in out.glob("generation-*")} == {found.directory, *found.kept}
        assert turn in (0, 1)


def test_a_first_run_that_fails_leaves_nothing(
    log: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "clean", interrupt)
    before = tree(log.parent.parent)
    with pytest.raises(KeyboardInterrupt):
        make(log, out=out)
    assert tree(log.parent.parent) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, partitions=m.partitions * 2),
        lambda m: replace(m, partitions=(replace(m.partitions[0], partition="../orders-0"),)),
        lambda m: replace(m, partitions=(replace(m.partitions[0], end_offset=5),)),
        lambda m: replace(m, directory="generation-000009-00000000"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(
    log: Path, out: Path, change: Callable[[Manifest], Manifest]
) -> None:
    make(log, out=out)
    append(log, "q")
    (out / MANIFEST).write_bytes(change(manifest_of(out)).encode())
    refused(log, out=out, match="stratalog-manifest.json")


def test_a_manifest_that_is_gone_is_told(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "q")
    make(log, out=out)
    (out / MANIFEST).unlink()
    gone = "stratalog-manifest.json: is gone, and with it which generation counts"
    refused(log, out=out, match=rf"{gone} \(generation-000002-")


def test_a_manifest_that_leads_nowhere_is_told(log: Path, out: Path) -> None:
    make(log, out=out)
    old = current(out)
    (out / MANIFEST).unlink()
    (out / MANIFEST).symlink_to(out / "nowhere")
    with pytest.raises(CorruptionError, match="is gone"):
        make(log, out=out)
    assert len(held(old / "orders-0")) == 4


def test_any_changed_byte_of_a_manifest_is_noticed(log: Path, out: Path) -> None:
    make(log, out=out)
    content = (out / MANIFEST).read_bytes()
    manifest = decode(content, "m")
    for position in range(0, len(content), 3):
        for flip in (1, 4, 32):
            changed = bytearray(content)
            changed[position] ^= flip
            try:
                assert decode(bytes(changed), "m") == manifest
            except CorruptionError as error:
                assert error.file == "m"


def test_a_copy_that_nobody_named_and_that_is_damaged_is_told(log: Path, out: Path) -> None:
    other = write_log(log.parent / "orders-1", [[records("ab")]], policy=("delete",))
    make(log, other, out=out)
    append(log, "q")
    (current(out) / "orders-1" / f"{0:020d}.log").unlink()
    refused(log, out=out, match="is not what the manifest says; name the partition's log, too")
    make(log, other, out=out)
    assert len(held(current(out) / "orders-1")) == 2
