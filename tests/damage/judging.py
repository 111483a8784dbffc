"""What a damaged directory may answer: the same as before, an error, or, after a crash, less at
the end. Anything else is a silent wrong answer.

    same        every question has the answer that it had before the damage
    noticed     something said that there is damage; what was answered nevertheless is right
    shortened   the log was not closed in order and ends earlier, at or above its recovery point
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

from stratalog.base.errors import CorruptionError, OffsetOutOfRangeError, StratalogError, UsageError
from stratalog.log.partition_log import PartitionLog
from stratalog.record.batch import batches as batches_of
from tests.damage.images import Image, Truth, open_image
from tests.log.stores import A
from tests.sim.disk import SimDisk

QUESTIONS = 3 if os.environ.get("STRATALOG_SWEEP") == "1" else 1
"""How many offsets, and how many times, each directory is asked for; beside reading all of it."""
SAME, NOTICED, SHORTENED = "same", "noticed", "shortened"


class SilentlyWrong(AssertionError):  # noqa: N818 - reads as what it is in a test report
    """An answer that is wrong, and nothing that says so."""


def judge(image: Image, disk: SimDisk, rng: Random) -> str:
    """Open what is on `disk`, a damaged copy of the image, and ask. Raises `SilentlyWrong`; what
    else is raised is a bug, too."""
    try:
        store = open_image(disk, image.settings)
    except UsageError:
        raise
    except StratalogError:
        return NOTICED
    if store.failed_dirs or store.failed:
        return NOTICED
    log = store.get(A)
    verdict = _Questions(image, log, rng).ask()
    if rng.random() < 0.05:
        store.close()
        _judge_again(image, disk, verdict, log.quarantine is not None)
    return verdict


def _judge_again(image: Image, disk: SimDisk, verdict: str, was_quarantined: bool) -> None:
    """What was found damaged stays so, what was put in order does, too."""
    store = open_image(disk, image.settings)
    log = store.get(A)
    if was_quarantined != (log.quarantine is not None):
        raise SilentlyWrong(f"quarantined: {was_quarantined}, then {log.quarantine}")
    again = _Questions(image, log, Random(1)).ask()
    if verdict == SAME and again != SAME:
        raise SilentlyWrong(f"was the same, is now {again}")
    store.close()


class _Questions:
    def __init__(self, image: Image, log: PartitionLog, rng: Random):
        self.image = image
        self.log = log
        self.rng = rng
        self.noticed = log.quarantine is not None
        self.read_to = 0

    def ask(self) -> str:
        whole = self.image.truth
        truth = self._read(whole)
        for offset in self._some(range(truth.start, truth.end)):
            self._try(lambda offset=offset: self._find(offset, truth))  # type: ignore[misc]
        times = sorted({at + more for _, at in whole.times for more in (0, 1)})
        for timestamp in self._some(times):
            self._try(lambda at=timestamp: self._find_time(at, truth))  # type: ignore[misc]
        if self.rng.random() < 0.3:
            self._try(lambda: self._find_latest(truth))
        self._aborted(truth)
        if not self.noticed and truth is whole:
            self._equal("stable offset", self.log.last_stable_offset, whole.stable)
            self._equal("producers", self.log.active_producers(), whole.producers)
        if self.noticed:
            return NOTICED
        return SAME if truth is whole else SHORTENED

    def _some(self, values):  # type: ignore[no-untyped-def]
        return self.rng.sample(values, min(QUESTIONS, len(values)))

    def _try(self, question: Callable[[], None]) -> None:
        try:
            question()
        except CorruptionError:
            self.noticed = True

    def _equal(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise SilentlyWrong(f"{what}: {_short(found)}, not {_short(expected)}")

    def _read(self, whole: Truth) -> Truth:
        """Read everything; the truth about what there is."""
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        if log.quarantine is None:
            self._equal("log start", start, whole.start)
        found: list[tuple[int, int, bytes]] = []

        def read() -> None:
            for batch in log.read_batches(start):
                if not batch.crc_ok():
                    raise CorruptionError("checksum")
                header = batch.header
                found.append((header.base_offset, header.next_offset, bytes(batch.data)))

        self._try(read)
        expected = [batch for batch in whole.batches if batch[1] > start]
        for one, other in zip(found, expected, strict=False):
            self._equal("batch", one, other)
        self._equal("number of batches", len(found), min(len(found), len(expected)))
        last = found[-1][1] if found else start
        self.read_to = last
        if end == whole.end and (self.noticed or len(found) == len(expected)):
            return whole
        point = self.image.recovery_point
        if not self.noticed and (point is None or end < point or last != end):
            raise SilentlyWrong(f"ends at {end}, the last batch at {last}, not {whole.end}")
        if end > whole.end and not self.noticed:
            raise SilentlyWrong(f"ends at {end}, past {whole.end}")
        return whole if end >= whole.end else whole.cut_at(end)

    def _find(self, offset: int, truth: Truth) -> None:
        if self.noticed and not self.log.log_start_offset <= offset <= self.log.log_end_offset:
            return
        try:
            chunk = self.log.read(offset, 1)
        except OffsetOutOfRangeError:
            if self.noticed:
                return
            raise SilentlyWrong(f"{offset} is out of range") from None
        first = next(batches_of(chunk.data), None)
        if first is None and self.noticed:
            return
        if first is not None and not first.crc_ok():
            raise CorruptionError("checksum")
        expected = truth.batch_at(offset)
        found = None
        if first is not None:
            found = first.header.base_offset, first.header.next_offset, bytes(first.data)
        self._equal(
            f"batch at {offset}",
            found,
            expected,
        )

    def _find_time(self, timestamp: int, truth: Truth) -> None:
        found = self.log.offset_for_timestamp(timestamp)
        expected = truth.first_at(timestamp)
        if found is None and self.log.quarantine is not None:
            return
        self._equal(f"offset at {timestamp}", None if found is None else found.offset, expected)

    def _find_latest(self, truth: Truth) -> None:
        found = self.log.offset_of_max_timestamp()
        if self.log.quarantine is not None:
            return
        times = [pair for pair in truth.times if pair[0] >= truth.start]
        latest = max(times, key=lambda pair: (pair[1], -pair[0]), default=None)
        pair = None if found is None else (found.offset, found.timestamp)
        self._equal("latest", pair, latest)

    def _aborted(self, truth: Truth) -> None:
        """Where reading met damage, nobody needs to know of transactions behind it."""
        log = self.log
        found = log.view.aborted_between(log.log_start_offset, log.log_end_offset)
        expected = list(truth.aborted)
        if self.noticed:
            expected = [entry for entry in expected if entry.last_offset < self.read_to]
            found = [entry for entry in found if entry in expected]
        self._equal("aborted", found, expected)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else text[:60] + "..."
