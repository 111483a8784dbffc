"""Directories that Apache Kafka wrote: they open, say what Kafka says, and we write the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogChangedError
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.partition_log import PartitionLog
from stratalog.log.producer_state import decode_snapshot
from stratalog.log.settings import LogSettings
from stratalog.segment import offset_index, time_index
from stratalog.segment.names import LOG_START_OFFSET_CHECKPOINT, parse_partition_directory
from tests.log.helpers import FS, NOW, contents, kafka_files
from tests.record.dumps import assert_same, read_dump


@dataclass(frozen=True)
class CorpusRound:
    name: str
    log_dir: Path
    partition: Path
    spec: dict[str, Any]
    topic_config: dict[str, str]


def corpus_rounds(corpus_dir: Path) -> Iterator[CorpusRound]:
    for log in sorted(corpus_dir.glob("log-*")):
        spec = json.loads((log / "spec.json").read_text())
        for found in spec["rounds"]:
            state = log / found["state_before"]
            partition = state / f"{spec['topic']}-{spec['partition']}"
            yield CorpusRound(
                f"{log.name}/{state.name}", state, partition, found, spec["topic_config"]
            )


REPLICATED_IN_LARGER_SETS = {"log-006", "log-007", "log-014", "log-025", "log-035", "log-038"}
"""Logs into which several batches were appended at once: Kafka indexes these once per append."""


def states(golden_dir: Path, corpus_dir: Path) -> Iterator[tuple[Path, Path]]:
    """(partition directory, dump) of every state that no swap was interrupted in."""
    for dump in sorted([*golden_dir.rglob("*.dump.jsonl"), *corpus_dir.rglob("*.dump.jsonl")]):
        state = dump.with_name(dump.name.removesuffix(".dump.jsonl"))
        (partition,) = [child for child in state.iterdir() if child.is_dir()]
        if not any(p.suffix in (".cleaned", ".swap") for p in partition.iterdir()):
            yield partition, dump


def settings_of(topic_config: dict[str, str], **changes: Any) -> LogSettings:
    return LogSettings(
        segment_bytes=int(topic_config["segment.bytes"]),
        segment_index_bytes=int(topic_config["segment.index.bytes"]),
        index_interval_bytes=int(topic_config["index.interval.bytes"]),
        **changes,
    )


def open_read_only(
    partition: Path, now_ms: int = NOW, settings: LogSettings | None = None
) -> PartitionLog:
    topic_partition = parse_partition_directory(partition.name)
    assert topic_partition is not None
    starts = read_checkpoint(FS, str(partition.parent / LOG_START_OFFSET_CHECKPOINT))
    return PartitionLog.open(
        str(partition),
        settings or LogSettings(),
        FS,
        FixedClock(now_ms),
        log_start_offset=starts.get(topic_partition),
        read_only=True,
    )


@pytest.mark.sweep
@pytest.mark.requirement("LOG-1", "LOG-3", "LOG-4", "LOG-8")
def test_every_directory_opens_and_reads_as_kafka_reads_it(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen = 0
    for partition, dump in states(golden_dir, corpus_dir):
        log = open_read_only(partition)
        dumped = list(read_dump(dump))
        assert [segment.base_offset for segment in log.segments] == [
            int(segment.file.removesuffix(".log")) for segment in dumped
        ]
        for segment, expected in zip(log.segments, dumped, strict=True):
            found = list(segment.batches())
            assert len(found) == len(expected.batches), partition
            for batch, dumped_batch in zip(found, expected.batches, strict=True):
                assert_same(batch, dumped_batch)
            seen += len(found)
        read = [batch.header.base_offset for batch in log.read_batches(log.log_start_offset, 4096)]
        everything = [
            batch.fields
            for segment in dumped
            for batch in segment.batches
            if batch.fields["last_offset"] >= log.log_start_offset
        ]
        # A compressed message of magic 0 or 1 has its last offset in the field.
        assert read == [
            fields["base_offset"] if fields["magic"] == 2 else fields["last_offset"]
            for fields in everything
        ]
        log.close()
    assert seen > 10_000
    count_cases("batches of Kafka's directories read through a log", seen)


@pytest.mark.sweep
@pytest.mark.requirement("LOG-10")
def test_a_read_at_any_offset_gives_the_next_batch_that_is_there(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen = 0
    for partition, _ in states(golden_dir, corpus_dir):
        log = open_read_only(partition)
        start, end = log.log_start_offset, log.log_end_offset
        last_offsets = [b.header.last_offset for b in log.read_batches(start)]
        step = max((end - start) // 40, 1)
        for offset in range(start, end, step):
            chunk = log.read(offset, 1)
            expected = [last for last in last_offsets if last >= offset]
            found = [b.header.last_offset for b in chunk.batches()]
            assert found, (partition, offset)
            assert found == expected[: len(found)], (partition, offset)
            seen += 1
        assert bytes(log.read(end).data) == b""
    count_cases("offsets read in Kafka's directories", seen)


@pytest.mark.sweep
@pytest.mark.requirement("LOG-3", "CMP-3", "CMP-13", "RET-2")
def test_what_kafka_knew_when_it_opened_the_log(
    corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen = 0
    for found in corpus_rounds(corpus_dir):
        spec = found.spec
        settings = LogSettings(producer_expiration_ms=spec["producer_expiration_ms"])
        log = open_read_only(found.partition, spec["now_ms"], settings)
        assert log.log_start_offset == spec["log_start_offset"], found.name
        assert log.log_end_offset == spec["log_end_offset"], found.name
        assert log.last_stable_offset == spec["last_stable_offset"], found.name
        assert log.segments.active.base_offset == spec["active_segment_base_offset"], found.name
        assert log.active_producers() == {
            entry["producer_id"]: (entry["epoch"], entry["last_data_offset"])
            for entry in spec["active_producers"]
        }, found.name
        segments = [
            {
                "base_offset": segment.base_offset,
                "bytes": segment.size_bytes,
                "largest_timestamp": segment.largest_timestamp_ms(),
                "last_modified": segment.modified_ms,
            }
            for segment in log.segments
        ]
        assert segments == spec["segments_before"], found.name
        seen += 1
    assert seen == 122
    count_cases("rounds whose offsets and producers agree with Kafka's", seen)


@pytest.mark.sweep
@pytest.mark.requirement("LOG-3")
def test_opening_for_reading_changes_nothing_and_for_writing_what_kafka_would(
    corpus_dir: Path, tmp_path: Path
) -> None:
    for found in corpus_rounds(corpus_dir):
        before = contents(found.partition)
        times = {path: path.stat().st_mtime_ns for path in found.partition.iterdir()}
        open_read_only(found.partition, found.spec["now_ms"]).close()
        assert contents(found.partition) == before
        assert {path: path.stat().st_mtime_ns for path in found.partition.iterdir()} == times

        copy = tmp_path / found.name.replace("/", "-")
        shutil.copytree(found.partition, copy)
        log = PartitionLog.open(
            str(copy),
            settings_of(found.topic_config),
            FS,
            FixedClock(found.spec["now_ms"]),
            log_start_offset=found.spec["log_start_offset"],
        )
        log.close()
        after = kafka_files(copy)
        gone = {name for name in before if name not in after}
        # Kafka too removes snapshots at or below the log start when it opens a log.
        assert all(name.endswith(".snapshot") for name in gone), found.name
        if found.name.split("/")[0] in REPLICATED_IN_LARGER_SETS:
            # The active segment's entries that are due are added.
            after = {name: after[name] for name in after if not name.endswith("index")}
        assert {name: before[name] for name in after} == after, found.name


@pytest.mark.sweep
@pytest.mark.requirement("LOG-1", "LOG-3", "LOG-5", "CMP-14")
def test_the_same_batches_appended_here_make_the_same_files(
    golden_dir: Path, corpus_dir: Path, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """Log, all indexes, snapshots and leader epochs, as Kafka wrote them batch by batch."""
    same = 0
    for found in corpus_rounds(corpus_dir):
        log_name, state = found.name.split("/")
        if state != "r1-before" or log_name in REPLICATED_IN_LARGER_SETS:
            continue
        settings = settings_of(found.topic_config)
        copy = tmp_path / log_name
        rewritten(found.partition, copy, settings, found.spec)
        kafka, ours = contents(found.partition), kafka_files(copy)
        # Kafka's files hold snapshots from before the log start moved.
        assert set(ours) <= set(kafka), found.name
        for name, content in ours.items():
            if name.endswith(".snapshot"):
                # Kafka writes producers in the order of its hash map.
                assert by_id(content) == by_id(kafka[name]), (found.name, name)
            else:
                assert content == kafka[name], (found.name, name)
            same += 1
    assert same > 1000
    count_cases("files written here equal to Kafka's", same)


def rewritten(partition: Path, copy: Path, settings: LogSettings, spec: dict[str, Any]) -> None:
    source = open_read_only(partition, spec["now_ms"], settings)
    clock = FixedClock(spec["now_ms"])
    first = source.segments[0].base_offset
    log = PartitionLog.open(str(copy), settings, FS, clock, create=True, log_start_offset=first)
    for segment in source.segments:
        if segment.base_offset > log.segments.active.base_offset:
            assert segment.base_offset >= log.log_end_offset
            if segment.base_offset == log.log_end_offset:
                log.roll()
        for batch in segment.batches():
            log.append_as_follower(batch.data)
    log.advance_log_start(spec["log_start_offset"])
    log.close()


def by_id(snapshot: bytes) -> dict[int, Any]:
    return {entry.producer_id: entry for entry in decode_snapshot(snapshot)}


@pytest.mark.requirement("LOG-5")
def test_segments_of_replicated_batches_begin_at_the_batch(
    golden_dir: Path, tmp_path: Path
) -> None:
    """With gaps between segments, a roll takes the base offset of the batch that caused it."""
    source = open_read_only(golden_dir / "gaps" / "before" / "golden-0")
    batches = list(source.read_batches(0))
    settings = LogSettings(segment_bytes=max(b.header.size_bytes for b in batches))
    log = PartitionLog.open(str(tmp_path / "golden-0"), settings, FS, FixedClock(NOW), create=True)
    for batch in batches:
        log.append_as_follower(batch.data)
    bases = [segment.base_offset for segment in log.segments]
    assert bases[0] == 0
    assert set(bases[1:]) <= {batch.header.base_offset for batch in batches}
    assert log.log_end_offset == source.log_end_offset
    again = [bytes(batch.data) for batch in log.read_batches(0)]
    assert again == [bytes(batch.data) for batch in batches]


@pytest.mark.requirement("RCV-4")
def test_every_index_can_be_made_again_from_the_log(
    golden_dir: Path, corpus_dir: Path, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """The others answer as Kafka's, though ours may be denser; transaction indexes are the same.

    (Those of logs that were never cleaned: where a transaction began is lost with its data.)
    """
    seen = 0
    for partition, _ in states(golden_dir, corpus_dir):
        copy = tmp_path / "copy" / partition.name
        shutil.copytree(partition, copy)
        damaged: dict[str, bytes] = {}
        for path in copy.glob("*.*index"):
            if path.suffix == ".txnindex" and partition.parent.name in ("r1-before", "0-before"):
                damaged[path.name] = path.read_bytes()
                path.write_bytes(b"\x55" * 33)
            elif path.suffix != ".txnindex":
                path.unlink()
        PartitionLog.open(str(copy), LogSettings(), FS, FixedClock(NOW)).close()
        for name, content in damaged.items():
            assert (copy / name).read_bytes() == content, (partition, name)
            seen += 1
        for path in partition.glob("*.timeindex"):
            base = int(path.stem)
            theirs = time_index.decode(path.read_bytes(), base)
            assert time_index.decode((copy / path.name).read_bytes(), base).last == theirs.last
            offset_index.decode((copy / path.name).with_suffix(".index").read_bytes(), base)
        shutil.rmtree(tmp_path / "copy")
    assert seen > 30
    count_cases("transaction indexes made again", seen)


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize(
    ("state", "file"),
    [
        ("2a-cleaned-left", "00000000000000000000.index.cleaned"),
        ("3a-swap-all-old-present", "00000000000000000000.index.swap"),
        ("4a-swap-old-renamed-deleted", "00000000000000000000.index.swap"),
        ("5a-log-renamed-index-still-swap", "00000000000000000000.index.swap"),
    ],
)
def test_readers_are_told_of_an_interrupted_swap_by_name(
    golden_dir: Path, tmp_path: Path, state: str, file: str
) -> None:
    """Its owner resolves it: `test_recovery.py` compares with what Kafka makes of these states."""
    copy = tmp_path / "golden-0"
    shutil.copytree(golden_dir / "crash-states" / state / "golden-0", copy)
    before = contents(copy)
    for may_be_torn in (False, True):
        with pytest.raises(LogChangedError, match=file):
            PartitionLog.open(
                str(copy),
                LogSettings(),
                FS,
                FixedClock(NOW),
                read_only=True,
                may_be_torn=may_be_torn,
            )
    assert contents(copy) == before


@pytest.mark.requirement("RET-8")
def test_what_waits_for_deletion_is_removed_as_kafka_does(golden_dir: Path, tmp_path: Path) -> None:
    fixture = golden_dir / "deleted-pending"
    copy = tmp_path / "golden-0"
    shutil.copytree(fixture / "after-not-yet-deleted" / "golden-0", copy)
    before = contents(copy)
    PartitionLog.open(str(copy), LogSettings(), FS, FixedClock(NOW), read_only=True).close()
    assert contents(copy) == before
    PartitionLog.open(str(copy), LogSettings(), FS, FixedClock(NOW)).close()
    assert kafka_files(copy) == contents(fixture / "after-reopen" / "golden-0")
