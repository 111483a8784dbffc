"""Whether every byte of a log holds together; what does not is listed, and the check goes on.

Of each segment: every batch (length, order, bounds, checksum), every record in it (all fields,
decompressed within the limit), both indexes against the batches, the transaction index against the
markers, and all of them against the segment's digest, if it has one that speaks of this log. Of the
directory: what an interrupted cleaning left, snapshots, the leader epochs, whether whole files or
batches are gone (`lost`), the ledgers (`verify_ledgers`). Of the log directory: the checkpoint
files.

Invariants
- I1  Nothing is changed on disk, and no damage ends the check of other files; within a file it ends
      only where the next batch cannot be found.
- I2  A directory that Kafka or we closed in order has no problems.
- I3  Damage to one batch is one problem: what follows from it elsewhere is left out. An index entry
      that contradicts what is known without the batch is a problem of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stratalog.admin.columns import Secret, chunk_reader, record_columns
from stratalog.admin.digest_checks import check_digest
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.index_checks import BatchTable, check_indexes
from stratalog.admin.lost import look, lost_of
from stratalog.admin.oddities import (
    CHECKPOINTS,
    Preview,
    odd_checkpoints,
    odd_files,
    put_aside,
    read_offsets,
)
from stratalog.admin.verify_ledgers import OfSegment, ledger_damage
from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Chunk, Scratch, Table, damage
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.job import CleanSpec
from stratalog.log import snapshots
from stratalog.log.leader_epochs import read_leader_epochs
from stratalog.log.leftovers import sort_out
from stratalog.log.log_dir import read_log_dir_checkpoint
from stratalog.record import layout
from stratalog.record.control import ControlType
from stratalog.record.kernel import arrays, scan
from stratalog.record.kernel.columns import SIZES
from stratalog.segment.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    MAX_OFFSET,
    STATE_DIRECTORY,
    SWAP_INTENT,
    FileKind,
)
from stratalog.segment.segment import load_aborted, segment_path

_NO_SECRET: Secret = (np.uint64(0), np.uint64(0))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not hold together; `position` in bytes, None: the file as a whole."""

    file: str
    position: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionCheck:
    """What was looked at, and what was found."""

    partition: str
    directory: str
    segments: int
    batches: int
    records: int
    log_bytes: int
    problems: tuple[Problem, ...]

    @property
    def verdict(self) -> str:
        """In words: `sound`, `1 problem`, `2 problems`."""
        count = len(self.problems)
        return f"{count:,} problem{'' if count == 1 else 's'}" if count else "sound"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Check:
    """One partition's check in progress."""

    place: PartitionPlace
    filesystem: FileSystem
    spec: CleanSpec
    scratch: Scratch = field(default_factory=Scratch)
    problems: list[Problem] = field(default_factory=list)
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    ends: list[tuple[int, int | None]] = field(default_factory=list)
    open_data: set[int] = field(default_factory=set)
    is_damaged: bool = False
    directory: str = ""
    """Where the segments lie."""

    def __post_init__(self) -> None:
        self.directory = self.directory or self.place.path

    def problem(self, error: CorruptionError, file: str | None = None) -> None:
        self.problems.append(Problem(error.file or file or "", error.position, error.reason))

    def extend_last(self, words: str) -> None:
        last = self.problems[-1]
        self.problems[-1] = replace(last, reason=last.reason + words)


