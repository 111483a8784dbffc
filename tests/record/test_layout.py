from __future__ import annotations

import struct

import pytest

from stratalog.record import layout


@pytest.mark.requirement("LOG-3")
def test_every_offset_is_that_of_its_field() -> None:
    fields = {
        layout.BASE_OFFSET: ">q",
        layout.LENGTH: ">i",
        layout.LEADER_EPOCH: ">i",
        layout.MAGIC: ">b",
        layout.CRC: ">I",
        layout.ATTRIBUTES: ">h",
        layout.LAST_OFFSET_DELTA: ">i",
        layout.BASE_TIMESTAMP: ">q",
        layout.MAX_TIMESTAMP: ">q",
        layout.PRODUCER_ID: ">q",
        layout.PRODUCER_EPOCH: ">h",
        layout.BASE_SEQUENCE: ">i",
        layout.RECORDS_COUNT: ">i",
    }
    values = list(range(101, 101 + len(fields)))
    header = layout.HEADER.pack(*values)
    read = [struct.unpack_from(code, header, offset)[0] for offset, code in fields.items()]
    assert read == values
    last_offset, last_code = list(fields.items())[-1]
    assert last_offset + struct.calcsize(last_code) == layout.HEADER_BYTES == 61


@pytest.mark.parametrize(
    ("sequence", "delta", "sum_"),
    [(0, 5, 5), (2**31 - 1, 1, 0), (2**31 - 3, 10, 7), (2**31 - 1, 2**31 - 1, 2**31 - 2)],
)
def test_sequences_wrap(sequence: int, delta: int, sum_: int) -> None:
    assert layout.increment_sequence(sequence, delta) == sum_
