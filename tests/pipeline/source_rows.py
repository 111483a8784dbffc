"""The source's slow and obvious twin: the rows of a partition directory, from its files alone.

A row is a dictionary of all columns; a timestamp stands as microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratalog.pipeline.schema import ALL_COLUMNS
from tests.naive import files
from tests.naive.records import Batch, parse_log
from tests.naive.versions import version_of
from tests.oracle import log_start_offset

Row = dict[str, Any]


def naive_rows(
    partition: Path,
    *,
    committed_to: int | None = None,
    start: int | None = None,
    end: int = 1 << 63,
    control: bool = False,
    name: str | None = None,
) -> list[Row]:
    """The records of [start, end); `committed_to`: only committed ones, below that offset."""
    start = log_start_offset(partition) if start is None else start
    end = end if committed_to is None else min(end, committed_to)
    aborted = [
        entry
        for path in sorted(partition.glob("*.txnindex"))
        for entry in files.read_txn_index(path)
    ]
    rows = []
    for path in sorted(partition.glob("*.log")):
        for batch in parse_log(path.read_bytes()):
            if batch.control and not control:
                continue
            if committed_to is not None and _is_aborted(batch, aborted):
                continue
            rows += _rows_of(batch, int(path.stem), name or partition.name)
    return [row for row in rows if start <= row["offset"] < end]


def naive_latest(
    partition: Path,
    settings: Mapping[str, str] | None = None,
    *,
    committed_to: int,
    start: int | None = None,
    end: int = 1 << 63,
    tombstones: bool = False,
    name: str | None = None,
) -> list[Row]:
    """The newest committed record of each key, by offset."""
    newest: dict[bytes, tuple[int, int]] = {}
    rows = {}
    records = {
        record.offset: record
        for path in sorted(partition.glob("*.log"))
        for batch in parse_log(path.read_bytes())
        if not batch.control
        for record in batch.records()
    }
    for row in naive_rows(partition, committed_to=committed_to, start=start, end=end, name=name):
        if row["key"] is not None:
            version = version_of(records[row["offset"]], settings or {}), row["offset"]
            newest[row["key"]] = max(version, newest.get(row["key"], version))
            rows[row["offset"]] = row
    live = sorted(offset for _, offset in newest.values())
    return [rows[offset] for offset in live if tombstones or rows[offset]["value"] is not None]


def _is_aborted(batch: Batch, aborted: list[files.Aborted]) -> bool:
    return (
        batch.transactional
        and not batch.control
        and any(
            entry.producer_id == batch.producer_id
            and entry.first_offset <= batch.base_offset <= entry.last_offset
            for entry in aborted
        )
    )


def _rows_of(batch: Batch, base_offset: int, name: str) -> list[Row]:
    topic, _, number = name.rpartition("-")
    values = (
        (
            record.key,
            record.value,
            topic,
            int(number),
            record.offset,
            record.timestamp * 1000,
            -1 if batch.magic == 0 else int(batch.append_time),
            [{"key": k.decode("utf-8", "replace"), "value": v} for k, v in record.headers] or None,
            base_offset,
            batch.leader_epoch,
            batch.producer_id,
            batch.control,
        )
        for record in batch.records()
    )
    return [dict(zip(ALL_COLUMNS, row, strict=True)) for row in values]
