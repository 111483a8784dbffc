"""`log stats`: the counts of a log, against a decoder that counts record by record."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.admin.stats import PartitionStats, partition_stats
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError
from stratalog.config.settings import resolve
from stratalog.record.batch import batches
from stratalog.record.codec import Codec
from tests.admin.helpers import DISK, NOW_MS, records, write_log
from tests.naive import files
from tests.oracle import Round, rounds


def _stats(partition: Path) -> PartitionStats:
    (place,) = find_partitions([str(partition)], DISK)
    return partition_stats(place, resolve({}), DISK, FixedClock(NOW_MS), lambda _: None)


@pytest.mark.parametrize("kafka", rounds()[::12], ids=lambda kafka: kafka.name)
def test_counts_are_those_of_a_slow_decoder(kafka: Round) -> None:
    found = _stats(kafka.before)
    aborted = [
        entry
        for path in sorted(kafka.before.glob("*.txnindex"))
        for entry in files.read_txn_index(path)
    ]
    data, markers, hidden, holders, keyed = [], 0, 0, set(), 0
    count = 0
    for path in sorted(kafka.before.glob("*.log")):
        for batch in batches(path.read_bytes()):
            count += 1
            header = batch.header
            contents = list(batch.records())
            if header.is_control:
                markers += len(contents)
                continue
            data += contents
            is_aborted = header.is_transactional and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            if is_aborted:
                hidden += len(contents)
            else:
                holders |= {record.key for record in contents if record.key is not None}
                keyed += sum(record.key is not None for record in contents)
    times = [record.timestamp for record in data if record.timestamp >= 0]
    assert found.batches == count
    assert (found.records, found.markers, found.aborted_records) == (len(data), markers, hidden)
    assert found.keys == len(holders)
    assert found.live_ratio == (len(holders) / keyed if keyed else None)
    assert found.keyless == sum(record.key is None for record in data)
    assert found.tombstones == sum(
        record.key is not None and record.value is None for record in data
    )
    assert found.value_bytes == sum(len(record.value or b"") for record in data)
    assert found.key_bytes == sum(len(record.key or b"") for record in data)
    assert found.oldest_timestamp == min(times, default=None)
    assert found.newest_timestamp == max(times, default=None)
    assert found.log_bytes == sum(path.stat().st_size for path in kafka.before.glob("*.log"))
    assert found.log_end_offset == kafka.log_end_offset
    assert found.last_stable_offset == kafka.last_stable_offset
    assert found.cleaner_checkpoint == kafka.checkpoint_before


def test_codecs_and_more_keys_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"key-{n}" for n in range(3000)]
    partition = write_log(tmp_path / "x-0", [[records(keys), records("ab")]], codec=Codec.ZSTD)
    found = _stats(partition)
    assert found.codecs == {"zstd": 2}
    assert found.keys == 3002
    assert found.live_ratio == 1.0
    monkeypatch.setattr("stratalog.admin.stats._MAP_BYTES", 24 * 512)
    found = _stats(partition)
    assert (found.keys, found.live_ratio, found.records) == (None, None, 3002)


def test_an_empty_log_and_a_damaged_one(tmp_path: Path) -> None:
    found = _stats(write_log(tmp_path / "x-0", [[]]))
    assert (found.records, found.keys, found.live_ratio) == (0, 0, None)
    assert (found.oldest_timestamp, found.cleaner_checkpoint) == (None, None)
    partition = write_log(tmp_path / "y-0", [[records("ab")], []])
    path = partition / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CorruptionError, match="CRC-32C"):
        _stats(partition)
