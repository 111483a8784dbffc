"""Preparing what producers send: another codec where the topic names one, checksums made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import CorruptionError, RecordTooLargeError
from stratalog.log.prepare import check_produced, place_produced, recompressed
from stratalog.log.settings import LogSettings
from stratalog.record import batch as batch_module
from stratalog.record import builder
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.layout import TimestampType
from tests.log.helpers import NOW, contents, open_log, records, sent
from tests.naive import codecs, produced
from tests.naive.records import Batch, Record, build_v2, parse_log

NONE, GZIP, LZ4 = Codec.NONE, Codec.GZIP, Codec.LZ4
APPEND_TIME = TimestampType.LOG_APPEND_TIME


def random_batch(random: Random, sequence: int) -> bytes:
    """A batch as the naive writer makes it for a producer."""
    made = [
        Record(
            i,
            NOW - random.choice([0, 5, 3_600_000]),
            random.randbytes(3) if random.random() < 0.8 else None,
            random.choice([None, b"", b"value " * random.randint(1, 50)]),
            ((b"h", None), (b"", b"x")) if random.random() < 0.2 else (),
        )
        for i in range(random.choice([1, 2, 9]))
    ]
    idempotent = random.random() < 0.7
    return build_v2(
        made,
        base_offset=0,
        last_offset=len(made) - 1,
        codec=random.randrange(5),
        producer_id=7 + sequence if idempotent else -1,
        producer_epoch=2 if idempotent else -1,
        base_sequence=sequence if idempotent else -1,
        transactional=idempotent and random.random() < 0.5,
    )


def fields(batch: Batch) -> dict[str, Any]:
    """Everything that a batch says; of its payload what it unfolds to."""
    payload = batch.raw[61:]
    named = {name: value for name, value in vars(batch).items() if name not in ("raw", "crc")}
    return named | {"payload": codecs.decompress(batch.codec, payload) if batch.codec else payload}


def stored(directory: Path) -> list[Batch]:
    return parse_log(contents(directory)["00000000000000000000.log"])


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("timestamps", list(TimestampType))
@pytest.mark.parametrize("codec", list(Codec))
def test_a_topic_with_a_codec_stores_what_the_naive_twin_makes(
    codec: Codec,
    timestamps: TimestampType,
    tmp_path: Path,
    count_cases: Callable[[str, int], None],
) -> None:
    random = Random(int(codec))
    log = open_log(tmp_path / "t-0", compression=codec, timestamp_type=timestamps)
    append_time_ms = NOW if timestamps is APPEND_TIME else None
    expected: list[Batch] = []
    kept = 0
    for sequence in range(40):
        raw = random_batch(random, sequence)
        made = produced.recompress(
            raw,
            codec,
            base_offset=log.log_end_offset,
            leader_epoch=3,
            append_time_ms=append_time_ms,
        )
        expected += parse_log(made)
        log.append(raw, leader_epoch=3)
        if parse_log(raw)[0].codec == codec:
            # The bytes are the producer's own: only its header was patched.
            assert stored(tmp_path / "t-0")[-1].raw[43:] == raw[43:]
            kept += 1
    log.close()
    found = stored(tmp_path / "t-0")
    assert all(batch.crc_ok() for batch in found)
    assert [fields(batch) for batch in found] == [fields(batch) for batch in expected]
    assert [batch.records() for batch in found] == [batch.records() for batch in expected]
    assert 0 < kept < len(found)
    count_cases("batches stored in the topic's codec", len(found))


@pytest.mark.requirement("LOG-13")
def test_several_batches_of_which_some_have_the_codec() -> None:
    settings = LogSettings(compression=LZ4)
    parts = [build_batch(records(3), codec=codec) for codec in (NONE, LZ4, GZIP)]
    checked = check_produced(b"".join(parts), settings, NOW)
    made = place_produced(checked, settings, NOW, 100, 0)
    batches = parse_log(bytes(made.data))
    assert [batch.codec for batch in batches] == [LZ4] * 3
    assert [batch.base_offset for batch in batches] == [100, 103, 106]
    assert [row[:2] for row in made.rows] == [(len(b.raw), b.last_offset) for b in batches]
    assert (made.first_offset, made.last_offset, made.max_timestamp) == (100, 108, NOW + 2)


def test_without_a_codec_of_its_own_the_topic_takes_the_producers() -> None:
    data = build_batch(records(3), codec=GZIP)
    for settings in (LogSettings(), LogSettings(compression=GZIP)):
        checked = check_produced(data, settings, NOW)
        assert recompressed(checked, settings, NOW) is checked
        assert bytes(checked.data) == data


@pytest.mark.requirement("LOG-9", "LOG-13")
def test_a_batch_that_grows_past_the_maximum(tmp_path: Path) -> None:
    data = build_batch(records(3, size=2000), codec=GZIP)
    log = open_log(tmp_path / "t-0", compression=NONE, max_message_bytes=6000)
    with pytest.raises(RecordTooLargeError, match="as none"):
        log.append(data)
    assert log.log_end_offset == 0
    log.append(build_batch(records(2, size=2000), codec=GZIP))
    log.close()


@pytest.mark.requirement("LOG-13")
def test_damage_is_found_before_anything_is_recompressed() -> None:
    data = bytearray(build_batch(records(3), codec=GZIP))
    data[-3] ^= 1
    with pytest.raises(CorruptionError, match="checksum"):
        check_produced(data, LogSettings(compression=NONE), NOW)


def test_a_repetition_is_still_known(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", compression=LZ4)
    first = log.append(sent(5, 0))
    again = log.append(sent(5, 0))
    assert again.is_duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset)
    log.close()


@pytest.mark.requirement("LOG-3")
@pytest.mark.parametrize(
    ("changes", "wrong_maximum", "made"),
    [
        ({}, False, 0),
        ({}, True, 1),
        ({"timestamp_type": APPEND_TIME}, False, 1),
        ({"compression": LZ4}, False, 1),
        ({"compression": LZ4}, True, 1),
        ({"compression": LZ4, "timestamp_type": APPEND_TIME}, True, 1),
        ({"compression": NONE, "timestamp_type": APPEND_TIME}, False, 1),
    ],
)
def test_a_checksum_is_made_once_if_at_all(
    changes: dict[str, Any], wrong_maximum: bool, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = build_batch(records(3), max_timestamp=NOW - 7 if wrong_maximum else None)
    checks: list[int] = []
    seals: list[int] = []
    real = builder.crc32c

    def counting(calls: list[int]) -> Callable[[Any], int]:
        def crc32c(buffer: Any) -> int:
            calls.append(1)
            return real(buffer)

        return crc32c

    monkeypatch.setattr(batch_module, "crc32c", counting(checks))
    monkeypatch.setattr(builder, "crc32c", counting(seals))
    settings = LogSettings(**changes)
    placed = place_produced(check_produced(data, settings, NOW), settings, NOW, 50, 1)
    assert (len(checks), len(seals)) == (1, made)
    (batch,) = parse_log(bytes(placed.data))
    assert batch.crc_ok()
    append_time = settings.is_log_append_time
    assert batch.max_timestamp == (NOW if append_time else NOW + 2)
    assert batch.append_time == append_time


def test_the_callers_bytes_are_left_alone() -> None:
    data = bytearray(build_batch([NewRecord(b"k", b"v", NOW)]))
    before = bytes(data)
    for settings in (LogSettings(timestamp_type=APPEND_TIME), LogSettings(compression=LZ4)):
        place_produced(check_produced(data, settings, NOW), settings, NOW, 9, 4)
        assert data == before
