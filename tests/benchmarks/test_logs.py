"""The logs that benchmarks measure on are what they say, and what a real log looks like."""

from __future__ import annotations

from pathlib import Path

import log_files
import logs
import numpy as np
import pytest
from logs import BenchLog, LogShape, generate

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.codec import Codec
from stratalog.segment import index_builder

CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)


def shape(value_bytes: int = 100, codec: Codec = Codec.NONE, **other: int | float) -> LogShape:
    sizes = {"record_bytes": 400_000, "segment_bytes": 100_000}
    return LogShape(value_bytes, codec, **{**sizes, **other})


def opened(log: BenchLog) -> PartitionLog:
    return PartitionLog.open(
        log.directory, LogSettings(), LocalFileSystem(), FixedClock(logs.NOW_MS), read_only=True
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value_bytes", [0, 20, 100, 1024, 20_000])
def test_the_log_opens_and_holds_what_was_asked_for(
    tmp_path: Path, value_bytes: int, codec: Codec
) -> None:
    log = generate(str(tmp_path / "bench-0"), shape(value_bytes, codec))
    with opened(log) as found:
        assert all(batch.crc_ok() for batch in found.read_batches(0))
        assert {batch.header.codec for batch in found.read_batches(0)} == {codec}
        records = list(found.read_records(0))
        segments = list(found.view.segments)
        assert found.log_end_offset == log.records
    assert [record.offset for record in records] == list(range(log.records))
    first = log_files.FIRST_TIMESTAMP_MS
    assert [record.timestamp - first for record in records] == list(range(log.records))
    assert {len(record.key or b"") for record in records} == {16}
    assert {len(record.value or b"") for record in records} == {value_bytes}
    assert len({record.key for record in records}) == log.keys
    assert log.record_bytes == pytest.approx(400_000, abs=20_000)
    # The sizes that are told are those on disk, of full segments; the active one is empty.
    sizes = [Path(path).stat().st_size for path in log.log_paths]
    assert sizes == [segment.size_bytes for segment in log.segments]
    assert [segment.size_bytes for segment in segments] == [*sizes, 0]
    assert all(size <= 100_000 for size in sizes)
    assert all(size > 75_000 for size in sizes[:-1])


@pytest.mark.parametrize("codec", CODECS)
def test_the_indexes_are_those_of_the_batches(tmp_path: Path, codec: Codec) -> None:
    log = generate(str(tmp_path / "bench-0"), shape(codec=codec))
    checked = 0
    with opened(log) as found:
        for segment in list(found.view.segments)[:-1]:
            rows = [
                (at.position, at.header.size_bytes, at.header.last_offset, at.header.max_timestamp)
                for at in segment.headers()
            ]
            columns = np.array(rows, np.int64).T
            state, entries = index_builder.extend(
                index_builder.IndexState(segment.base_offset), *columns
            )
            _, closing = index_builder.finish(state)
            offsets, times = segment.indexes.entries()
            assert offsets.offsets.tolist() == entries.offsets.tolist()
            assert offsets.positions.tolist() == entries.positions.tolist()
            wanted = [*entries.timestamps.tolist(), *closing.timestamps.tolist()]
            assert times.timestamps.tolist() == wanted
            checked += len(offsets)
    assert checked > 10


def test_equal_shapes_give_equal_bytes(tmp_path: Path) -> None:
    def files(name: str, threads: int, seed: int) -> dict[str, bytes]:
        # Several blocks, so that threads could come out of order.
        sizes = shape(seed=seed, record_bytes=2 << 20, batch_bytes=1 << 10)
        log = generate(str(tmp_path / name), sizes, threads)
        return {path.name: path.read_bytes() for path in Path(log.directory).iterdir()}

    one = files("one", 1, 1)
    assert files("three", 3, 1) == one
    assert files("other", 1, 2) != one


def test_codecs_have_the_same_records(tmp_path: Path) -> None:
    contents = []
    for codec in CODECS:
        log = generate(str(tmp_path / codec.name), shape(codec=codec))
        with opened(log) as found:
            contents.append([(r.offset, r.key, r.value) for r in found.read_records(0)])
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("value_bytes", [100, 1024])
def test_the_values_shrink_as_stated(value_bytes: int) -> None:
    lz4, zstd = logs.value_ratios(value_bytes)
    assert lz4 == pytest.approx(1.6, abs=0.05)
    assert zstd == pytest.approx(2.2, abs=0.08)


@pytest.mark.parametrize("distinct", [0.1, 1.0])
def test_the_share_of_distinct_keys(tmp_path: Path, distinct: float) -> None:
    log = generate(str(tmp_path / "bench-0"), shape(distinct=distinct))
    # Drawn with putting back: of n keys drawn m times, a share of 1 - exp(-m / n) turns up.
    expected = log.records * distinct * (1 - np.exp(-1 / distinct))
    assert log.keys == pytest.approx(expected, rel=0.05)


def test_linked_files_are_the_same_files(tmp_path: Path) -> None:
    log = generate(str(tmp_path / "bench-0"), shape())
    linked = log.linked(str(tmp_path / "run" / "bench-0"))
    assert [Path(p).stat().st_ino for p in linked.log_paths] == [
        Path(p).stat().st_ino for p in log.log_paths
    ]
    assert linked.job().directory != log.job().directory
