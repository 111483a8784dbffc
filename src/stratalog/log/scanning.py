"""Reading a `.log` file front to back and believing nothing: for recovery (RCV-1).

Chunks of a few megabytes go through the scan kernel, which checks of every batch its length, magic,
order of offsets and CRC-32C. Message sets of magic 0 and 1 are checked one by one, with CRC-32.

Invariants
- I1  What was yielded is sound: whole batches, offsets growing from the base offset and below
      `limit_offset`, checksums right.
- I2  A scan that ends has reached the file's end, or says at which damage it stopped. An error of
      the disk is raised: it is never taken for damage, for damage is what gets cut off.
- I3  Memory: one chunk, or the largest single batch, and the table of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.limits import CHUNK_BYTES, MAX_BATCH_BYTES
from stratalog.record.batch import Batch
from stratalog.record.kernel import arrays
from stratalog.record.kernel.scan import scan_batches, whole_batches
from stratalog.record.values import parse_header
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import MAX_OFFSET

_ROWS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class SoundBatches:
    """Batches that follow one another: `table` (BATCH rows; positions count from the start of
    `raw`, which lies at `position` of the file). Both belong to the scan and live one step long."""

    position: int
    raw: npt.NDArray[np.uint8]
    table: npt.NDArray[Any]

    def columns(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Position in the file, size, last offset, largest timestamp: what indexes are made of."""
        table = self.table
        return (
            table["position"] + self.position,
            np.ascontiguousarray(table["size_bytes"]),
            np.ascontiguousarray(table["last_offset"]),
            np.ascontiguousarray(table["max_timestamp"]),
        )

    def batch(self, row: int) -> Batch:
        """One batch, with its position in the file."""
        start = int(self.table["position"][row])
        data = memoryview(self.raw)[start : start + int(self.table["size_bytes"][row])]
        return Batch(parse_header(data), data, self.position + start)


class LogScan:
    """One pass over a log file. After it: where the sound part ends, and why.

    `end`: bytes; `next_offset`: after the last sound batch; `damage`: None at the file's end.
    `claimed_offset`: where the damage is a whole batch with a right checksum that says it belongs
    elsewhere, and may be right, the offset that it claims.

    The checksum leaves the base offset out, so either this batch's or that of the batch before it
    is wrong. If that one follows its own neighbour without a gap, it is this one's: disks write
    sectors, and a batch that begins at a sector's end may lose its first bytes and nothing else.
    """

    def __init__(
        self, log: LogFile, base_offset: int, size_bytes: int, limit_offset: int = MAX_OFFSET
    ):
        self._log = log
        self._base_offset = base_offset
        self._size_bytes = size_bytes
        self._limit_offset = limit_offset
        self.end = 0
        self.next_offset = base_offset
        self.damage: CorruptionError | None = None
        self.claimed_offset: int | None = None
        self._is_in_place = False
        """Whether the last sound batch follows another without a gap."""

    def __iter__(self) -> Iterator[SoundBatches]:
        """Raises `StorageIOError`; damage ends the iteration and is told by `damage`."""
        raw = np.empty(min(CHUNK_BYTES, max(self._size_bytes, 1)), np.uint8)
        table = np.empty(_ROWS, arrays.BATCH)
        wanted = len(raw)
        while self.damage is None and self.end < self._size_bytes:
            wanted = min(wanted, self._size_bytes - self.end)
            if len(raw) < wanted:
                raw = np.empty(wanted, np.uint8)
            filled = self._log.read_into(memoryview(raw)[:wanted], self.end)
            if filled < wanted:
                raise StorageIOError(f"{self._log.path}: shorter than it was when it was opened")
            rows, _, _, following = whole_batches(raw, filled, MAX_BATCH_BYTES)
            if rows == 0 and following >= 0 and wanted < self._size_bytes - self.end:
                # The first batch is larger than the chunk: read as much as it says it is.
                wanted = int(following) or 2 * wanted
                if wanted > self._size_bytes - self.end:
                    self._stop(0, "the log ends inside this batch")
                continue
            yield from self._scan_chunk(raw, filled, table)
            wanted = CHUNK_BYTES

    def _scan_chunk(
        self, raw: npt.NDArray[np.uint8], filled: int, table: npt.NDArray[Any]
    ) -> Iterator[SoundBatches]:
        done, is_last = 0, self.end + filled == self._size_bytes
        while done < filled:
            rest = raw[done:]
            rows, size, error, _ = scan_batches(
                rest, filled - done, self.next_offset - 1, 0, MAX_BATCH_BYTES, table
            )
            found = table[:rows]
            sound = self._sound_rows(rest, found)
            if sound > 0:
                start, found = self.end, found[:sound]
                last = found[sound - 1]
                self.end += int(last["position"] + last["size_bytes"])
                before = found["last_offset"][sound - 2] if sound > 1 else self.next_offset - 1
                self._is_in_place = bool(last["base_offset"] == before + 1)
                self.next_offset = int(last["last_offset"]) + 1
                yield SoundBatches(start, rest, found)
            if sound < rows:
                return
            if error != arrays.OK:
                self._stop(0, arrays.DAMAGE[int(error)])
                self._note_claim(memoryview(rest)[int(size) : filled - done])
                return
            done += int(size)
            if rows < _ROWS:
                if is_last and done < filled:
                    self._stop(0, "the log ends inside this batch")
                return

    def _sound_rows(self, raw: npt.NDArray[np.uint8], table: npt.NDArray[Any]) -> int:
        """How many of the rows are sound beyond what the kernel checks; `damage` if not all."""
        sound = len(table)
        if sound > 0 and table["last_offset"][-1] >= self._limit_offset:
            sound = int(np.searchsorted(table["last_offset"], self._limit_offset))
            self._stop(int(table["position"][sound]), arrays.DAMAGE[arrays.BAD_SEGMENT])
        for row in np.flatnonzero(table["magic"][:sound] < 2).tolist():
            start = int(table["position"][row])
            data = memoryview(raw)[start : start + int(table["size_bytes"][row])]
            try:
                batch = Batch(parse_header(data), data)
                if not batch.crc_ok():
                    raise CorruptionError("message set fails its CRC-32")
            except CorruptionError as error:
                self._stop(start, error.reason)
                return int(row)
            table["max_timestamp"][row] = batch.header.max_timestamp
        return sound

    def _note_claim(self, data: memoryview) -> None:
        if self._is_in_place:
            return
        try:
            header = parse_header(data)
            if header.size_bytes <= len(data):
                batch = Batch(header, data[: header.size_bytes])
                self.claimed_offset = header.base_offset if batch.crc_ok() else None
        except CorruptionError:
            pass

    def _stop(self, ahead: int, reason: str) -> None:
        self.damage = CorruptionError(reason, file=self._log.path, position=self.end + ahead)
