"""Records as people get them, and how they are made of what kernels have located.

A column is copied once, by a kernel, and cut into Python's bytes: some hundred nanoseconds a
record, an eighth of what decoding it in Python takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from stratalog.pipeline.locating import Located, Source
from stratalog.record.kernel import arrow_columns as kernel
from stratalog.record.values import BatchHeader
from stratalog.record.values import Record as StoredRecord

_new_record: Callable[[type[Record], tuple[object, ...]], Record] = tuple.__new__
Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record. `timestamp_ms` since 1970 UTC, -1: none; `value` None: the key is deleted."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Appended(NamedTuple):
    """Where a record went."""

    partition: int
    offset: int


class RecordForm:
    """`pipeline.locating.Form`: lists of records.

    Short ones: what lives for a moment is made in memory that is warm, and the collector of
    garbage, which looks at every 700 new objects, finds none of them. Lists of 30,000 took four
    times as long for a record.
    """

    most_rows = 512

    def of_located(self, located: Located) -> list[Record]:
        """Records of magic 2, at least one."""
        source, places = located.source, located.places
        headers: Iterable[Headers] = repeat(())
        if located.totals[kernel.HEADER_COUNT] > 0:
            headers = _headers(located)
        fields = zip(
            repeat(source.topic),
            repeat(source.partition),
            places[:, kernel.OFFSET].tolist(),
            places[:, kernel.TIMESTAMP].tolist(),
            _fields(located, kernel.KEY_AT, kernel.KEY_BYTES),
            _fields(located, kernel.VALUE_AT, kernel.VALUE_BYTES),
            headers,
            strict=False,  # some of them never end
        )
        # As `Record(*fields)` does it, without a call in Python for each.
        return list(map(_new_record, repeat(Record), fields))

    def of_legacy(
        self, source: Source, _: BatchHeader, records: Sequence[StoredRecord]
    ) -> list[Record]:
        """Records of magic 0 and 1."""
        return [
            Record(source.topic, source.partition, r.offset, r.timestamp, r.key, r.value)
            for r in records
        ]


def _fields(located: Located, place: int, total: int) -> list[bytes | None]:
    count = len(located.places)
    ends, bits = np.empty(count + 1, np.int32), np.zeros((count + 7) // 8, np.uint8)
    out = np.empty(int(located.totals[total]), np.uint8)
    nulls = kernel.copy_fields(
        *(located.raw, located.plain, located.table, located.places, place, ends, bits, out)
    )
    data = out.tobytes()
    cut: list[bytes | None] = [data[low:high] for low, high in pairwise(ends.tolist())]
    if nulls:
        for number in np.flatnonzero(located.places[:, place + 1] < 0).tolist():
            cut[number] = None
    return cut


def _headers(located: Located) -> list[Headers]:
    count, headers = len(located.places), int(located.totals[kernel.HEADER_COUNT])
    ends, bits = np.empty(count + 1, np.int32), np.zeros((count + 7) // 8, np.uint8)
    name_ends, value_ends = np.empty((2, headers + 1), np.int32)
    names = np.empty(int(located.totals[kernel.NAME_BYTES]), np.uint8)
    values = np.empty(int(located.totals[kernel.HEADER_VALUE_BYTES]), np.uint8)
    value_bits = np.zeros((headers + 7) // 8, np.uint8)
    kernel.copy_headers(
        *(located.raw, located.plain, located.table, located.places, ends, bits),
        *(name_ends, names, value_ends, value_bits, values),
    )
    is_there = np.unpackbits(value_bits, count=headers, bitorder="little").tolist()
    name_data, value_data = names.tobytes(), values.tobytes()
    pairs = [
        (name_data[a:b].decode("utf-8", "replace"), value_data[c:d] if there else None)
        for (a, b), (c, d), there in zip(
            pairwise(name_ends.tolist()), pairwise(value_ends.tolist()), is_there, strict=True
        )
    ]
    return [tuple(pairs[low:high]) for low, high in pairwise(ends.tolist())]
