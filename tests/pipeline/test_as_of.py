"""As of when: what people may write, and which ledger answers. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from stratalog.base.errors import UsageError
from stratalog.ledger.manifest import Generation, Manifest
from stratalog.pipeline.as_of import AsOf, Moment, choose, read_as_of
from stratalog.segment.segment import TimestampOffset

pytestmark = pytest.mark.requirement("LDG-6")


@dataclass(frozen=True)
class Raw:
    """A raw log whose record at offset n has the time n."""

    log_start_offset: int
    log_end_offset: int

    def offset_for_timestamp(self, time_ms: int) -> TimestampOffset | None:
        found = max(time_ms, self.log_start_offset)
        return TimestampOffset(found, found) if found < self.log_end_offset else None


FIRST, SECOND = Generation(3, 0, 10, 0), Generation(4, 0, 20, 0)
TWO = Manifest((FIRST, SECOND), 5)
NONE = Manifest()


def chosen(
    as_of: Any, raw: Raw, manifest: Manifest = TWO, cleaned: int | None = None
) -> tuple[int | None, int] | str:
    """(ledger, end), or the refusal. Records of a ledger are older than its horizon."""
    current = manifest.current
    try:
        found = choose(
            manifest,
            raw,  # type: ignore[arg-type]
            read_as_of(as_of),
            name="t-0",
            cleaner_point=cleaned,
            is_older=lambda time_ms: current is None or time_ms >= current.horizon,
        )
    except UsageError as refusal:
        assert "\n" not in str(refusal)
        return str(refusal)
    number = None if found.generation is None else found.generation.number
    return number, found.end_offset


@pytest.mark.parametrize(
    ("as_of", "raw", "expected"),
    [
        ("ledger:3", Raw(0, 30), (3, 10)),
        ("ledger:3", Raw(20, 30), (3, 10)),
        ("ledger:5", Raw(0, 30), "t-0: there is no ledger 5; there is ledger:3 (ends at 10), "),
        # The whole raw log: everything is answered.
        (0, Raw(0, 30), (None, 0)),
        (9, Raw(0, 30), (None, 9)),
        (10, Raw(0, 30), (3, 10)),
        (19, Raw(0, 30), (3, 19)),
        (20, Raw(0, 30), (4, 20)),
        (30, Raw(0, 30), (4, 30)),
        (31, Raw(0, 30), "t-0: as of offset 31: the log ends at 30"),
        ("@15", Raw(0, 30), (3, 15)),
        ("@5", Raw(0, 30), (None, 5)),
        ("@999", Raw(0, 30), (4, 30)),
        # It has lost its head, but less than the first ledger has.
        (9, Raw(5, 30), "t-0: as of offset 9: the raw log begins at offset 5 by now, and no led"),
        (10, Raw(5, 30), (3, 10)),
        (15, Raw(10, 30), (3, 15)),
        # More than that: the first ledger answers for its own end alone.
        (15, Raw(11, 30), "t-0: as of offset 15: the raw log begins at offset 11 by now, and no"),
        (10, Raw(11, 30), (3, 10)),
        (20, Raw(20, 30), (4, 20)),
        (25, Raw(20, 30), (4, 25)),
        ("@25", Raw(20, 30), (4, 25)),
        ("@20", Raw(20, 30), (4, 20)),  # all that the ledger has is older
        ("@19", Raw(20, 30), "t-0: as of @19: the raw log begins later by now; there is ledger:3"),
        ("@15", Raw(11, 30), "t-0: as of @15: the raw log begins at offset 11 by now, and no "),
        # Nothing of the raw log is left.
        ("@999", Raw(20, 20), (4, 20)),
        ("@15", Raw(20, 20), "t-0: as of @15: the raw log begins later by now"),
        # Its start was moved past the ledger.
        (25, Raw(22, 30), "t-0: as of offset 25: the raw log begins at offset 22 by now"),
    ],
)
def test_which_ledger_answers(as_of: Any, raw: Raw, expected: Any) -> None:
    found = chosen(as_of, raw)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert found.startswith(expected)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("as_of", "raw", "cleaned", "expected"),
    [
        (5, Raw(0, 30), None, (None, 5)),
        (5, Raw(3, 30), None, (None, 5)),
        (3, Raw(3, 30), None, (None, 3)),
        (2, Raw(3, 30), None, "t-0: as of offset 2: the raw log begins at offset 3 by now, and "),
        ("@2", Raw(3, 30), None, "t-0: as of @2: the raw log begins later by now; there is no led"),
        ("@0", Raw(0, 30), None, (None, 0)),
        (5, Raw(0, 30), 6, "t-0: as of offset 5: offsets below 6 have been cleaned since"),
        (6, Raw(0, 30), 6, (None, 6)),
        (30, Raw(0, 30), 99, (None, 30)),  # a checkpoint past the end
    ],
)
def test_without_a_ledger_the_log_answers(
    as_of: Any, raw: Raw, cleaned: int | None, expected: Any
) -> None:
    found = chosen(as_of, raw, NONE, cleaned)
    assert found == expected or (isinstance(expected, str) and str(found).startswith(expected))


def test_what_people_may_write() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    noon_ms = round(noon.timestamp() * 1000)
    for given, expected in (
        (AsOf(offset=5), AsOf(offset=5)),
        (5, AsOf(offset=5)),
        (" 5 ", AsOf(offset=5)),
        ("ledger:12", AsOf(ledger=12)),
        ("@0", AsOf(time_ms=0)),
        (noon, AsOf(time_ms=noon_ms)),
        (noon.replace(tzinfo=None), AsOf(time_ms=noon_ms)),
        (noon.astimezone(timezone(timedelta(hours=5))), AsOf(time_ms=noon_ms)),
        ("2026-01-31T12:00:00Z", AsOf(time_ms=noon_ms)),
        ("2026-01-31T13:00:00+01:00", AsOf(time_ms=noon_ms)),
    ):
        assert read_as_of(given) == expected, given
    for wrong in (
        *("", "ledger:", "ledger:x", "ledger:0", "ledger:123456789", "@", "@-1", "-1", "1e3"),
        *("9" * 19, "9" * 400, "@" + "9" * 18, "2026-13-01", "٣", -1, 1 << 63, True, 1.5, None),
        *(b"5", datetime(1900, 1, 1, tzinfo=UTC), "1969-12-31T23:59:59Z"),
    ):
        with pytest.raises(UsageError) as refusal:
            read_as_of(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(refusal.value)
    assert [str(AsOf(ledger=3)), str(AsOf(offset=0)), str(AsOf(time_ms=7))] == [
        *("ledger:3", "offset 0", "@7")
    ]
    assert Moment(None, 3) == Moment(None, 3)
