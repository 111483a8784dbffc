"""A reader in a process of its own: `python -m tests.log.reading PARTITION STOP`.

Opens the partition for reading again and again until the file STOP is there, and checks what it
sees: every offset once, all of one version. Prints how often it read and how often it was told to
try again.
"""

from __future__ import annotations

import os
import sys

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogChangedError
from stratalog.base.filesystem import FileSystem
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from tests.log.helpers import FS, NOW


def read_once(partition: str, count: int, filesystem: FileSystem = FS) -> bool:
    """Whether it could be read; False: it changed meanwhile. Raises `AssertionError`."""
    try:
        log = PartitionLog.open(
            partition, LogSettings(), filesystem, FixedClock(NOW), read_only=True
        )
        records = list(log.read_records(0))
        middle = next(iter(log.read_batches(count // 2))).header
        late = log.offset_for_timestamp(NOW + count - 2)
    except LogChangedError:
        return False
    assert [record.offset for record in records] == list(range(count))
    versions = {record.value for record in records[:-1]}
    assert len(versions) == 1, versions
    assert middle.base_offset <= count // 2 <= middle.last_offset
    assert late is not None
    assert late.offset == count - 2
    return True


def main(partition: str, count: int, stop: str) -> None:
    reads = [0, 0]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not os.path.exists(stop):
        reads[read_once(partition, count)] += 1
    reads[read_once(partition, count)] += 1
    sys.stdout.write(f"{reads[1]} {reads[0]}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
