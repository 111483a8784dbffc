"""docs/FORMAT.md says what the code does: its tables and its worked example are read and held
against the decoders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratalog.record import layout
from stratalog.record.batch import BatchHeader, batches
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.varint import decode_varlong

DOCUMENT = (Path(__file__).parents[2] / "docs/FORMAT.md").read_text()


def after(marker: str) -> list[str]:
    """The lines of the block (up to the next blank line) that follows `<!-- marker -->`."""
    _, text = DOCUMENT.split(f"<!-- {marker} -->\n\n")
    return text.split("\n\n")[0].splitlines()


def table(name: str) -> list[list[str]]:
    """The rows of a table, cells without their markup."""
    rows = [line.strip().strip("|").split("|") for line in after(f"table: {name}")]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


def example() -> bytes:
    data = bytearray()
    for line in after("example: batch"):
        position, content = line.strip().split("  ")
        assert int(position, 16) == len(data)
        data += bytes.fromhex(content)
    return bytes(data)


@pytest.mark.requirement("LOG-3")
def test_the_header_table_is_the_layout() -> None:
    position = 0
    names = []
    for at, size, name, kind, _ in table("header"):
        assert int(at) == position == getattr(layout, name.upper())
        assert int(size) * 8 == int(re.sub(r"\D", "", kind))
        position += int(size)
        names.append(name)
    assert position == layout.HEADER_BYTES
    assert tuple(names) == BatchHeader.__slots__


def test_the_attributes_table_is_the_layout() -> None:
    masks = {}
    for bits, name, _ in table("attributes"):
        low, _, high = bits.partition("-")
        masks[name] = sum(1 << bit for bit in range(int(low), int(high or low) + 1))
    del masks[""]
    assert masks == {
        "codec": layout.CODEC_MASK,
        "timestamp type": layout.TIMESTAMP_TYPE_MASK,
        "transactional": layout.TRANSACTIONAL_MASK,
        "control": layout.CONTROL_MASK,
        "delete horizon": layout.DELETE_HORIZON_MASK,
    }


@pytest.mark.requirement("LOG-3")
def test_the_example_decodes_field_by_field() -> None:
    data = example()
    (batch,) = batches(data)
    assert batch.crc_ok()
    covered = bytearray()
    for at, raw, name, value in table("example header"):
        assert int(at) == len(covered)
        covered += bytes.fromhex(raw)
        assert getattr(batch.header, name) == int(value)
    assert bytes(covered) == data[: layout.HEADER_BYTES]


@pytest.mark.requirement("LOG-3")
def test_the_records_of_the_example_decode_field_by_field() -> None:
    data = example()
    covered = bytearray()
    fields: list[dict[str, str]] = []
    for at, raw, name, value in table("example records"):
        content = bytes.fromhex(raw)
        assert int(at) == layout.HEADER_BYTES + len(covered)
        covered += content
        if name in ("key", "value"):
            assert content.decode() == value
        else:
            assert decode_varlong(content, 0) == (int(value), len(content))
        if name == "size":
            fields.append({})
        # A record's own key and value come before those of its header.
        fields[-1].setdefault(name, value)
    assert bytes(covered) == data[layout.HEADER_BYTES :]
    (batch,) = batches(data)
    records = list(batch.records())
    assert len(records) == len(fields)
    for record, row in zip(records, fields, strict=True):
        assert record.offset == batch.header.base_offset + int(row["offset-delta"])
        assert record.timestamp == batch.header.base_timestamp + int(row["timestamp-delta"])
        assert record.key == row["key"].encode()
        assert record.value == (row["value"].encode() if "value" in row else None)
        assert len(record.headers) == int(row["count"])


def test_the_example_is_what_its_text_says() -> None:
    data = build_batch(
        [
            NewRecord(b"user-7", b"Oslo", 1_700_000_000_123, ((b"src", b"web"),)),
            NewRecord(b"user-9", None, 1_700_000_000_456),
        ],
        base_offset=4711,
        leader_epoch=3,
        producer_id=1002,
        producer_epoch=1,
        base_sequence=58,
    )
    assert data == example()
    (batch,) = batches(data)
    assert [(r.offset, r.sequence) for r in batch.records()] == [(4711, 58), (4712, 59)]
    assert (batch.header.size_bytes, batch.header.next_offset) == (100, 4713)
