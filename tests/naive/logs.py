"""Random partition directories, as Kafka could have left them, for tests of any cleaner.

`write_random_log` is deterministic: the same seed and features give the same bytes and file times
on every machine (compressed batches depend on the versions of the codec libraries). Everything a
round of cleaning needs beside the directory comes back as `Inputs`.

Plausible means: offsets increase, sequence numbers follow, a producer's transactional data ends
with one marker, epochs rise; transaction indexes and snapshots are those that a fold over the
batches gives. What lies below a checkpoint was cleaned, by the naive cleaner at an earlier hour;
otherwise a tombstone there could go and an older value of its key stay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.naive import files
from tests.naive.cleaner import clean, replace_segments
from tests.naive.plan import Inputs
from tests.naive.producers import ProducerStates
from tests.naive.random_batches import HOUR_MS, NOW_MS, PLAIN, VERSION_HEADER, Features, Writer

__all__ = ["PLAIN", "Features", "RandomLog", "write_random_log"]

PRODUCER_EXPIRATION_MS = 24 * HOUR_MS


@dataclass(frozen=True)
class RandomLog:
    """`partition` is the directory; the checkpoint files lie beside it."""

    partition: Path
    inputs: Inputs


def write_random_log(
    seed: int | Random,
    log_dir: Path,
    features: Features | None = None,
    *,
    topic: str = "random",
    number: int = 0,
) -> RandomLog:
    """Write the partition `<topic>-<number>` into the existing directory `log_dir`."""
    random = seed if isinstance(seed, Random) else Random(seed)
    features = features or Features()
    writer = Writer(random, features)
    for _ in range(random.randint(features.batches // 2, features.batches)):
        writer.step()
    writer.finish()
    partition = log_dir / f"{topic}-{number}"
    partition.mkdir()
    return _store(writer, partition)


def _store(writer: Writer, partition: Path) -> RandomLog:
    random, features = writer.random, writer.features
    interval_bytes = random.choice([0, 300, 4096])
    states = ProducerStates()
    for segment in writer.segments:
        if segment.base > writer.segments[0].base:
            _write_snapshot(partition, segment.base, states)
        aborted = [entry for entry in map(states.read, segment.batches) if entry is not None]
        newest = max((batch.max_timestamp for batch in segment.batches), default=writer.time_ms)
        files.write_segment(
            partition,
            segment.base,
            b"".join(batch.raw for batch in segment.batches),
            aborted,
            interval_bytes=interval_bytes,
            mtime_ms=max(newest, writer.start_ms) // 1000 * 1000,
        )
    log_end_offset = states.next_offset if writer.segments[-1].batches else writer.segments[-1].base
    states.next_offset = log_end_offset
    _write_snapshot(partition, log_end_offset, states)
    epochs = dict.fromkeys(b.leader_epoch for s in writer.segments for b in s.batches)
    lines = [f"{epoch} {_first_offset(writer, epoch)}\n" for epoch in epochs if epoch >= 0]
    (partition / "leader-epoch-checkpoint").write_text(f"0\n{len(lines)}\n{''.join(lines)}")

    small_map = features.small_map and writer.chance(0.25)
    inputs = Inputs(
        settings=_settings(writer, interval_bytes),
        now_ms=NOW_MS,
        log_start_offset=writer.segments[0].base,
        last_stable_offset=states.last_stable_offset,
        log_end_offset=log_end_offset,
        active_producers=_active(states, NOW_MS),
        dedupe_buffer_bytes=random.choice([240, 480]) if small_map else 1 << 20,
        load_factor=random.choice([0.5, 0.9, 1.0]),
    )
    if features.checkpoints and writer.chance(0.6):
        inputs = _clean_before(writer, partition, inputs, states)
    if features.log_start and writer.chance(0.2):
        inputs = _delete_records(writer, partition, inputs)
    return RandomLog(partition, inputs)


def _clean_before(
    writer: Writer, partition: Path, inputs: Inputs, states: ProducerStates
) -> Inputs:
    """Clean a first part of the log as of an earlier time. The checkpoint is then where that round
    ended; now and then it was lost in part, or lies past the log's end."""
    random = writer.random
    earlier_ms = NOW_MS - random.choice([1, HOUR_MS, 24 * HOUR_MS])
    upper = random.choice(writer.segments).base
    round_before = replace(
        inputs,
        now_ms=earlier_ms,
        last_stable_offset=min(upper, inputs.last_stable_offset),
        active_producers=_active(states, earlier_ms),
    )
    result = clean(partition, round_before)
    replace_segments(result, partition, round_before)
    checkpoint = random.choice([result.end_offset] * 6 + [inputs.log_end_offset + 5])
    if writer.chance(0.15):
        checkpoint = random.randint(inputs.log_start_offset, result.end_offset)
    _write_checkpoint(partition, "cleaner-offset-checkpoint", checkpoint)
    return replace(inputs, checkpoint=checkpoint)


def _delete_records(writer: Writer, partition: Path, inputs: Inputs) -> Inputs:
    """Move the log start into the first segments."""
    bases = [int(path.stem) for path in sorted(partition.glob("*.log"))]
    limit = min(bases[min(2, len(bases) - 1)], inputs.last_stable_offset)
    log_start_offset = writer.random.randint(bases[0], max(bases[0], limit))
    _write_checkpoint(partition, "log-start-offset-checkpoint", log_start_offset)
    return replace(inputs, log_start_offset=log_start_offset)


def _active(states: ProducerStates, now_ms: int) -> dict[int, tuple[int, int | None]]:
    return {
        producer.producer_id: states.active[producer.producer_id]
        for producer in states.producers.values()
        if producer.txn_first_offset >= 0 or now_ms - producer.timestamp < PRODUCER_EXPIRATION_MS
    }


def _settings(writer: Writer, interval_bytes: int) -> dict[str, str]:
    random, features = writer.random, writer.features
    settings = {
        "cleanup.policy": "compact",
        "delete.retention.ms": random.choice(["0", "60000", "86400000"]),
        "index.interval.bytes": str(interval_bytes),
        "min.cleanable.dirty.ratio": "0",
        "segment.bytes": str(writer.segment_bytes),
        "segment.index.bytes": random.choice(["24", "240", "10485760"]),
    }
    if features.versions:
        settings["compaction.strategy"] = random.choice(["timestamp", "header"])
        settings["compaction.strategy.header"] = VERSION_HEADER.decode()
    if features.min_lag and writer.chance(0.15):
        age_ms = NOW_MS - random.randint(writer.start_ms, writer.time_ms)
        settings["min.compaction.lag.ms"] = str(max(age_ms, 0))
    return settings


def _first_offset(writer: Writer, epoch: int) -> int:
    return min(b.base_offset for s in writer.segments for b in s.batches if b.leader_epoch == epoch)


def _write_snapshot(partition: Path, offset: int, states: ProducerStates) -> None:
    path = partition / files.name(offset, ".snapshot")
    path.write_bytes(files.encode_snapshot(states.producers.values()))
    os.utime(path, (NOW_MS // 1000, NOW_MS // 1000))


def _write_checkpoint(partition: Path, name: str, offset: int) -> None:
    path = partition.parent / name
    path.write_text(files.encode_checkpoint({partition.name: offset}))
