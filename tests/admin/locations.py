"""Runs of `compact --out` in ledger mode, and what they leave, for the tests of locations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.location_manifest import MANIFEST, Manifest, decode
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.book import SettingsBook
from stratalog.ledger.manifest import generation_path, read_manifest
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from tests.admin.helpers import NOW_MS, local_engine, records, run, tree

DISK = LocalFileSystem()
LEDGER = {"compaction.mode": "ledger", "cleanup.policy": "delete", "delete.retention.ms": "1000"}


def make(*logs: Path, out: Path | None, now_ms: int = NOW_MS, **given: str) -> CompactionReport:
    """A run: at `out`, or, with None, beside the log."""
    named = {**LEDGER, **{name.replace("_", "."): value for name, value in given.items()}}
    mode = Mode.IN_PLACE if out is None else Mode.OUT
    return run(list(logs), mode, out=out, given=named, now_ms=now_ms)


def manifest_of(out: Path) -> Manifest:
    return decode((out / MANIFEST).read_bytes(), str(out / MANIFEST))


def current(out: Path) -> Path:
    return out / manifest_of(out).directory


def append(log: Path, keys: Sequence[str], *, rolls: bool = False) -> None:
    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        if rolls:
            opened.roll()
        opened.append_records(records(keys))
    for path in log.glob("*.log"):
        os.utime(path, ns=(NOW_MS * 1_000_000, NOW_MS * 1_000_000))


def held(partition: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """What a log holds, to whoever opens it."""
    with PartitionLog.open(
        str(partition), LogSettings(), DISK, FixedClock(NOW_MS), read_only=True
    ) as opened:
        view = opened.view
        assert view.last_stable_offset == view.log_end_offset
        found = view.read_records(view.log_start_offset)
        return [(record.offset, record.key, record.value) for record in found]


def segments(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex") and path.stat().st_size
    }


def beside(log: Path) -> dict[str, bytes]:
    """The files of the ledger in use beside a log."""
    one = read_manifest(DISK, str(log)).current
    assert one is not None
    found: dict[str, bytes] = {}
    for part in one.segments:
        files = segments(Path(generation_path(str(log), part.generation)))
        found |= {n: c for n, c in files.items() if n.startswith(f"{part.base_offset:020d}")}
    return found


def cut_start(log: Path, offset: int) -> None:
    """What retention does: segments below `offset` go, and the log begins there."""
    kept = max(int(path.stem) for path in log.glob("*.log") if int(path.stem) <= offset)
    for path in log.iterdir():
        if path.stem.isdigit() and int(path.stem) < kept:
            path.unlink()
    (log.parent / "log-start-offset-checkpoint").write_text(f"0\n1\norders 0 {offset}\n")


def refused(*logs: Path, out: Path, match: str, **given: str) -> None:
    """A run that changes nothing, and says why in one line."""
    before = tree(out) if out.exists() else None
    with pytest.raises((UsageError, CorruptionError), match=match) as caught:
        make(*logs, out=out, **given)
    assert "\n" not in str(caught.value)
    assert (tree(out) if out.exists() else None) == before


def flip_last(path: Path) -> None:
    """Only a checksum of the records tells."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def run_mixed(directory: Path, out: Path, book: dict[str, dict[str, str]]) -> Any:
    settings = SettingsBook(topics=book, defaults={"cleanup.policy": ("compact",)})
    options = CompactionOptions(Mode.OUT, settings.of_broker(), str(out), settings_of=settings.of)
    return compact(
        [str(directory)], options, local_engine, DISK, FixedClock(NOW_MS), lambda _: None
    )
