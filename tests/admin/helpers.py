"""Logs to work on, and what a directory holds, for the tests of admin and cli."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine, Progress
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import resolve
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from tests.oracle import Round

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DISK = LocalFileSystem()


def records(
    keys: Iterable[str], value: str | None = "value", at_ms: int = NOW_MS
) -> list[NewRecord]:
    """A record for each key, in order; values are told apart by their place."""
    return [
        NewRecord(key.encode(), None if value is None else f"{value}-{place}".encode(), at_ms)
        for place, key in enumerate(keys)
    ]


def write_log(
    partition: Path,
    segments: Sequence[Sequence[Sequence[NewRecord]]],
    *,
    codec: Codec = Codec.NONE,
    rolls_last: bool = False,
    policy: tuple[str, ...] = ("compact",),
) -> Path:
    """A closed log of segments of batches of records; `rolls_last`: an empty segment follows."""
    settings = LogSettings(cleanup_policy=policy)
    partition.parent.mkdir(parents=True, exist_ok=True)
    with PartitionLog.open(str(partition), settings, DISK, FixedClock(NOW_MS), create=True) as log:
        for place, batches in enumerate(segments):
            for batch in batches:
                log.append_records(batch, codec=codec)
            if rolls_last or place + 1 < len(segments):
                log.roll()
    for path in partition.iterdir():
        os.utime(path, ns=(NOW_MS * 1_000_000, NOW_MS * 1_000_000))
    return partition


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """What lies below `root`: path -> (digest, time in ms of `.log` files); not `.lock`."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.name != ".lock":
            digest = "directory" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
            modified_ms = path.stat().st_mtime_ns // 1_000_000 if path.suffix == ".log" else 0
            found[str(path.relative_to(root))] = digest, modified_ms
    return found


def settings_of(kafka: Round) -> dict[str, str]:
    """The settings of a round of Kafka's cleaner as they are given to `compact`."""
    given = dict(kafka.settings)
    given["internal.segment.bytes"] = given.pop("segment.bytes")
    given["log.cleaner.dedupe.buffer.size"] = str(kafka.dedupe_buffer_bytes)
    given["log.cleaner.io.buffer.load.factor"] = str(kafka.load_factor)
    given["producer.id.expiration.ms"] = str(kafka.producer_expiration_ms)
    return given


def local_engine() -> Engine:
    return LocalEngine(DISK, threads=2)


def run(
    targets: Sequence[Path],
    mode: Mode,
    *,
    out: Path | None = None,
    keep_active: bool = False,
    given: Mapping[str, str] | None = None,
    now_ms: int = NOW_MS,
    engine: Callable[[], Engine] = local_engine,
    on_progress: Callable[[Progress], None] = lambda _: None,
    top: int = 0,
    gives_up_ledgers: bool = False,
) -> CompactionReport:
    """`compact` with the local engine."""
    settings = resolve(given or {}, {"cleanup.policy": ("compact",)})
    target = None if out is None else str(out)
    return compact(
        [str(one) for one in targets],
        CompactionOptions(
            mode, settings, target, keep_active, top, gives_up_ledgers=gives_up_ledgers
        ),
        engine,
        DISK,
        FixedClock(now_ms),
        on_progress,
    )


def copy_of(source: Path, target: Path) -> Path:
    """A copy of a directory with its times."""
    shutil.copytree(source, target)
    return target
