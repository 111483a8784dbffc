"""Whether two partition directories hold the same log, and what state a log stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import iter_unpack

from tests.naive import files
from tests.naive.records import COMMIT, Batch, Record, parse_log
from tests.naive.versions import version_of


def compare_partitions(expected: Path, actual: Path, before: Path | None = None) -> list[str]:
    """What differs between two partition directories that should hold the same log, one line each.

    Compared: segments, files that a swap leaves behind, the bytes of `.log` files without
    compression, header fields and records of the others, times of `.log` files, `.txnindex` bytes,
    which snapshots exist, and `cleaner-offset-checkpoint` beside the partition. Not compared:
    `.index` and `.timeindex` (Kafka's depend on its I/O buffer), and snapshots that any opening of
    the log removes. With `before`, a compressed batch that `expected` copied from there must be
    copied in `actual` too.
    """
    found = [
        f"{path.name}: left over"
        for suffix in ("cleaned", "swap", "part", "tmp")
        for path in sorted(actual.glob(f"*.{suffix}"))
    ]
    bases = _bases(expected, ".log")
    if bases != _bases(actual, ".log"):
        return [f"segments: expected {bases}, actual {_bases(actual, '.log')}"]
    untouched = frozenset[bytes]()
    if before is not None:
        untouched = frozenset(
            batch.raw for path in before.glob("*.log") for batch in parse_log(path.read_bytes())
        )
    for base in bases:
        log, txn_index = files.name(base, ".log"), files.name(base, ".txnindex")
        found += _log_differences(expected / log, actual / log, untouched)
        times = [
            (directory / log).stat().st_mtime_ns // 1_000_000 for directory in (expected, actual)
        ]
        if times[0] != times[1]:
            found.append(f"{log}: modified {times[0]}, actual {times[1]}")
        if files.read_txn_index(expected / txn_index) != files.read_txn_index(actual / txn_index):
            found.append(f"{txn_index}: differs")
        if (expected / txn_index).exists() != (actual / txn_index).exists():
            found.append(f"{txn_index}: expected {(expected / txn_index).exists()} to exist")
    found += _snapshot_differences(expected, actual)
    checkpoints = [
        directory.parent / "cleaner-offset-checkpoint" for directory in (expected, actual)
    ]
    # Kafka makes the file as it starts, with 0 bytes.
    texts = [_without_blanks(path) if path.exists() else "" for path in checkpoints]
    if texts[0] != texts[1]:
        found.append(f"checkpoint: expected {texts[0]!r}, actual {texts[1]!r}")
    return found


def _without_blanks(path: Path) -> str:
    """A checkpoint as Kafka reads it: our checksum is in the blanks behind its last line."""
    return "".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines())


def _bases(partition: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob(f"*{suffix}"))


def _log_differences(expected: Path, actual: Path, untouched: frozenset[bytes]) -> list[str]:
    data = expected.read_bytes(), actual.read_bytes()
    if data[0] == data[1]:
        return []
    batches = parse_log(data[0]), parse_log(data[1])
    if len(batches[0]) != len(batches[1]):
        return [f"{expected.name}: {len(batches[0])} batches, actual {len(batches[1])}"]
    found = []
    for one, other in zip(*batches, strict=True):
        where = f"{expected.name}: batch at offset {one.base_offset}"
        if one.raw == other.raw:
            continue
        if one.raw in untouched:
            found.append(f"{where}: not copied")
        fields = _comparable(one), _comparable(other)
        if fields[0] != fields[1]:
            found.append(f"{where}: expected {fields[0]}, actual {fields[1]}")
        elif not other.crc_ok():
            found.append(f"{where}: checksum")
        elif not one.codec:
            found.append(f"{where}: same fields, other bytes")
        elif one.records() != other.records():
            found.append(f"{where}: expected {one.records()}, actual {other.records()}")
    if sum(len(b.raw) for b in batches[1]) != len(data[1]):
        found.append(f"{expected.name}: ends within a batch")
    return found


def _comparable(batch: Batch) -> tuple[int, ...]:
    return (
        batch.magic,
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.attributes,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count,
    )


def _snapshot_differences(expected: Path, actual: Path) -> list[str]:
    wanted, there = set(_bases(expected, ".snapshot")), set(_bases(actual, ".snapshot"))
    extra = there - wanted
    # Opening a log removes those at or below its start, and stray ones but for the newest.
    log_start = log_start_offset(expected)
    kept_by_opening = set(_bases(expected, ".log")) | {max(there, default=-1)}
    extra = {base for base in extra if base > log_start and base in kept_by_opening}
    return [f"snapshots missing: {sorted(wanted - there)}"] * bool(wanted - there) + [
        f"snapshots left over: {sorted(extra)}"
    ] * bool(extra)


def log_start_offset(partition: Path) -> int:
    """What DeleteRecords moved it to, else the base of the first segment."""
    moved = files.read_checkpoint(partition.parent / "log-start-offset-checkpoint")
    return max(moved.get(partition.name, 0), min(_bases(partition, ".log")))


def fold(
    partition: Path,
    settings: Mapping[str, str] | None = None,
    end: int = 1 << 63,
    *,
    commits: bool = False,
) -> dict[bytes, bytes]:
    """The latest value of each key for a reader of committed data from the log start on, up to
    `end`. The settings say which record is the latest; without any it is the last. `commits`: as
    if every open transaction were committed now.

    Deleted keys are absent; records of aborted transactions do not count, nor does anything from
    the first open transaction on. The fate of a transaction is read from its marker, not from the
    transaction index.
    """
    start = log_start_offset(partition)
    open_data: dict[int, list[Record]] = {}
    open_since: dict[int, int] = {}
    committed: list[Record] = []
    for path in sorted(partition.glob("*.log")):
        for batch in parse_log(path.read_bytes()):
            if batch.control and batch.count:
                data = open_data.pop(batch.producer_id, [])
                open_since.pop(batch.producer_id, None)
                committed += data if batch.control_type() == COMMIT else []
            elif batch.last_offset < start:
                continue  # the cleaner may drop the markers of what lies below the log start
            elif batch.transactional and not batch.control:
                open_since.setdefault(batch.producer_id, batch.base_offset)
                open_data.setdefault(batch.producer_id, []).extend(batch.records())
            else:
                committed += batch.records()
    if commits:
        committed += [record for data in open_data.values() for record in data]
        open_since.clear()
    last_stable_offset = min(open_since.values(), default=1 << 63)
    state: dict[bytes, bytes] = {}
    for record in sorted(committed, key=lambda r: (version_of(r, settings or {}), r.offset)):
        if record.key is None or not start <= record.offset < min(end, last_stable_offset):
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def fold_by_index(partition: Path, last_stable_offset: int) -> dict[bytes, bytes]:
    """The same, with aborted transactions read from the transaction indexes, as consumers do."""
    start = log_start_offset(partition)
    aborted = [
        entry
        for base in _bases(partition, ".txnindex")
        for entry in files.read_txn_index(partition / files.name(base, ".txnindex"))
    ]
    state: dict[bytes, bytes] = {}
    for path in sorted(partition.glob("*.log")):
        for batch in parse_log(path.read_bytes()):
            hidden = batch.control or (
                batch.transactional
                and any(
                    entry.producer_id == batch.producer_id
                    and entry.first_offset <= batch.base_offset <= entry.last_offset
                    for entry in aborted
                )
            )
            for record in [] if hidden else batch.records():
                if record.key is None or not start <= record.offset < last_stable_offset:
                    continue
                if record.value is None:
                    state.pop(record.key, None)
                else:
                    state[record.key] = record.value
    return state


def index_problems(partition: Path) -> list[str]:
    """What is wrong with the `.index` and `.timeindex` files, which no two cleaners make alike.

    An offset entry must lead no search past its offset: its position is a batch's, and what lies
    before ends below the entry's offset. A time entry must name a batch of that timestamp, no
    batch up to there is later, and the last entry has the segment's largest timestamp.
    """
    found = []
    for path in sorted(partition.glob("*.log")):
        base, batches, position = int(path.stem), parse_log(path.read_bytes()), 0
        starts = {}
        for batch in batches:
            starts[position] = batch.base_offset
            position += len(batch.raw)
        entries = [
            (base + offset, at)
            for offset, at in iter_unpack(">ii", path.with_suffix(".index").read_bytes())
        ]
        if entries != sorted(set(entries)):
            found.append(f"{path.stem}.index: not increasing")
        for offset, at in entries:
            if at not in starts or offset < starts[at]:
                found.append(f"{path.stem}.index: offset {offset} at position {at}")
        times = [
            (timestamp, base + offset)
            for timestamp, offset in iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes())
        ]
        if times != sorted(set(times)):
            found.append(f"{path.stem}.timeindex: not increasing")
        for timestamp, offset in times:
            upto = [b for b in batches if b.base_offset <= offset]
            if max((b.max_timestamp for b in upto), default=-1) != timestamp:
                found.append(f"{path.stem}.timeindex: {timestamp} at offset {offset}")
        largest = max((batch.max_timestamp for batch in batches), default=-1)
        if largest != (times[-1][0] if times else -1):
            found.append(f"{path.stem}.timeindex: does not end with {largest}")
    return found