def verify_partition(
    place: PartitionPlace, filesystem: FileSystem, on_progress: OnProgress
) -> PartitionCheck:
    """Check a partition. Raises `StorageIOError` only: damage is what it reports."""
    odd = dict(odd_files(place.path, filesystem))
    if odd:
        filesystem = _without(odd, filesystem)
    check = _Check(place, filesystem, CleanSpec(0))
    known = look(place, filesystem)
    contents = sort_out(filesystem.list_directory(place.path))
    for name in contents.unfinished:
        check.problem(_of_interrupted(), os.path.join(place.path, name))
    intent = os.path.join(place.path, STATE_DIRECTORY, SWAP_INTENT)
    if filesystem.exists(intent):
        check.problem(_of_interrupted(), intent)
    newest_start = _log_start(check)
    start = newest_start or 0
    paths = [segment_path(place.path, base, FileKind.LOG) for base in contents.bases]
    sizes = [filesystem.stat(path).size_bytes for path in paths]
    for slot, base_offset in enumerate(contents.bases):
        is_last = slot + 1 == len(contents.bases)
        end_offset = MAX_OFFSET if is_last else contents.bases[slot + 1]
        _check_segment(check, base_offset, sizes[slot], end_offset, max(start, contents.bases[0]))
        check.log_bytes += sizes[slot]
        on_progress(Progress("verify", check.log_bytes, sum(sizes)))
    _check_small_files(check, contents.snapshots)
    first = max(newest_start or 0, contents.bases[0]) if contents.bases else None
    for error in ledger_damage(place.path, first, filesystem, _of_ledgers(check)):
        check.problem(error)
    if not contents.unfinished and not filesystem.exists(intent):
        for lost in lost_of(known, place.path, check.ends, newest_start):
            check.problem(CorruptionError(lost.text), lost.file)
    problems = [problem for problem in check.problems if problem.file not in odd]
    return PartitionCheck(
        place.name,
        place.path,
        len(contents.bases),
        check.batches,
        check.records,
        check.log_bytes,
        (*(Problem(path, None, reason) for path, reason in odd.items()), *problems),
    )


def verify_checkpoints(log_dir: str, filesystem: FileSystem) -> list[Problem]:
    """The problems of a log directory's own files."""
    odd = dict(odd_checkpoints(log_dir, filesystem))
    found = [Problem(path, None, reason) for path, reason in odd.items()]
    if odd:
        filesystem = _without(odd, filesystem)
    for name in CHECKPOINTS:
        path = os.path.join(log_dir, name)
        try:
            read_log_dir_checkpoint(log_dir, name, filesystem)
        except CorruptionError as error:
            found.append(Problem(error.file or path, error.position, error.reason))
        except StorageIOError as error:
            found.append(Problem(path, None, str(error)))
    return found


def _without(odd: Iterable[str], filesystem: FileSystem) -> FileSystem:
    """The disk as it would be if what is no file of ours were put aside."""
    overlay = Preview(filesystem)
    for path in odd:
        put_aside(overlay, path)
    return overlay


def _of_interrupted() -> CorruptionError:
    return CorruptionError("left by an interrupted cleaning, which must be recovered first")


