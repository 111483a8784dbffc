"""A reader in a process of its own: `python -m tests.clean.watching PARTITION STOP`.

Opens the partition for reading again and again until the file STOP is there, and checks what it
sees: records in order, each key's count growing, and never an older newest than it saw before.
Prints how often it read and how often it was told to try again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogChangedError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.values import Record


def newest(records: Iterable[Record], first: int, end: int) -> dict[bytes, int]:
    """The newest count of each key; a value is `key:count`. Raises `AssertionError` for what cannot
    be: offsets out of order or out of bounds, a count that does not grow."""
    counts: dict[bytes, int] = {}
    last_offset = first - 1
    for record in records:
        assert last_offset < record.offset < end, (last_offset, record.offset, end)
        last_offset = record.offset
        assert record.key is not None
        assert record.value is not None
        key, _, count = record.value.partition(b":")
        assert key == record.key, record
        assert int(count) > counts.get(key, -1), record
        counts[key] = int(count)
    return counts


def look(partition: str, known: dict[bytes, int]) -> bool:
    """Whether it could be read; False: it changed meanwhile. Raises `AssertionError`."""
    try:
        log = PartitionLog.open(
            partition,
            LogSettings(),
            LocalFileSystem(),
            SystemClock(),
            read_only=True,
            may_be_torn=True,
        )
        found = newest(log.read_records(log.log_start_offset), log.log_start_offset, 1 << 60)
    except LogChangedError:
        return False
    lost = {key: count for key, count in known.items() if found.get(key, -1) < count}
    assert not lost, lost
    known.update(found)
    return True


def main(partition: str, stop: str) -> None:
    reads, known = [0, 0], dict[bytes, int]()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not os.path.exists(stop):
        reads[look(partition, known)] += 1
    assert look(partition, known), "nothing changes any more"
    sys.stdout.write(f"{reads[1] + 1} {reads[0]}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
