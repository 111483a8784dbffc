"""The local engine's own business: pieces and buffers, progress, giving up."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.clean import chunk
from stratalog.clean.engine import Progress
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    Case,
    Pair,
    batch_of,
    case_of,
    clean_case,
    clean_naively,
    contents,
    range_and_job,
    run,
    segment_files,
    write_case,
)
from tests.naive import codecs, files
from tests.oracle import compare_partitions, rounds

THREADS = pytest.mark.parametrize("threads", [1, 2])


@pytest.mark.requirement("SPK-2", "LOG-13")
def test_how_much_is_decompressed_at_a_time_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pieces a chunk, and single batches that exceed the room for a piece."""
    names = ("plain-lz4", "plain-zstd", "plain-snappy", "headers-large", "log-00")
    chosen = [kafka for kafka in rounds() if kafka.cleaned and kafka.name.startswith(names)]
    made = []
    for plain_bytes in (8 << 20, 1):
        monkeypatch.setattr(chunk, "PLAIN_BYTES", plain_bytes)
        engine = LocalEngine(FS, threads=2)
        for number, kafka in enumerate(chosen):
            case = case_of(kafka, tmp_path / f"{plain_bytes}-{number}")
            clean_case(engine, case)
            made.append(segment_files(case.partition))
    assert made[: len(chosen)] == made[len(chosen) :]


@pytest.mark.requirement("CMP-8", "CMP-15")
@pytest.mark.parametrize("codec", [codecs.NONE, codecs.LZ4])
def test_batches_may_outgrow_their_chunk(tmp_path: Path, codec: int) -> None:
    """A horizon before which all lies days makes every record of a batch larger."""
    count = 20_000 if JIT else 2_000
    batches = [
        batch_of(start, *[(b"%x" % (start + n), None) for n in range(500)], codec=codec)
        for start in range(0, count, 500)
    ]
    case = write_case(tmp_path / "log", {0: batches, count: []})
    before = case.copied(tmp_path / "before")
    clean_naively(before, tmp_path / "naive")
    cleaned = clean_case(LocalEngine(FS, threads=1), case)
    assert cleaned is not None
    if codec == codecs.NONE and JIT:
        assert cleaned.volume.bytes_after > cleaned.volume.bytes_before + (1 << 16)
    assert compare_partitions(tmp_path / "naive" / "topic-0", case.partition) == []


def large_case(directory: Path, segments: int = 3) -> Case:
    """Segments of 100 batches; half of the records are superseded."""
    laid: dict[int, list[bytes]] = {}
    for number in range(segments):
        base = number * 1000
        laid[base] = [
            batch_of(base + 10 * n, *pairs(base // 2 + 5 * n, 10), codec=n % 5) for n in range(100)
        ]
    return write_case(directory, {**laid, segments * 1000: []}, {"segment.bytes": "20000"})


def pairs(first_key: int, count: int) -> list[Pair]:
    return [(b"key-%d" % (first_key + n), b"value" * 3) for n in range(count)]


@THREADS
def test_progress_goes_through_both_phases_over_all_jobs(tmp_path: Path, threads: int) -> None:
    cases = [large_case(tmp_path / "one"), large_case(tmp_path / "two", 1)]
    jobs = [range_and_job(case, chunk_bytes=700, max_keys=None)[1] for case in cases]
    seen: list[Progress] = []
    lock = threading.Lock()

    def note(progress: Progress) -> None:
        with lock:
            seen.append(progress)

    LocalEngine(FS, threads=threads).clean(
        [job for job in jobs if job], writes=False, on_progress=note
    )
    total = sum(path.stat().st_size for case in cases for path in case.partition.glob("*.log"))
    assert {progress.total_bytes for progress in seen} == {total}
    assert all(0 <= progress.done_bytes <= total for progress in seen)
    phases = [progress.phase for progress in seen]
    changes = phases[:1] + [new for old, new in pairwise(phases) if new != old]
    assert changes == ["index", "rewrite"] * 2
    assert seen[-1] == Progress("rewrite", total, total)
    assert len(seen) > 50


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@THREADS
@pytest.mark.parametrize("phase", ["index", "rewrite"])
def test_whoever_watches_may_end_it(tmp_path: Path, threads: int, phase: str) -> None:
    """As Ctrl-C in a progress bar does: every thread stops, every file is closed, nothing moves."""
    case = large_case(tmp_path / "log")
    _, job = range_and_job(case, chunk_bytes=500, max_keys=None)
    assert job is not None
    before, files_open = contents(case.partition), open_files()
    calls = 0

    def stop(progress: Progress) -> None:
        nonlocal calls
        calls += progress.phase == phase
        if calls == 5:
            raise KeyboardInterrupt

    engine = LocalEngine(FS, threads=threads)
    with pytest.raises(KeyboardInterrupt):
        engine.clean([job], writes=True, on_progress=stop)
    assert calls < 5 + 2 * threads
    assert open_files() == files_open
    after = contents(case.partition)
    assert before == {name: after[name] for name in after if not name.endswith(".part")}
    # The same engine is fit for the next job.
    (cleaned,) = run(engine, [job])
    assert cleaned.volume.records_after == 1505


@THREADS
def test_damage_past_many_chunks_stops_all_threads(tmp_path: Path, threads: int) -> None:
    case = large_case(tmp_path / "log")
    _, job = range_and_job(case, chunk_bytes=500, max_keys=None)
    assert job is not None
    files_open = open_files()
    path = case.partition / files.name(1000, ".log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = contents(case.partition)
    with pytest.raises(CorruptionError) as caught:
        run(LocalEngine(FS, threads=threads), [job])
    assert caught.value.file == str(path)
    assert contents(case.partition) == before
    assert open_files() == files_open


@pytest.mark.requirement("CMP-7")
def test_buffers_do_not_grow_with_the_log(tmp_path: Path) -> None:
    sizes = []
    for segments in (2, 8):
        engine = LocalEngine(FS, threads=1)
        case = large_case(tmp_path / f"{segments}", segments)
        assert clean_case(engine, case, chunk_bytes=8 << 10, max_keys=None) is not None
        sizes.append(engine.scratch_bytes)
    assert sizes[0] == sizes[1]