def _log_start(check: _Check) -> int | None:
    path = os.path.join(check.place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    try:
        return read_offsets(check.filesystem, path).get(check.place.topic_partition)
    except CorruptionError:
        return None  # reported with the log directory's files


def _check_small_files(check: _Check, snapshot_offsets: tuple[int, ...]) -> None:
    directory = check.place.path
    for offset in snapshot_offsets:
        try:
            snapshots.read_snapshot(check.filesystem, directory, offset)
        except CorruptionError as error:
            check.problem(error)
    try:
        read_leader_epochs(check.filesystem, os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
    except CorruptionError as error:
        check.problem(error)


# ---------------------------------------------------------------- one segment


def _of_ledgers(whole: _Check) -> OfSegment:
    """How a ledger's segments are checked: as those of a log, but that they are not counted."""

    def damage_of(directory: str, base_offset: int, end_offset: int) -> list[CorruptionError]:
        check = _Check(whole.place, whole.filesystem, whole.spec, whole.scratch)
        check.directory = directory
        # Nobody asks which transactions were aborted below a horizon: a missing abort is none.
        check.is_damaged = True
        path = segment_path(directory, base_offset, FileKind.LOG)
        size_bytes = check.filesystem.stat(path).size_bytes
        _check_segment(check, base_offset, size_bytes, end_offset, base_offset)
        return [CorruptionError(p.reason, file=p.file, position=p.position) for p in check.problems]

    return damage_of


def _check_segment(
    check: _Check, base_offset: int, size_bytes: int, end_offset: int, log_start_offset: int
) -> None:
    directory, filesystem = check.directory, check.filesystem
    path = segment_path(directory, base_offset, FileKind.LOG)
    rows = BatchTable()
    markers: dict[int, int] = {}
    with chunk_reader(filesystem, directory, base_offset, size_bytes, check.spec) as reader:
        while True:
            try:
                chunk = reader.take(check.scratch)
            except CorruptionError as error:
                position = error.position or 0
                if rows.doubtful and rows.doubtful[-1][1] == position:
                    # A damaged batch says how long it is: more likely that is the damage.
                    check.extend_last("; no batch follows it, and nothing behind can be checked")
                else:
                    check.problem(error, path)
                rows.doubt(position, size_bytes + 1)
                break
            if chunk is None:
                break
            for part, table in _sound_batches(check, chunk, rows):
                _check_records(check, part, table, end_offset, rows)
                _follow_transactions(check, table, markers, log_start_offset)
                rows.add(part.position, table)
    check.batches += rows.count
    digest_problems = list(check_digest(filesystem, directory, base_offset, rows))
    last = rows.column("last_offset")
    next_offset = max(int(last.max()) + 1, base_offset) if len(last) else base_offset
    check.ends.append((base_offset, None if rows.doubtful else next_offset))
    is_whole = not any(end > size_bytes for _, end in rows.doubtful)
    check.is_damaged |= bool(rows.doubtful)
    before = len(check.problems)
    if is_whole:
        for kind, problem in check_indexes(
            filesystem, directory, base_offset, size_bytes, rows, is_active=end_offset == MAX_OFFSET
        ):
            check.problem(problem, segment_path(directory, base_offset, kind))
    _check_txn_index(check, base_offset, markers, bool(rows.doubtful))
    named = {problem.file for problem in check.problems[before:]}
    for kind, problem in digest_problems:
        file = segment_path(directory, base_offset, kind)
        # A file that is known to be wrong is not reported for being another one, too.
        if file not in named:
            check.problem(problem, file)


def _sound_batches(check: _Check, chunk: Chunk, rows: BatchTable) -> Iterator[tuple[Chunk, Table]]:
    """Runs of batches that are in order and true to their checksums; the rest are problems, and
    doubtful."""
    start, previous = 0, chunk.previous_last_offset
    last_position = chunk.position
    while start < chunk.size_bytes:
        part = Chunk(
            chunk.path,
            chunk.ordinal,
            chunk.position + start,
            chunk.size_bytes - start,
            chunk.rows,
            previous,
            chunk.raw[start:],
        )
        table = check.scratch.take("table", chunk.rows, arrays.BATCH)[: chunk.rows]
        count, end, error, position = _scan(check, part, table)
        if count > 0:
            scan.read_control_types(part.raw, part.raw, table, 0, count)
            previous = int(table[count - 1]["last_offset"])
            last_position = part.position + int(table[count - 1]["position"])
            yield part, table[:count]
        if error == arrays.OK:
            return
        # `ChunkReader` has hopped over this batch, so its length leads to the next one.
        length = int.from_bytes(bytes(part.raw[end + 8 : end + 12]), "big")
        size = layout.LOG_OVERHEAD + length
        damaged = part.position + end
        # A batch before it whose offset is known to be wrong explains the order.
        is_news = error != arrays.BAD_ORDER or last_position not in (
            known for known, _ in rows.doubtful[-1:]
        )
        if is_news:
            check.problem(damage(part, error, position))
        if error == arrays.BAD_ORDER:
            # This one or the one before has the wrong offset. The next is held against this one: a
            # single offset that is too large is not the problem of all that follow.
            rows.doubt(last_position, damaged + size)
            alone = check.scratch.take("table of one", 1, arrays.BATCH)[:1]
            single = replace(part, raw=part.raw[end:], size_bytes=size, previous_last_offset=-1)
            if _scan(check, single, alone)[0] == 1:
                previous = int(alone[0]["last_offset"])
        else:
            rows.doubt(damaged, damaged + size)
        start += end + size


def _scan(check: _Check, part: Chunk, table: Table) -> tuple[int, int, int, int]:
    """(rows, bytes of them, error, its position)."""
    rows, end, error, position = scan.scan_batches(
        part.raw,
        part.size_bytes,
        part.previous_last_offset,
        -1,
        check.spec.max_batch_bytes,
        table,
    )
    return int(rows), int(end), int(error), int(position)


def _check_records(
    check: _Check, chunk: Chunk, table: Table, end_offset: int, rows: BatchTable
) -> None:
    for row in np.flatnonzero(table["last_offset"] >= end_offset).tolist():
        reason = f"offset {int(table[row]['last_offset'])} belongs to the next segment"
        position = chunk.position + int(table[row]["position"])
        rows.doubt(position, position + int(table[row]["size_bytes"]))
        check.problem(CorruptionError(reason, file=chunk.path, position=position))
    is_packed = table["attributes"] & layout.CODEC_MASK != 0
    is_control = table["attributes"] & layout.CONTROL_MASK != 0
    for row in np.flatnonzero(is_packed & is_control & (table["magic"] == 2)).tolist():
        check.problem(damage(chunk, arrays.BAD_CONTROL, int(table[row]["position"])))
    before = check.records
    untouched = table.copy()
    try:
        _count_records(check, chunk, table, np.ones(len(table), np.bool_))
    except CorruptionError:
        # Somewhere here: look at the batches one at a time, so that each is reported.
        check.records = before
        for row in range(len(table)):
            table[:] = untouched
            wanted = np.zeros(len(table), np.bool_)
            wanted[row] = True
            try:
                _count_records(check, chunk, table, wanted)
            except CorruptionError as error:
                position = chunk.position + int(table[row]["position"])
                rows.doubt(position, position + int(table[row]["size_bytes"]))
                check.problem(error, chunk.path)


def _count_records(check: _Check, chunk: Chunk, table: Table, wanted: Any) -> None:
    for columns in record_columns(
        chunk, table, wanted, check.spec, _NO_SECRET, check.scratch, hashing=SIZES
    ):
        check.records += len(columns.offsets)


# ---------------------------------------------------------------- transactions


def _follow_transactions(
    check: _Check, table: Table, markers: dict[int, int], log_start_offset: int
) -> None:
    """Note the abort markers whose data is there: offset -> producer id, negative without data."""
    is_transactional = table["attributes"] & layout.TRANSACTIONAL_MASK != 0
    for row in np.flatnonzero(is_transactional & (table["magic"] == layout.MAGIC_V2)).tolist():
        batch = table[row]
        producer_id = int(batch["producer_id"])
        if not int(batch["attributes"]) & layout.CONTROL_MASK:
            if int(batch["last_offset"]) >= log_start_offset:
                check.open_data.add(producer_id)
        elif int(batch["control_type"]) in (ControlType.COMMIT, ControlType.ABORT):
            has_data = producer_id in check.open_data
            check.open_data.discard(producer_id)
            if int(batch["control_type"]) == ControlType.ABORT:
                markers[int(batch["last_offset"])] = producer_id if has_data else -1 - producer_id


def _check_txn_index(
    check: _Check, base_offset: int, markers: dict[int, int], is_damaged: bool
) -> None:
    """`is_damaged`: not every batch of the segment could be read, so not every marker is known."""
    path = segment_path(check.directory, base_offset, FileKind.TXN_INDEX)
    try:
        entries = load_aborted(check.filesystem, check.directory, base_offset, use_digest=False)
    except CorruptionError as error:
        check.problem(error, path)
        return
    for entry in entries:
        found = markers.get(entry.last_offset)
        if found is None and is_damaged:
            continue
        if found not in (entry.producer_id, -1 - entry.producer_id):
            reason = f"no abort of producer {entry.producer_id} at offset {entry.last_offset}"
            check.problem(CorruptionError(reason), path)
    if check.is_damaged:
        return  # a commit may be among what could not be read, and its data seem to be aborted
    known = {(entry.producer_id, entry.last_offset) for entry in entries}
    for offset, producer_id in markers.items():
        if producer_id >= 0 and (producer_id, offset) not in known:
            reason = f"the abort of producer {producer_id} at offset {offset} is missing"
            check.problem(CorruptionError(reason), path)
