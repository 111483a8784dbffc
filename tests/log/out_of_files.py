"""A process that may not open enough files for its logs; run by test_open_files.py.

    python out_of_files.py DIR      prints one JSON object: what happened

Everything is done at a limit that is reached, then again after some files were closed.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from stratalog.base.clock import FixedClock
from stratalog.base.errors import TooManyFilesError
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition
from tests.clean.services import COMPACTED, NOW, Parts, contents, opened, put

PARTITIONS = 5
KEYS = [TopicPartition("t", number) for number in range(PARTITIONS)]
SETTINGS = LogSettings(cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=64)
EAGER = {"t": replace(COMPACTED, min_dirty_ratio=0.0)}
VALUE = "v" * 100


class Told:
    """What was acknowledged of each partition, and which errors came."""

    def __init__(self) -> None:
        self.kept: dict[TopicPartition, dict[str, str]] = {key: {} for key in KEYS}
        self.errors: Counter[str] = Counter()
        self.count = 0

    def tries(self, what: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except TooManyFilesError as error:
            assert str(error).endswith("`ulimit -n`"), error
            self.errors[what] += 1
            return False
        return True

    def put(self, parts: Parts, key: TopicPartition) -> None:
        self.count += 1
        name, value = f"k{self.count % 4}", f"{self.count}{VALUE}"
        log = parts.store.get(key)
        if self.tries("append", lambda: put(log, (name, value))):
            self.kept[key][name] = value

    def check(self, parts: Parts) -> None:
        for key in KEYS:
            log = parts.store.get(key)
            found = {name: value for _, name, value in contents(log)}
            assert found == self.kept[key], key


def open_count() -> int:
    return len(os.listdir("/dev/fd")) - 1


def take_files(spare: int) -> list[int]:
    """Open others until `spare` are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        assert len(taken) > spare, (soft, len(taken))
    for descriptor in taken[len(taken) - spare :]:
        os.close(descriptor)
    return taken[: len(taken) - spare]


def nothing_is_offline(parts: Parts) -> None:
    assert parts.store.offline_dirs == {}, parts.store.offline_dirs
    assert parts.store.failed == {}
    for key, log in parts.store.logs():
        assert log.offline is None, (key, log.offline)
        assert log.is_writable, key


def run(directory: str) -> dict[str, int]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_count() + 900, hard))
    told, clock = Told(), FixedClock(NOW)
    with opened([directory], topics=EAGER, log_settings=SETTINGS, clock=clock) as parts:
        for key in KEYS:
            parts.log(key)
        for _ in range(8):
            for key in KEYS:
                told.put(parts, key)
        assert not told.errors, told.errors
        for spare in range(10):
            # Every number of files that are left stops another step.
            taken = take_files(spare)
            for key in KEYS:
                for _ in range(7):
                    told.put(parts, key)  # one of them has to roll
                told.tries("roll", parts.store.get(key).roll)
                told.tries("flush", parts.store.get(key).flush)
                told.tries("create", lambda: parts.store.create(TopicPartition("more", 0)))
                if TopicPartition("more", 0) in parts.store.partitions():
                    told.tries("delete", lambda: parts.store.delete(TopicPartition("more", 0)))
            rounds = 0
            while parts.cleaner.run_once("test"):
                rounds += 1
                assert rounds < 1000, "the cleaner loops"
            parts.store.run_due()
            for descriptor in taken:
                os.close(descriptor)
            nothing_is_offline(parts)
            told.check(parts)
            causes = [
                note.failure.cause for key in KEYS if (note := parts.manager.note_of(key)).failure
            ]
            told.errors["clean"] += sum("ulimit" in cause for cause in causes)
            clock.time_ms += 3_600_000
            before = dict(told.errors)
            for key in KEYS:
                told.put(parts, key)
                parts.store.get(key).roll()
                parts.store.get(key).flush()
            parts.clean_all()
            for key in KEYS:
                note, log = parts.manager.note_of(key), parts.store.get(key)
                assert note.failure is None, note
                assert parts.store.cleaner_point(key) == log.segments.active.base_offset
            assert before == dict(told.errors)
            told.check(parts)
            parts.store.run_due()
            clock.time_ms += 3_600_000
            parts.store.unlink_due()
    # The next process finds all of it, without a scan.
    with opened([directory], log_settings=SETTINGS, clock=clock) as parts:
        nothing_is_offline(parts)
        assert all(log.recovery is None for _, log in parts.store.logs())
        told.check(parts)
    # Opening without enough files: said where, and lost nothing.
    for spare in (0, 2, 5, 20):
        taken = take_files(spare)
        try:
            with opened([directory], log_settings=SETTINGS, clock=clock) as parts:
                told.errors["open"] += len(parts.store.failed)
                for error in parts.store.failed.values():
                    assert isinstance(error, TooManyFilesError), error
        except TooManyFilesError:
            told.errors["open"] += 1
        for descriptor in taken:
            os.close(descriptor)
        with opened([directory], log_settings=SETTINGS, clock=clock) as parts:
            nothing_is_offline(parts)
            told.check(parts)
    return dict(told.errors)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1])))
