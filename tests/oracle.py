"""The rounds that Apache Kafka's own cleaner ran, and how to tell whether another did the same.

`rounds()` lists every round whose state before it is in the archives, with Kafka's answer. From
`tests.compare`: `compare_partitions` names the differences that matter between two partition
directories, `index_problems` what is wrong with a directory's indexes, and `fold` is the state
that a log stands for: the latest value of each key (CMP-18).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.archives import corpus_path, golden_path
from tests.compare import (
    compare_partitions,
    fold,
    fold_by_index,
    index_problems,
    log_start_offset,
)
from tests.naive import files
from tests.naive.plan import DEFAULTS, Inputs

__all__ = [
    "Round",
    "active_producers",
    "compare_partitions",
    "corpus_rounds",
    "fold",
    "fold_by_index",
    "golden_rounds",
    "index_problems",
    "log_start_offset",
    "rounds",
]


@dataclass(frozen=True)
class Round:
    """One round of cleaning. Directories are log directories; the partition lies in `partition`.

    `settings` are the topic's under Kafka's names, defaults included. Offsets as Kafka reported
    them: `end_offset` is the new checkpoint of a round that `cleaned`; `first_uncleanable` is
    already moved down to its segment's base; all three are None if there was nothing to clean.
    `active_producers`: id -> (epoch, last data offset).
    `stats` is what Kafka counted; golden rounds know fewer of them than corpus rounds.
    """

    name: str
    before_dir: Path
    after_dir: Path
    partition: str
    settings: Mapping[str, str]
    now_ms: int
    dedupe_buffer_bytes: int
    load_factor: float
    io_buffer_bytes: int
    producer_expiration_ms: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    active_segment_base_offset: int
    checkpoint_before: int | None
    checkpoint_after: int | None
    cleaned: bool
    first_dirty: int | None
    first_uncleanable: int | None
    end_offset: int | None
    active_producers: Mapping[int, tuple[int, int | None]]
    stats: Mapping[str, int]

    @property
    def before(self) -> Path:
        return self.before_dir / self.partition

    @property
    def after(self) -> Path:
        return self.after_dir / self.partition

    @property
    def inputs(self) -> Inputs:
        """The same for the naive cleaner."""
        return Inputs(
            settings=self.settings,
            now_ms=self.now_ms,
            log_start_offset=self.log_start_offset,
            last_stable_offset=self.last_stable_offset,
            log_end_offset=self.log_end_offset,
            checkpoint=self.checkpoint_before,
            active_producers=self.active_producers,
            dedupe_buffer_bytes=self.dedupe_buffer_bytes,
            load_factor=self.load_factor,
        )


@cache
def rounds() -> tuple[Round, ...]:
    return (*golden_rounds(), *corpus_rounds())


@cache
def golden_rounds() -> tuple[Round, ...]:
    """The rounds of the golden fixtures whose state before is kept: 19 fixtures, 26 rounds."""
    found: list[Round] = []
    for how in sorted(golden_path().glob("*/HOW.txt")):
        found.extend(_rounds_of_fixture(how))
    return tuple(found)


@cache
def corpus_rounds() -> tuple[Round, ...]:
    """The rounds of the random corpus, those in which there was nothing to clean included."""
    found: list[Round] = []
    for spec in sorted(corpus_path().glob("log-*/spec.json")):
        content = json.loads(spec.read_text())
        found.extend(_corpus_round(spec.parent, content, entry) for entry in content["rounds"])
    return tuple(found)


def active_producers(
    partition: Path, now_ms: int, expiration_ms: int
) -> dict[int, tuple[int, int | None]]:
    """Of the newest snapshot, the producers that opening the log at `now_ms` leaves alive."""
    newest = files.newest_snapshot(partition)
    producers = [] if newest is None else files.read_snapshot(newest)
    return {
        p.producer_id: (p.epoch, p.last_offset if p.last_offset >= 0 else None)
        for p in producers
        if p.txn_first_offset >= 0 or now_ms - p.timestamp < expiration_ms
    }


def _rounds_of_fixture(how: Path) -> Iterator[Round]:
    """HOW.txt tells what was done line by line; a round counts if it stands right between two
    kept states."""
    fixture = how.parent
    settings: dict[str, str] = {}
    state: str | None = None
    pending: tuple[str, dict[str, Any]] | None = None
    last_stable = -1
    for line in how.read_text().splitlines():
        step = line.split(":", 1)[0]
        if step == "topic config":
            settings = dict(item.split("=") for item in line.split(": ", 1)[1].split(", "))
        elif step == "write":
            last_stable = int(re.findall(r"last stable offset (\d+)", line)[0])
            state = None
        elif step.startswith("clean "):
            pending = None if state is None else (state, json.loads(line[line.index("{") :]))
            state = None
        elif step == "snapshot":
            state = line.split()[1].rstrip("/")
            if pending is not None:
                yield _golden_round(fixture, settings, *pending, state, last_stable)
            pending = None


def _golden_round(
    fixture: Path,
    settings: Mapping[str, str],
    before: str,
    report: Mapping[str, Any],
    after: str,
    last_stable: int,
) -> Round:
    partition = "golden-0"
    expiration_ms = 86_400_000
    segments = files.read_segments(fixture / before / partition)

    def checkpoint(state: str) -> int | None:
        path = fixture / state / "cleaner-offset-checkpoint"
        return files.read_checkpoint(path).get(partition)

    return Round(
        name=f"{fixture.name}/{after}",
        before_dir=fixture / before,
        after_dir=fixture / after,
        partition=partition,
        settings={**DEFAULTS, **settings},
        now_ms=report["now"],
        dedupe_buffer_bytes=report["dedupe_buffer"],
        load_factor=0.9,
        io_buffer_bytes=report["io_buffer"],
        producer_expiration_ms=expiration_ms,
        log_start_offset=segments[0].base,
        log_end_offset=segments[-1].next_offset,
        last_stable_offset=last_stable,
        active_segment_base_offset=segments[-1].base,
        checkpoint_before=checkpoint(before),
        checkpoint_after=checkpoint(after),
        cleaned=report["cleaned"],
        first_dirty=report["first_dirty"],
        first_uncleanable=report["first_uncleanable"],
        end_offset=report["end_offset"],
        active_producers=active_producers(
            fixture / before / partition, report["now"], expiration_ms
        ),
        stats={
            "messages_read": report["records_in"],
            "messages_written": report["records_out"],
            "invalid_messages_read": report["invalid"],
        },
    )


def _corpus_round(log: Path, content: Mapping[str, Any], entry: Mapping[str, Any]) -> Round:
    cleaned = entry["cleaned"]
    stats = {k: v for k, v in (entry.get("stats") or {}).items() if isinstance(v, int)}
    for key in ("map_entries", "first_uncleanable_dirty_offset", "cleanable_bytes", "total_bytes"):
        if cleaned:
            stats[key] = entry[key]
    return Round(
        name=f"{log.name}/r{entry['round']}",
        before_dir=log / entry["state_before"],
        after_dir=log / entry["state_after"],
        partition=f"{content['topic']}-{content['partition']}",
        settings={**DEFAULTS, **content["topic_config_at_clean"]},
        now_ms=entry["now_ms"],
        dedupe_buffer_bytes=entry["dedupe_buffer_bytes"],
        load_factor=entry["load_factor"],
        io_buffer_bytes=entry["io_buffer_bytes"],
        producer_expiration_ms=entry["producer_expiration_ms"],
        log_start_offset=entry["log_start_offset"],
        log_end_offset=entry["log_end_offset"],
        last_stable_offset=entry["last_stable_offset"],
        active_segment_base_offset=entry["active_segment_base_offset"],
        checkpoint_before=entry["checkpoint_before"],
        checkpoint_after=entry["checkpoint_after"],
        cleaned=cleaned,
        first_dirty=entry["first_dirty_offset"] if cleaned else None,
        first_uncleanable=entry["first_uncleanable_offset"] if cleaned else None,
        end_offset=entry["end_offset"] if cleaned else None,
        active_producers={
            p["producer_id"]: (p["epoch"], p["last_data_offset"]) for p in entry["active_producers"]
        },
        stats=stats,
    )
