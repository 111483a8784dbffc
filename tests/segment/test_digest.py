"""Digests as values and files: the fold, its naive twin, and bytes that are none."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.record.checksum import crc32c
from stratalog.segment import digest as digests
from stratalog.segment.digest import DigestState
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import INDEX_KINDS, FileKind
from tests.docs.test_format import table
from tests.naive import digest as naive
from tests.naive.random_batches import Features, Writer
from tests.naive.records import parse_log
from tests.segment.digests import (
    BASE,
    FS,
    batch,
    overwrite,
    path_of,
    reopened,
    small_batches,
    write_digest,
    write_segment,
)


def random_log(random: Random) -> bytes:
    """Batches of all kinds and magics, some of them large, so that there are several blocks."""
    writer = Writer(random, Features(legacy=True, huge_gaps=False))
    for _ in range(random.randint(5, 60)):
        writer.step()
    raws = [found.raw for segment in writer.segments for found in segment.batches]
    offset = parse_log(raws[-1])[0].last_offset + 1
    for step in range(random.randint(0, 12)):
        size = random.choice([2_000, 21_845, 40_000, 65_436, 150_000])
        raws.append(batch(offset + 10 * step, size=size, count=1))
        raws += [batch(offset + 10 * step + 1 + i, count=1) for i in range(random.randint(0, 3))]
    return b"".join(raws)


@pytest.mark.requirement("RCV-7")
def test_digests_are_those_of_the_naive_twin_however_batches_are_cut(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    cases = 60
    for seed in range(cases):
        random = Random(seed)
        log = random_log(random)
        path_of(tmp_path).write_bytes(log)
        contents: list[bytes | None] = [random.choice([None, b"", b"abc"]) for _ in INDEX_KINDS]
        for kind, content in zip(INDEX_KINDS, contents, strict=True):
            path_of(tmp_path, kind).unlink(missing_ok=True)
            if content is not None:
                path_of(tmp_path, kind).write_bytes(content)
        file_id = path_of(tmp_path).stat().st_ino
        expected = naive.digest_of(log, file_id, contents)
        opened = LogFile.open(FS, str(path_of(tmp_path)))
        state = digests.build_state(opened, 0, len(log))
        built = digests.finish_digest(FS, str(tmp_path), BASE, state)
        assert digests.encode(built) == expected, seed
        assert digests.encode(digests.decode(expected)) == expected
        state = DigestState()
        sizes = [len(found.raw) for found in parse_log(log)]
        done = at = 0
        while done < len(sizes):
            some = sizes[done : done + random.choice([1, 1, 2, 5, 33, 100])]
            state.extend(log[at : at + sum(some)], some)
            done, at = done + len(some), at + sum(some)
            if random.random() < 0.2:
                last = parse_log(log[:at])[-1].last_offset
                state = DigestState.resumed(state.finish(0, ()), last)
        assert digests.encode(state.finish(file_id, built.head.index_sums)) == expected, seed
    count_cases("random logs digested", cases)


def test_the_table_in_the_document_is_the_head() -> None:
    position = 0
    rows = table("digest head")
    for at, size, *_ in rows:
        assert int(at) == position
        position += int(size)
    assert position == digests._HEAD.size
    names = [name for _, _, name, *_ in rows]
    assert set(names[3:]) <= set(digests.DigestHead.__slots__)


@pytest.mark.requirement("RCV-7")
def test_every_flip_and_truncation_of_a_digest_makes_it_none(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    write_segment(tmp_path, b"".join([batch(BASE + 10 * i, size=40_000) for i in range(3)]))
    path = Path(digests.digest_path(str(tmp_path), BASE))
    good = path.read_bytes()
    assert digests.load_digest(FS, str(tmp_path), BASE) is not None
    mutants = [good[:size] for size in range(len(good))]
    mutants += [good + b"\0", good + good[-8:], good + bytes(8), b"\0" * len(good)]
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        mutants.append(bytes(flipped))
    for mutant in mutants:
        with pytest.raises(CorruptionError):
            digests.decode(mutant)
        path.write_bytes(mutant)
        assert digests.load_digest(FS, str(tmp_path), BASE) is None
    count_cases("damaged digests", len(mutants))


def signed(good: bytes, at: int, fmt: str, value: int, rest: bytes | None = None) -> bytes:
    """A digest with another field, and checksums that fit."""
    size = digests._HEAD.size
    head, rest = bytearray(good[:size]), good[size:] if rest is None else rest
    struct.pack_into(fmt, head, at, value)
    struct.pack_into(">I", head, 12, crc32c(rest))
    struct.pack_into(">I", head, 8, crc32c(bytes(head[12:])))
    return bytes(head) + rest


def test_a_digest_that_cannot_be_is_none_despite_right_checksums(tmp_path: Path) -> None:
    made = write_segment(tmp_path, b"".join([batch(BASE + 10 * i, size=40_000) for i in range(3)]))
    good, covered = digests.encode(made), made.head.covered_bytes
    assert digests.decode(signed(good, 36, ">I", 3)).head.blocks == 3
    for mutant in (
        signed(good, 4, ">I", 2),  # a later version
        signed(good, 24, ">Q", 1 << 63),  # covers more than the blocks
        signed(good, 36, ">I", (1 << 32) - 1),  # more blocks than there are bytes
        signed(good, 40, ">q", -2),  # a file of negative size
        signed(good, 36, ">I", 2, struct.pack(">4I", 0, 0, covered, 0)),  # an empty block
        signed(good, 36, ">I", 2, struct.pack(">4I", covered, 0, 0, 0)),
        signed(good, 36, ">I", 2, struct.pack(">4I", 5, 0, covered - 5, 0)),  # a small one
    ):
        with pytest.raises(CorruptionError):
            digests.decode(mutant)
    for seed in range(300):
        noise = Random(seed).randbytes(seed)
        for data in (noise, good[:76] + noise, b"SLDG" + noise):
            with pytest.raises(CorruptionError):
                digests.decode(data)


def test_a_digest_of_another_file_is_stale(tmp_path: Path) -> None:
    write_segment(tmp_path, b"".join(small_batches()))
    path = path_of(tmp_path)
    shutil.copy(path, tmp_path / "copy")
    assert digests.load_digest(FS, str(tmp_path), BASE) is not None
    (tmp_path / "copy").rename(path)
    assert digests.load_digest(FS, str(tmp_path), BASE) is None
    assert digests.missing_digests(FS, str(tmp_path), [BASE]) == [BASE]


def test_which_digests_are_missing(tmp_path: Path) -> None:
    log = b"".join(small_batches())
    write_segment(tmp_path, log)
    assert digests.missing_digests(FS, str(tmp_path), [BASE, BASE + 1]) == []
    overwrite(path_of(tmp_path), batch(BASE + 100), position=len(log))
    assert digests.missing_digests(FS, str(tmp_path), [BASE]) == [BASE]
    write_digest(tmp_path, path_of(tmp_path).stat().st_size)
    assert digests.missing_digests(FS, str(tmp_path), [BASE]) == []
    assert digests.remove_digest(FS, str(tmp_path), BASE)
    assert not digests.remove_digest(FS, str(tmp_path), BASE)
    assert digests.missing_digests(FS, str(tmp_path), [BASE]) == [BASE]


def test_a_log_that_does_not_hold_together_gets_no_digest(tmp_path: Path) -> None:
    batches = small_batches()
    bad = bytearray(batches[2])
    bad[16] = 3
    for log, position in (
        (b"".join(batches)[:-1], 3 * len(batches[0])),
        (b"".join(batches) + bytes(10), 4 * len(batches[0])),
        (batches[0] + batches[2] + batches[1], 2 * len(batches[0])),
        (batches[0] + batches[1] + bytes(bad), 2 * len(batches[0])),
    ):
        path_of(tmp_path).write_bytes(log)
        opened = reopened(tmp_path, use_digest=False)
        with pytest.raises(CorruptionError) as caught:
            digests.build_digest(FS, str(tmp_path), BASE, opened.log, len(log))
        assert (caught.value.file, caught.value.position) == (str(path_of(tmp_path)), position)


def test_read_only_bytes_and_parts_of_batches_in_one_large_append() -> None:
    sizes = [len(raw) for raw in small_batches(40)]
    data = b"".join(small_batches(40))
    whole, cut = DigestState(BASE), DigestState(BASE)
    whole.extend(data, sizes)
    assert whole.covered_bytes == len(data)
    with pytest.raises(CorruptionError):
        cut.extend(data[:-1], sizes)
    other = DigestState(BASE)
    assert other.extend_scan(np.frombuffer(bytearray(data), np.uint8), len(data)) == len(data)
    assert digests.encode(other.finish(1, _NONE)) == digests.encode(whole.finish(1, _NONE))


_NONE = (digests.NO_FILE,) * len(INDEX_KINDS)


def test_a_log_too_large_for_a_digest_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MAX_DIGEST_BYTES", 80)
    write_segment(tmp_path, b"".join(small_batches()))
    assert digests.load_head(FS, str(tmp_path), BASE) is None


def test_a_disk_that_fails_leaves_a_segment_without_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path, b"".join(small_batches()))

    def fails(*_: object) -> None:
        raise StorageIOError("the disk is gone")

    monkeypatch.setattr(type(FS), "open", fails)
    assert digests.load_digest(FS, str(tmp_path), BASE) is None
    assert digests.load_head(FS, str(tmp_path), BASE) is None


def test_sums_of_index_files(tmp_path: Path) -> None:
    write_segment(tmp_path, b"".join(small_batches()), aborted=True)
    path_of(tmp_path, FileKind.TXN_INDEX).write_bytes(b"")
    digests.refresh_index_sums(FS, str(tmp_path), BASE)
    made = digests.load_digest(FS, str(tmp_path), BASE)
    assert made is not None
    content = path_of(tmp_path, FileKind.OFFSET_INDEX).read_bytes()
    assert made.head.index_sum(FileKind.OFFSET_INDEX) == digests.FileSum(
        len(content), crc32c(content)
    )
    assert made.head.index_sum(FileKind.TXN_INDEX) == digests.FileSum(0, 0)
