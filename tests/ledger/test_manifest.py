"""The manifest of a partition's ledgers: what it says, and what it refuses to believe."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.ledger.manifest import (
    EMPTY,
    Generation,
    LedgerSegment,
    Manifest,
    as_of,
    cut_back,
    decode,
    encode,
    manifest_path,
    parse_generation,
    read_manifest,
    referenced,
    switched,
    write_manifest,
)
from stratalog.record.checksum import crc32c
from tests.sim.disk import SimDisk

pytestmark = pytest.mark.requirement("LDG-1", "LDG-6")


def generation(number: int, horizon: int, *bases: tuple[int, int], start: int = 0) -> Generation:
    """`bases`: (directory, base offset) of each segment; by default its own, at its start."""
    named = bases or ((number, start),)
    ends = [base for _, base in named[1:]] + [horizon]
    segments = tuple(
        LedgerSegment(where, base, end, 100, 8, 12, 5)
        for (where, base), end in zip(named, ends, strict=True)
    )
    return Generation(number, start, horizon, 1000 * number, segments)


THREE = Manifest((generation(1, 10), generation(2, 20), generation(4, 40)), 5)


def test_what_is_written_is_read(tmp_path: object) -> None:
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory("/data/orders-0")
    assert read_manifest(disk, "/data/orders-0") == EMPTY
    write_manifest(disk, "/data/orders-0", THREE)
    assert read_manifest(disk, "/data/orders-0") == THREE
    assert THREE.current == THREE.generations[-1]
    assert EMPTY.current is None


def test_a_switch_keeps_the_last() -> None:
    after = switched(THREE, generation(5, 50), 2)
    assert [one.number for one in after.generations] == [4, 5]
    assert after.next_number == 6
    alone = switched(THREE, generation(7, 50), 1)
    assert [one.number for one in alone.generations] == [7]
    assert alone.next_number == 8


def test_a_log_that_ends_sooner_has_fewer() -> None:
    assert [one.number for one in cut_back(THREE, 20).generations] == [1, 2]
    assert cut_back(THREE, 40) == THREE
    assert cut_back(THREE, 9) == Manifest((), 5)


def test_as_of() -> None:
    assert as_of(THREE, number=2) == THREE.generations[1]
    assert as_of(THREE, number=3) is None
    assert as_of(THREE, offset=39) == THREE.generations[1]
    assert as_of(THREE, offset=9) is None
    assert as_of(THREE, time_ms=3999) == THREE.generations[1]
    assert as_of(THREE, time_ms=10**9) == THREE.generations[2]


def test_which_files_are_needed() -> None:
    two = [generation(2, 20, (1, 0), (2, 10)), generation(3, 30, (1, 0), (3, 10))]
    assert referenced(two) == {1: {0}, 2: {10}, 3: {10}}


@pytest.mark.parametrize(
    ("name", "number"),
    [("00000001", 1), ("00000000", None), ("1", None), ("0000000a", None), ("manifest", None)],
)
def test_names_of_directories(name: str, number: int | None) -> None:
    assert parse_generation(name) == number


IMPOSSIBLE = [
    Manifest((generation(2, 20), generation(1, 10)), 5),
    Manifest((generation(1, 10), generation(1, 10)), 5),
    Manifest((generation(3, 20),), 3),
    Manifest((generation(1, 10, start=11),), 3),
    Manifest((replace(generation(1, 10), segments=()),), 3),
    Manifest((replace(generation(1, 10), records=-1),), 3),
    Manifest((replace(generation(1, 10), engine=5),), 3),  # type: ignore[arg-type]
    Manifest((replace(generation(1, 10), number=True),), 3),
    Manifest((generation(1, 10, (2, 0)),), 3),
    Manifest((generation(2, 10, (1, 5), (1, 0)),), 3),
    Manifest((generation(2, 10, (1, 0), (1, 0)),), 3),
    Manifest((), -1),
]


@pytest.mark.parametrize("manifest", IMPOSSIBLE)
def test_what_cannot_be_is_refused(manifest: Manifest) -> None:
    with pytest.raises(CorruptionError):
        decode(encode(manifest))


def test_another_version_and_other_fields_are_refused() -> None:
    for change in ({"version": 2}, {"generations": 7}, {"next_number": None}, {"version": None}):
        fields = {**json.loads(encode(THREE).split(b"\n")[0]), **change}
        line = json.dumps(fields).encode() + b"\n"
        with pytest.raises(CorruptionError):
            decode(line + b"%08x\n" % crc32c(line))


def test_damage_names_the_file() -> None:
    disk = SimDisk()
    disk.make_directory("/p")
    write_manifest(disk, "/p", THREE)
    file = disk.open(manifest_path("/p"), "update")
    file.pwrite(b"x", 30)
    file.close()
    with pytest.raises(CorruptionError, match="manifest does not match its checksum") as raised:
        read_manifest(disk, "/p")
    assert raised.value.file == manifest_path("/p")


@given(st.binary(max_size=200))
def test_foreign_bytes_are_damage(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(content)


@given(st.integers(0, len(encode(THREE)) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unseen(position: int, change: int) -> None:
    content = bytearray(encode(THREE))
    content[position] ^= change
    with pytest.raises(CorruptionError):
        decode(bytes(content))
