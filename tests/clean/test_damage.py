"""Damaged and hostile segments: an error that names file, position and reason; nothing changed."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.clean.engine import Engine
from stratalog.clean.job import CleaningJob
from stratalog.clean.local_engine import LocalEngine
from stratalog.segment.txn_index import AbortedTxn
from tests.clean.damaging import raw_batch, raw_record, sealed, varint
from tests.clean.driving import (
    FS,
    Case,
    batch_of,
    case_of,
    contents,
    range_and_job,
    run,
    surviving,
    write_case,
)
from tests.clean.test_properties import SHARE, SWEEP
from tests.naive import codecs, files
from tests.naive.records import Batch, Record, build_legacy, build_marker, parse_log
from tests.oracle import rounds

ROOT = Path(__file__).resolve().parents[2]
Count = Callable[[str, int], None]
BOTH = {"1 thread": LocalEngine(FS, threads=1), "2 threads": LocalEngine(FS, threads=2)}
both_engines = pytest.mark.parametrize("engine", BOTH.values(), ids=BOTH)


def tiny_case(directory: Path) -> Case:
    """Three segments; that at 10 has batches of every kind in under 700 bytes."""
    of_ten = [
        batch_of(10, (b"a", b"1"), (b"b", None)),
        batch_of(14, (b"a", b"2"), (b"c", b"3"), codec=codecs.GZIP),
        build_legacy([Record(17, 1, b"d", b"4")], magic=1),
        build_legacy([Record(18, 1, b"d", b"5"), Record(19, 1, b"e", b"6")], magic=1, codec=1),
        batch_of(20, (b"f", b"7"), producer_id=5, producer_epoch=0, base_sequence=0),
        build_marker(1, offset=21, timestamp=1, producer_id=5, producer_epoch=0),
        batch_of(23, (b"a", b"8"), codec=codecs.LZ4),
    ]
    # Each segment fills a group, so that damage in one leaves the others their own.
    settings = {"segment.bytes": "700"}
    segments = {0: [batch_of(0, (b"a", b"0"))], 10: of_ten, 30: [batch_of(31, (b"z", b""))], 40: []}
    return write_case(directory, segments, settings)


def job_of(case: Case, **changes: object) -> CleaningJob:
    _, job = range_and_job(case, max_keys=None, **changes)
    assert job is not None
    return job


def path_of(case: Case, base: int) -> Path:
    return case.partition / files.name(base, ".log")


def damage_found(engine: Engine, job: CleaningJob, path: Path) -> CorruptionError | None:
    """Clean; the error if there is one. It must name the file and leave everything as it was."""
    directory = Path(job.directory)
    before = contents(directory)
    try:
        run(engine, [job])
    except CorruptionError as error:
        assert contents(directory) == before
        assert error.file == str(path)
        assert error.position is not None
        assert error.reason
        assert re.fullmatch(rf"{re.escape(str(path))}: position \d+: .+", str(error))
        return error
    for name in contents(directory).keys() - before.keys():
        assert name.endswith(".part")
        (directory / name).unlink()
    assert contents(directory) == before
    return None


def with_size(job: CleaningJob, base: int, size_bytes: int) -> CleaningJob:
    """The job as planned when the segment had that size."""
    segments = [
        replace(segment, size_bytes=size_bytes) if segment.base_offset == base else segment
        for segment in job.segments
    ]
    return replace(job, segments=tuple(segments))


# ---------------------------------------------------------------- truncation


@pytest.mark.requirement("CMP-16")
@both_engines
def test_every_truncation_is_found(engine: Engine, tmp_path: Path, count_cases: Count) -> None:
    case = tiny_case(tmp_path / "log")
    job, path = job_of(case), path_of(case, 10)
    data = path.read_bytes()
    ends = {0}
    for batch in parse_log(data):
        ends.add(max(ends) + len(batch.raw))
    assert max(ends) == len(data) < 700
    tried = 0
    for size in range(0, len(data), 1 if engine is BOTH["1 thread"] else 5):
        tried += 1
        path.write_bytes(data[:size])
        # A file that was cut after the plan is shorter than it should be, wherever the cut lies.
        error = damage_found(engine, job, path)
        assert error is not None, size
        assert 0 <= (error.position or 0) <= size
        # One that was cut before is whole if it ends with a batch: no byte tells of more.
        if size not in ends:
            error = damage_found(engine, with_size(job, 10, size), path)
            assert error is not None, size
            assert error.position == max(end for end in ends if end <= size), size
    count_cases("sizes of truncated segments", tried)


# ---------------------------------------------------------------- flipped bits


def is_revealed(batch: Batch, before: Batch | None, after: int, byte: int, bit: int) -> bool:
    """Whether a checksum, order or bounds can tell that this bit of a batch has flipped."""
    if 12 <= byte < 16 and batch.magic == 2:
        return False  # the leader epoch: outside the checksum, and any number may stand there
    if byte >= 8:
        return True
    data = bytearray(batch.raw[:8])
    data[byte] ^= 1 << bit
    (base_offset,) = struct.unpack(">q", data)
    last_offset = base_offset + batch.last_offset - batch.base_offset
    return base_offset <= (before.last_offset if before else 9) or last_offset >= after


@pytest.mark.requirement("CMP-16")
def test_every_flipped_bit_of_a_tiny_segment_is_found(tmp_path: Path, count_cases: Count) -> None:
    case = tiny_case(tmp_path / "log")
    job, path = job_of(case), path_of(case, 10)
    data = path.read_bytes()
    batches = parse_log(data)
    engine = LocalEngine(FS, threads=1)
    start = refused = 0
    for number, batch in enumerate(batches):
        before = batches[number - 1] if number else None
        after = batches[number + 1].base_offset if number + 1 < len(batches) else 30
        for bit in range(0, 8 * len(batch.raw), SHARE):
            damaged = bytearray(data)
            damaged[start + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            error = damage_found(engine, job, path)
            if is_revealed(batch, before, after, bit // 8, bit % 8):
                where = f"byte {bit // 8}, bit {bit % 8} of the batch at {batch.base_offset}"
                assert error is not None, where
                refused += 1
                if bit // 8 >= 16:
                    assert error.position == start, where
        start += len(batch.raw)
    assert refused > 6 * len(data) // SHARE
    count_cases("flipped bits found", refused)


@pytest.mark.requirement("CMP-16")
@both_engines
def test_flipped_bits_of_real_segments_are_found(
    engine: Engine, tmp_path: Path, count_cases: Count
) -> None:
    random = Random(1)
    chosen = [kafka for kafka in rounds() if kafka.cleaned][:: 9 if SHARE == 1 else 40]
    found = 0
    for number, kafka in enumerate(chosen):
        case = case_of(kafka, tmp_path / f"{number}")
        job = job_of(case, chunk_bytes=4096)
        for _ in range(6 * SWEEP):
            segment = random.choice([s for s in job.segments if s.size_bytes])
            path = path_of(case, segment.base_offset)
            data = path.read_bytes()
            batch = random.choice(parse_log(data))
            start = data.index(batch.raw)
            damaged = bytearray(data)
            damaged[random.randrange(start + 16, start + len(batch.raw))] ^= 1 << random.randrange(
                8
            )
            path.write_bytes(damaged)
            error = damage_found(engine, job, path)
            assert error is not None
            # Of two threads the one with the next chunk may be first to miss something.
            assert error.position == start or engine is BOTH["2 threads"]
            path.write_bytes(data)
            found += 1
    count_cases("flipped bits found", found)


# ---------------------------------------------------------------- hostile content

END = 1 << 40
"""Where the active segment begins: far enough for any count."""
TWO = raw_record() + raw_record(offset_delta=varint(1))
HUGE = [varint(n) for n in (1 << 31, (1 << 63) - 1, -(1 << 63))]

HOSTILE: dict[str, tuple[bytes, str]] = {
    # header
    "no magic that there is": (raw_batch(TWO, count=2, magic=3), "magic"),
    "magic below zero": (raw_batch(TWO, count=2, magic=-1), "magic"),
    "count below zero": (raw_batch(TWO, count=-1, last_delta=1), "count"),
    "count above the payload": (raw_batch(TWO, count=50), "count"),
    "count of billions": (raw_batch(TWO, count=(1 << 31) - 1), "count"),
    "count of billions, packed": (raw_batch(TWO, count=(1 << 31) - 1, attributes=4), "count"),
    "more records than offsets": (raw_batch(TWO, count=2, last_delta=0), "count"),
    "last offset below the first": (raw_batch(TWO, count=2, last_delta=-1), "count"),
    "an offset below zero": (raw_batch(TWO, count=2, base_offset=-5), "increase"),
    "an offset of the next segment": (raw_batch(TWO, count=2, base_offset=END - 1), "next segment"),
    "offsets past the last there is": (
        raw_batch(TWO, count=2, base_offset=(1 << 63) - 1),
        "increase|next segment",
    ),
    "a codec that there is not": (raw_batch(TWO, count=2, attributes=5), "codec|compression"),
    "packed bytes that are not": (
        sealed(raw_batch(TWO, count=2)[:22] + b"\4" + raw_batch(TWO, count=2)[23:]),
        "zstd",
    ),
    "length of nothing": (raw_batch(TWO, count=2, length=0), "length"),
    "length below zero": (raw_batch(TWO, count=2, length=-1), "length"),
    "length below a header": (raw_batch(TWO, count=2, length=48), "length"),
    "length of gigabytes": (raw_batch(TWO, count=2, length=(1 << 31) - 1), "length"),
    "length past the end": (raw_batch(TWO, count=2, length=1 << 20), "cut off"),
    # records
    "fewer records than said": (raw_batch(TWO + bytes(30), count=3), "record length"),
    "more records than said": (raw_batch(TWO, count=1, last_delta=1), "record length"),
    "bytes past the records": (raw_batch(TWO + b"\0", count=2), "record length"),
    "a record of negative length": (
        raw_batch(raw_record(length=varint(-1)), count=1),
        "record length",
    ),
    "a record longer than the batch": (
        raw_batch(raw_record(length=varint(90)), count=1),
        "record length",
    ),
    "a record shorter than it is": (
        raw_batch(raw_record(length=varint(7)) + bytes(9), count=1),
        "length",
    ),
    "a length that never ends": (raw_batch(b"\xff" * 40, count=1), "record length"),
    "a timestamp that never ends": (
        raw_batch(raw_record(timestamp_delta=b"\xff" * 30), count=1),
        "delta",
    ),
    "offsets that fall": (
        raw_batch(raw_record(offset_delta=varint(1)) + raw_record(), count=2),
        "offset delta",
    ),
    "an offset twice": (raw_batch(raw_record() * 2, count=2), "offset delta"),
    "an offset past the last": (
        raw_batch(raw_record() + raw_record(offset_delta=varint(2)), count=2),
        "offset delta",
    ),
    "an offset below the first": (raw_batch(raw_record(offset_delta=varint(-1))), "offset delta"),
    "a key of length -2": (raw_batch(raw_record(key_size=varint(-2))), "key length"),
    "a key past the record": (raw_batch(raw_record(key_size=varint(9))), "key length"),
    "a value of length -2": (raw_batch(raw_record(value_size=varint(-2))), "value length"),
    "a value past the record": (raw_batch(raw_record(value_size=varint(9))), "value length"),
    "a value that never ends": (raw_batch(raw_record(value_size=b"\xff" * 12)), "value length"),
    "a control batch that is packed": (
        raw_batch(TWO, count=2, attributes=0x34, producer_id=1),
        "control batch is compressed",
    ),
}
for _name, _bytes in zip(("2^31", "2^63 - 1", "-2^63"), HUGE, strict=True):
    HOSTILE[f"an offset of {_name}"] = (raw_batch(raw_record(offset_delta=_bytes)), "offset delta")
    HOSTILE[f"a key of {_name} bytes"] = (raw_batch(raw_record(key_size=_bytes)), "key length")
    HOSTILE[f"a value of {_name} bytes"] = (
        raw_batch(raw_record(value_size=_bytes)),
        "value length",
    )
    HOSTILE[f"a record of {_name} bytes"] = (raw_batch(raw_record(length=_bytes)), "record length")


@pytest.mark.requirement("CMP-16", "LOG-13")
@both_engines
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_batches_are_refused(what: str, engine: Engine, tmp_path: Path) -> None:
    hostile, reason = HOSTILE[what]
    good = raw_batch(raw_record(), base_offset=0)
    case = write_case(tmp_path / "log", {0: [good], END: []})
    job, path = job_of(case), path_of(case, 0)
    if struct.unpack_from(">q", hostile)[0] == 0:
        hostile = struct.pack(">q", 1) + hostile[8:]  # after the honest one; outside the checksum
    data = good + hostile
    path.write_bytes(data)
    before = contents(case.partition)
    with pytest.raises(CorruptionError, match=reason) as caught:
        run(engine, [with_size(job, 0, len(data))])
    assert caught.value.file == str(path)
    assert caught.value.position in (len(good), 0)
    after = contents(case.partition)
    # What is found only while records are rewritten may leave an attempt's file behind.
    assert before == {name: after[name] for name in after if not name.endswith(".part")}


@pytest.mark.requirement("CMP-16", "LOG-13")
def test_counts_of_batches_that_nobody_opens_cost_no_memory(tmp_path: Path) -> None:
    """Data of an aborted transaction is dropped without a look inside."""
    hostile = raw_batch(TWO, count=(1 << 31) - 1, attributes=0x14, producer_id=3)
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"k", b"v"))], END: []})
    job = replace(job_of(case), aborted=(AbortedTxn(3, 0, END - 1, END),))
    path_of(case, 0).write_bytes(hostile)
    engine = LocalEngine(FS, threads=1)
    try:
        run(engine, [with_size(job, 0, len(hostile))])
    except CorruptionError as error:
        assert error.file == str(path_of(case, 0))
    assert engine.scratch_bytes < 64 << 20


@pytest.mark.requirement("CMP-16")
def test_damage_fuzz_ends_in_an_answer_or_an_error(tmp_path: Path, count_cases: Count) -> None:
    """Anything at all under a right checksum: kernels stay within their bounds (K2).

    As plain Python an index out of bounds raises, which is no `CorruptionError`.
    """
    random = Random(1)
    engine = LocalEngine(FS, threads=1)
    refused = answered = 0
    for number in range(max(100, 300 * SWEEP // SHARE)):
        data = b""
        offset = 0
        for _ in range(random.randrange(1, 4)):
            pairs = [(b"k%d" % random.randrange(3), random.randbytes(4)) for _ in range(3)]
            batch = bytearray(batch_of(offset, *pairs, codec=random.choice([0, 0, 1, 2, 3, 4])))
            for _ in range(random.randrange(1, 5)):
                place = random.choice([*range(21, 61), *range(61, len(batch))])
                batch[place] = random.choice([0, 1, 2, 0x7F, 0x80, 0xFF, random.randrange(256)])
            if random.random() < 0.2:
                batch += random.randbytes(random.randrange(20))
                batch[8:12] = struct.pack(">i", len(batch) - 12)
            data += sealed(bytes(batch))
            offset += 3 + random.randrange(2)
        case = write_case(tmp_path / f"{number}", {0: [batch_of(0, (b"k", b"v"))], 1 << 40: []})
        job, path = job_of(case), path_of(case, 0)
        path.write_bytes(data)
        if random.random() < 0.3:
            job = replace(job, aborted=(AbortedTxn(-1, 0, 1 << 20, 1 << 20),))
        try:
            run(engine, [with_size(job, 0, len(data))])
            answered += 1
        except CorruptionError as error:
            assert error.file == str(path)
            assert error.position is not None
            refused += 1
        assert path.read_bytes() == data
    assert min(refused, answered) > 5
    assert engine.scratch_bytes < 200 << 20
    count_cases("damaged batches with right checksums", refused + answered)


# ---------------------------------------------------------------- bombs

LIMIT_BYTES = 1 << 20
BOMB_BYTES = 96 << 20

MEASURE = """
import json, resource, sys
sys.path[:0] = json.loads(sys.argv[1])
from pathlib import Path
from stratalog.base.errors import CorruptionError
from stratalog.clean.local_engine import LocalEngine
from tests.clean.driving import FS, Case, range_and_job, run
from tests.naive.plan import Inputs

