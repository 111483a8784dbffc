"""Checking produced records: the kernel, the Python path and the naive twin accept the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from stratalog.base.errors import CorruptionError, InvalidRecordError, InvalidTimestampError
from stratalog.record import layout
from stratalog.record.batch import Batch
from stratalog.record.kernel import arrays, produced
from stratalog.record.kernel.compile import JIT
from stratalog.record.validate import ProduceRules, check_each_record
from stratalog.record.values import parse_header
from tests.naive import produced as naive
from tests.record.kernel.helpers import as_array, times

NOW_MS = 1_700_000_000_000
Answer = tuple[int, int] | None

EXTREMES = [0, 1, -1, -2, 62, 63, 64, 255, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
BASES = [NOW_MS, NOW_MS, NOW_MS, -1, 0, 2**63 - 1, 1 - 2**63, -(2**63)]
BOUNDS = [
    naive.Bounds(NOW_MS, after_ms=3_600_000),
    naive.Bounds(NOW_MS, before_ms=1000, after_ms=1000),
    naive.Bounds(NOW_MS, append_time=True, after_ms=0),
    naive.Bounds(NOW_MS, requires_key=True),
    naive.Bounds(NOW_MS, before_ms=0, after_ms=0, requires_key=True),
    naive.Bounds(0, before_ms=2**63 - 1, after_ms=2**63 - 1),
]


def varint(random: Random, value: int, longest: int = 5) -> bytes:
    """Now and then longer than it need be."""
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    if random.random() < 0.04:
        while len(out) < longest and random.random() < 0.8:
            out[-1] |= 0x80
            out.append(0)
    return bytes(out)


def sized(random: Random, content: bytes | None) -> bytes:
    return varint(random, -1) if content is None else varint(random, len(content)) + content


def maybe_bytes(random: Random) -> bytes | None:
    return None if random.random() < 0.2 else random.randbytes(random.choice([0, 1, 3, 70]))


def record(random: Random, number: int, timestamp_delta: int) -> bytes:
    key = b"k" if random.random() < 0.7 else maybe_bytes(random)
    headers = random.choice([0, 0, 0, 1, 2])
    body = b"\0" + varint(random, timestamp_delta, 10) + varint(random, number)
    body += sized(random, key) + sized(random, maybe_bytes(random)) + varint(random, headers)
    for _ in range(headers):
        name = None if random.random() < 0.03 else random.randbytes(random.choice([0, 1, 5]))
        body += sized(random, name) + sized(random, maybe_bytes(random))
    return varint(random, len(body)) + body


def random_payload(random: Random, count: int, base: int) -> bytes:
    """Records as a producer makes them, or nearly."""
    parts = []
    for number in range(count):
        delta = random.choice([0, 0, 1, 500, -500])
        if random.random() < 0.05:
            # Around the ends of int64, or to a record without a timestamp.
            delta = random.choice([*EXTREMES, -1 - base])
        delta = max(-(2**63), min(2**63 - 1, delta))
        parts.append(record(random, number, delta))
    return b"".join(parts)


def mutated(random: Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    at = random.randrange(len(data))
    kind = random.randrange(6)
    if kind == 0:
        data[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        data[at] = random.choice([0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
    elif kind == 2:
        del data[at]
    elif kind == 3:
        data.insert(at, random.choice([0, 1, 0x80, 0xFF]))
    elif kind == 4:
        del data[at : at + random.choice([2, 8, 1000])]
    else:
        data[at:at] = data[at : at + random.choice([2, 8, 40])]
    return bytes(data)


def rules_of(bounds: naive.Bounds) -> ProduceRules:
    return ProduceRules(
        requires_key=bounds.requires_key,
        is_log_append_time=bounds.append_time,
        max_before_ms=bounds.before_ms,
        max_after_ms=bounds.after_ms,
    )


def ask_python(payload: bytes, count: int, base: int, bounds: naive.Bounds) -> Answer:
    length = layout.HEADER_BYTES - layout.LOG_OVERHEAD + len(payload)
    header = layout.HEADER.pack(0, length, 0, 2, 0, 0, count - 1, base, 0, -1, -1, -1, count)
    batch = Batch(parse_header(header), memoryview(header + payload))
    try:
        return check_each_record(batch, rules_of(bounds), bounds.now_ms)
    except (CorruptionError, InvalidRecordError):
        return None


def ask_kernel(payload: bytes, count: int, base: int, bounds: naive.Bounds) -> tuple[int, Answer]:
    """The payload lies between bytes that must not be read."""
    lowest, highest = 1 - 2**63, 2**63 - 1
    if not bounds.append_time:
        lowest = max(lowest, bounds.now_ms - bounds.before_ms)
        highest = min(highest, bounds.now_ms + bounds.after_ms)
    raw = as_array(b"\x02\x80\x00" + payload + b"\x0c\x00\x00\x00\x01\x01\x00\xff")
    code, largest, delta = produced.check_records(
        raw, 3, 3 + len(payload), count, base, bounds.requires_key, lowest, highest
    )
    return int(code), (int(largest), int(delta)) if code == arrays.OK else None


def compare(payload: bytes, count: int, base: int, bounds: naive.Bounds) -> tuple[int, bool]:
    code, answer = ask_kernel(payload, count, base, bounds)
    expected = ask_python(payload, count, base, bounds)
    case = (payload.hex(), count, base, bounds)
    assert answer == expected, case
    assert naive.check(payload, count, base, bounds) == expected, case
    return code, expected is not None


@pytest.mark.requirement("LOG-3", "CMP-10")
def test_random_batches(count_cases: Callable[[str, int], None]) -> None:
    random = Random(3001)
    accepted = 0
    cases = times(3000)
    for _ in range(cases):
        count, base = random.choice([1, 2, 5, 12]), random.choice(BASES)
        payload = random_payload(random, count, base)
        accepted += compare(payload, count, base, random.choice(BOUNDS))[1]
    assert cases // 10 < accepted < cases
    count_cases("produced batches: kernel, Python, naive twin agree", cases)


@pytest.mark.requirement("LOG-3")
def test_mutants(count_cases: Callable[[str, int], None]) -> None:
    random = Random(3002)
    accepted = 0
    codes: set[int] = set()
    cases = times(24_000)
    for case in range(cases):
        if case % 8 == 0:
            count, base = random.choice([1, 2, 3, 4]), random.choice(BASES[:3])
            payload = random_payload(random, count, base)
        counted = count if random.random() < 0.9 else max(1, count + random.choice([-1, 1]))
        code, passed = compare(mutated(random, payload), counted, base, random.choice(BOUNDS[:4]))
        accepted += passed
        codes.add(code)
    # Mutants of values, keys and times pass.
    assert cases // 20 < accepted < cases * 3 // 4
    known = (arrays.BAD_RECORD, arrays.BAD_DELTA, arrays.BAD_KEY, arrays.BAD_VALUE)
    assert codes == {arrays.OK, *known, arrays.BAD_TIMESTAMP}
    count_cases("mutants of produced batches: kernel, Python, naive twin agree", cases)


def test_every_prefix_and_every_byte() -> None:
    random = Random(3003)
    payload = record(random, 0, 0) + record(random, 1, 2**40)
    bounds = naive.Bounds(NOW_MS)
    for end in range(len(payload)):
        assert not compare(payload[:end], 2, NOW_MS, bounds)[1]
    for at in range(0, len(payload), times(10) // 2):
        for byte in (0, 1, 0x7F, 0x80, 0xFF):
            compare(payload[:at] + bytes([byte]) + payload[at + 1 :], 2, NOW_MS, bounds)


def test_integers_at_their_limits() -> None:
    bounds = naive.Bounds(0)
    head, tail = b"\0", b"\0\1\1\0"

    def framed(delta: bytes) -> bytes:
        body = head + delta + tail
        return bytes([2 * len(body)]) + body

    nine = b"\x80" * 9
    for delta, passes in [
        (nine + b"\0", True),
        (nine + b"\1", True),
        (nine + b"\2", False),
        (nine + b"\x80\0", False),
        (b"\xff" * 9 + b"\1", False),  # -2^63 is a delta, and no timestamp above a base of 0
        (b"\xfd" + b"\xff" * 8 + b"\1", True),  # 1 - 2^63
        (b"\xfe" + b"\xff" * 8 + b"\1", True),  # 2^63 - 1
    ]:
        assert compare(framed(delta), 1, 0, bounds)[1] == passes
    body = head + b"\0" + tail
    for length, passes in [
        (b"\x8c\x80\x80\x80\0", True),
        (b"\x8c\x80\x80\x80\x80\0", False),
        (b"\x8c\x80\x80\x80\x10", False),
    ]:
        assert len(body) == 6
        assert compare(length + body, 1, 0, bounds)[1] == passes


def test_a_kernel_stays_within_its_buffer() -> None:
    """K2: bounds that do not fit the buffer are refused, whoever asks."""
    raw = np.zeros(10, np.uint8)
    for start, end in [(-1, 5), (0, 11), (6, 5), (11, 11)]:
        code, _, _ = produced.check_records(raw, start, end, 0, 0, False, 0, 1)
        assert code == arrays.BAD_RECORD


@pytest.mark.skipif(not JIT, reason="a million headers in plain Python")
def test_more_headers_than_there_may_be() -> None:
    count = (1 << 20) + 1
    for headers in (count - 1, count):
        body = b"\0\0\0\1\1" + varint(Random(0), headers) + b"\0\1" * headers
        zeros = varint(Random(0), len(body)) + body
        _, answer = ask_kernel(zeros, 1, 0, naive.Bounds(0))
        assert (answer is not None) == (headers < count)
        assert answer == ask_python(zeros, 1, 0, naive.Bounds(0))


@pytest.mark.parametrize("timestamp", [NOW_MS - 1001, NOW_MS + 1001])
def test_the_python_path_names_a_time_out_of_bounds(timestamp: int) -> None:
    bounds = naive.Bounds(NOW_MS, before_ms=1000, after_ms=1000)
    payload = record(Random(1), 0, 0)
    header = layout.HEADER.pack(0, 49 + len(payload), 0, 2, 0, 0, 0, timestamp, 0, -1, -1, -1, 1)
    batch = Batch(parse_header(header), memoryview(header + payload))
    with pytest.raises(InvalidTimestampError, match="too far from now") as caught:
        check_each_record(batch, rules_of(bounds), NOW_MS)
    assert caught.value.kafka_code == 32
