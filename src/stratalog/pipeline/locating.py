"""Which records of a chunk are wanted, and where their fields lie.

A `Form` makes something of the records that a walk has found: Arrow's record batches (`batches`),
or Python's values (`stratalog.embedded.records`). The walk is a kernel; nothing here knows Arrow,
so that reading records needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from stratalog.clean.chunk import Bytes, Chunk, Int64s, Scratch, Table, damage
from stratalog.record.kernel import arrow_columns as kernel
from stratalog.record.kernel.arrays import OK
from stratalog.record.values import BatchHeader, Record

BATCH_BYTES = 4 << 20
"""Of keys, values and headers in a batch; one record more at most. With the columns of fixed width
a batch stays near 8 MiB, above which blocks cost the Java heap."""
BATCH_ROWS = 1 << 16

Bools = npt.NDArray[np.bool_]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Which records count: offsets [start, end), only those in `chosen` (sorted) if it is set, only
    those with a value if `without_nulls`."""

    start: int
    end: int
    chosen: Int64s | None = None
    without_nulls: bool = False

    def takes(self, record: Record) -> bool:
        """The same for one record."""
        if not self.start <= record.offset < self.end:
            return False
        if self.without_nulls and record.value is None:
            return False
        if self.chosen is None:
            return True
        place = int(np.searchsorted(self.chosen, record.offset))
        return place < len(self.chosen) and bool(self.chosen[place] == record.offset)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a batch's columns say besides its records."""

    topic: str
    partition: int
    base_offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Records that a walk has found, and where their bytes are: in buffers that are used again
    once the next walk begins."""

    source: Source
    raw: Bytes
    plain: Bytes
    table: Table
    places: Int64s
    totals: Int64s

    def of_rows(self, column: str) -> Int64s:
        """A column of the table, once a record."""
        values: Int64s = self.table[column][self.places[:, kernel.ROW]]
        return values


class Form(Protocol[T_co]):
    """What becomes of records. `most_rows`: so many are given to it at a time."""

    @property
    def most_rows(self) -> int: ...

    def of_located(self, located: Located) -> T_co:
        """Records of magic 2, at least one."""
        ...

    def of_legacy(self, source: Source, header: BatchHeader, records: Sequence[Record], /) -> T_co:
        """The records of one message of magic 0 or 1, which have neither headers nor producers."""
        ...


def located_records(
    source: Source,
    chunk: Chunk,
    plain: Bytes,
    table: Table,
    is_read: Bools,
    rows: tuple[int, int],
    wanted: Wanted,
    most_rows: int,
    scratch: Scratch,
) -> Iterator[Located]:
    """The wanted records of rows [first, end) of `table` where `is_read` is set, all of magic 2, up
    to `most_rows` at a time.

    Payloads are decompressed. Raises `CorruptionError` for damage, after all that comes before it.
    """
    chosen = np.empty(0, np.int64) if wanted.chosen is None else wanted.chosen
    state = np.array([rows[0], 0, 0, -1], np.int64)
    totals = np.zeros(kernel.TOTALS, np.int64)
    places = scratch.take("places", most_rows, np.int64, columns=kernel.PLACE_COLUMNS)
    while state[kernel.NEXT_ROW] < rows[1]:
        found, error, position = kernel.locate_records(
            *(chunk.raw, plain, table, is_read, rows[1], wanted.start, wanted.end, chosen),
            *(wanted.chosen is not None, wanted.without_nulls, BATCH_BYTES),
            *(state, places[:most_rows], totals),
        )
        if found > 0:
            yield Located(source, chunk.raw, plain, table, places[:found], totals)
        if error != OK:
            raise damage(chunk, int(error), int(position))