def clean(name, **changes):
    directory = Path(sys.argv[2], name, "topic-0")
    inputs = Inputs({}, 1_700_000_000_000, 0, 9, 9)
    _, job = range_and_job(Case(name, directory, inputs), max_keys=None, **changes)
    try:
        run(LocalEngine(FS, threads=1), [job])
    except CorruptionError as error:
        return str(error)

clean("honest")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
said = [clean(name, max_decompressed_bytes=int(sys.argv[3])) for name in sys.argv[4:]]
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, said]))
"""


@pytest.mark.requirement("LOG-13", "CMP-16")
def test_bombs_of_every_codec_are_refused_within_memory(tmp_path: Path) -> None:
    """Each would unpack to 96 MiB; the limit is 1 MiB, and the process grows by far less."""
    import json

    zeros = bytes(BOMB_BYTES)
    record = raw_record(value_size=varint(len(zeros)), value=zeros)
    names = codecs.NAMES[1:]
    for codec, name in enumerate(names, start=1):
        bomb = raw_batch(record, attributes=codec)
        assert len(bomb) < BOMB_BYTES // 15
        write_case(tmp_path / name, {0: [bomb], 9: []})
    write_case(tmp_path / "honest", {0: [batch_of(0, (b"k", b"v"), codec=4)], 9: []})
    del zeros, record, bomb
    path = json.dumps([str(ROOT), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path, str(tmp_path), str(LIMIT_BYTES), *names],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown_kib, said = json.loads(done.stdout)
    for name, message in zip(names, said, strict=True):
        assert message is not None, name
        assert str(tmp_path / name) in message
        assert str(LIMIT_BYTES) in message or "limit" in message, message
    assert grown_kib < 48 << 10


@pytest.mark.requirement("LOG-13")
def test_a_batch_at_the_limit_is_no_bomb(tmp_path: Path) -> None:
    for codec in range(1, 5):
        packed = batch_of(0, (b"k", bytes(5000)), codec=codec)
        size = len(batch_of(0, (b"k", bytes(5000)))) - 61
        case = write_case(tmp_path / f"{codec}", {0: [packed], 1: []})
        engine = LocalEngine(FS, threads=1)
        run(engine, [job_of(case, max_decompressed_bytes=size)])
        with pytest.raises(CorruptionError):
            run(engine, [job_of(case, max_decompressed_bytes=size - 1)])


def test_what_is_damaged_in_these_tests_is_sound_before(tmp_path: Path) -> None:
    """Else they would show nothing."""
    case = tiny_case(tmp_path / "log")
    for engine in BOTH.values():
        assert damage_found(engine, job_of(case), path_of(case, 10)) is None
    good = raw_batch(TWO, count=2)
    for number, attributes in enumerate([0, 1, 2, 3, 4]):
        sound = raw_batch(TWO, count=2, attributes=attributes)
        case = write_case(tmp_path / f"{number}", {0: [sound], 2: []})
        assert run(LocalEngine(FS), [job_of(case)])[0].volume.records_before == 2
        assert surviving(case.partition) == {0: (b"k", b"v"), 1: (b"k", b"v")}
    assert parse_log(good)[0].crc_ok()
