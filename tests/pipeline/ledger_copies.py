"""Logs in ledger mode, their copies at other locations, and what these hold, for the tests."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.location_manifest import MANIFEST, Manifest, decode
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.book import SettingsBook
from stratalog.ledger.manifest import generation_path, read_manifest
from stratalog.pipeline import remote
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.control import ControlType
from tests.log.helpers import NOW, open_log
from tests.pipeline.object_server import ObjectServer

DISK = LocalFileSystem()
WORDS = {
    "cleanup.policy": "delete",
    "compaction.mode": "ledger",
    "internal.segment.bytes": "3000",
    "delete.retention.ms": "1500",
}
BOOK = SettingsBook(topics={"orders": WORDS}, defaults=remote.COMPACTED)
SEGMENT_BYTES = 2000


def grow(log_dir: Path, random: Random, turn: int) -> None:
    """Something is appended to both partitions: new keys and old ones, tombstones, transactions
    that commit, abort or stay open; now and then retention takes what the ledgers have."""
    for number in range(2):
        path = log_dir / f"orders-{number}"
        with open_log(path, segment_bytes=SEGMENT_BYTES) as log:
            for _ in range(random.randint(0, 25)):
                log.append_records(some(random, turn))
            for producer in range(random.randint(0, 2)):
                transaction(log, random, 100 * turn + producer)
        if random.random() < 0.4:
            cut(path)


def some(random: Random, turn: int) -> list[NewRecord]:
    return [
        NewRecord(
            f"k{random.randrange(40)}".encode(),
            None if random.random() < 0.2 else random.randbytes(random.randrange(60)),
            NOW + turn,
        )
        for _ in range(random.randint(1, 4))
    ]


def transaction(log: Any, random: Random, producer: int) -> None:
    named = {"producer_id": producer, "producer_epoch": 0}
    log.append(build_batch(some(random, 0), **named, base_sequence=0, transactional=True))
    if random.random() < 0.8:
        kind = random.choice([ControlType.COMMIT, ControlType.ABORT])
        log.append_marker(kind, **named)


def cut(path: Path) -> None:
    """Retention: segments below the ledger's horizon go, but for the last one."""
    current = read_manifest(DISK, str(path)).current
    if current is None:
        return
    below = sorted(int(p.stem) for p in path.glob("*.log") if int(p.stem) <= current.horizon)
    for base in below[:-1]:
        for file in path.glob(f"{base:020d}.*"):
            file.unlink()


def beside(log_dir: Path, now_ms: int) -> dict[str, bytes]:
    """The ledgers beside the logs after a run: `partition/file` -> bytes."""
    compact(
        [str(log_dir)],
        CompactionOptions(Mode.IN_PLACE, BOOK.of_broker(), settings_of=BOOK.of),
        lambda: LocalEngine(DISK, threads=1),
        DISK,
        FixedClock(now_ms),
        lambda _: None,
    )
    found: dict[str, bytes] = {}
    for path in log_dir.glob("orders-?"):
        current = read_manifest(DISK, str(path)).current
        for part in current.segments if current else ():
            directory = Path(generation_path(str(path), part.generation))
            for file in directory.glob(f"{part.base_offset:020d}.*"):
                found[f"{path.name}/{file.name}"] = file.read_bytes()
    return {name: content for name, content in found.items() if content}


def segments(files: dict[str, bytes]) -> dict[str, bytes]:
    """Of all files of a location those with batches or entries, in the generation that counts."""
    directory = decode(files[MANIFEST], MANIFEST).directory
    return {
        name.removeprefix(f"{directory}/"): content
        for name, content in files.items()
        if name.startswith(f"{directory}/")
        and name.endswith((".log", ".index", ".timeindex", ".txnindex"))
        and content
    }


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def by_threads(log_dir: Path, out: Path, now_ms: int) -> CompactionReport:
    return compact(
        [str(log_dir)],
        CompactionOptions(Mode.OUT, BOOK.of_broker(), str(out), settings_of=BOOK.of),
        lambda: LocalEngine(DISK, threads=1),
        DISK,
        FixedClock(now_ms),
        lambda _: None,
    )


def one_log(tmp_path: Path, *, keys: int = 30, at: int = 0) -> Path:
    log_dir = tmp_path / "data"
    with open_log(log_dir / "orders-0", segment_bytes=SEGMENT_BYTES) as log:
        for number in range(at, at + 200):
            key = f"k{number % keys}".encode()
            log.append_records([NewRecord(key, b"v%d" % number, NOW)])
    return log_dir


def manifest_in(s3: ObjectServer, *parts: str) -> Manifest:
    return decode(s3.contents(*parts)[MANIFEST], MANIFEST)
