"""The kernel that reads whole records, against the decoder for people as its naive twin."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.admin.columns import record_columns
from stratalog.base.errors import CorruptionError
from stratalog.clean.chunk import ChunkReader, Scratch, Table, scan_chunk
from stratalog.clean.index import hash_keys
from stratalog.clean.job import CleanSpec
from stratalog.record.batch import Batch, batches
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.kernel.columns import VALUES
from tests.admin.helpers import DISK
from tests.oracle import rounds

SECRET = (np.uint64(1), np.uint64(2))
Rows = list[tuple[int, int, int, int, bytes, bytes]]


def _by_kernel(path: Path, chunk_bytes: int) -> Rows:
    spec = CleanSpec(0, chunk_bytes=chunk_bytes)
    scratch = Scratch()
    reader = ChunkReader(DISK, str(path), 0, path.stat().st_size, spec)
    found: Rows = []
    while (chunk := reader.take(scratch)) is not None:
        table: Table = scan_chunk(chunk, spec, -1, scratch)
        wanted = np.ones(len(table), np.bool_)
        for c in record_columns(chunk, table, wanted, spec, SECRET, scratch, hashing=VALUES):
            found += [
                (
                    int(c.offsets[n]),
                    int(c.timestamps[n]),
                    int(c.key_sizes[n]),
                    int(c.value_sizes[n]),
                    c.keys[n].tobytes() if c.key_sizes[n] >= 0 else b"",
                    c.values[n].tobytes() if c.value_sizes[n] >= 0 else b"",
                )
                for n in range(len(c.offsets))
            ]
    return sorted(found)


def _naive(path: Path) -> Rows:
    def fields(content: bytes | None) -> tuple[int, bytes]:
        if content is None:
            return -1, b""
        return len(content), hash_keys([content], SECRET)[0].tobytes()

    found: Rows = []
    for batch in batches(path.read_bytes()):
        for record in batch.records():
            key, value = fields(record.key), fields(record.value)
            found.append((record.offset, record.timestamp, key[0], value[0], key[1], value[1]))
    return found


@pytest.mark.parametrize("kafka", rounds()[::25], ids=lambda kafka: kafka.name)
def test_columns_say_what_the_decoder_says(kafka: object) -> None:
    compared = 0
    for path in sorted(kafka.before.glob("*.log")):  # type: ignore[attr-defined]
        if path.stat().st_size:
            expected = _naive(path)
            assert _by_kernel(path, 4 << 20) == expected
            assert _by_kernel(path, 256) == expected
            compared += len(expected)
    assert compared


def test_old_messages_have_columns_too(golden_dir: Path) -> None:
    path = golden_dir / "legacy-v1" / "before" / "golden-0" / f"{0:020d}.log"
    assert _by_kernel(path, 4 << 20) == _naive(path)


@pytest.mark.requirement("CMP-16")
def test_every_damaged_record_is_refused_as_the_decoder_refuses_it(tmp_path: Path) -> None:
    """Random bytes in a batch whose checksum is then made right."""
    random = Random(4)
    records = [
        NewRecord(b"k" * n, b"v" * (9 - n), 5, ((b"h", None), (b"", b"x" * n))) for n in range(4)
    ]
    original = build_batch(records)
    path = tmp_path / "x.log"
    refused = 0
    for _ in range(400):
        batch = bytearray(original)
        batch[random.randrange(61, len(batch))] = random.choice((0, 1, 2, 7, 127, 128, 255))
        batch[17:21] = _crc(bytes(batch))
        path.write_bytes(batch)
        try:
            expected: Rows | None = _naive(path)
        except CorruptionError:
            expected = None
        if expected is None:
            refused += 1
            with pytest.raises(CorruptionError) as damage:
                _by_kernel(path, 4 << 20)
            assert (damage.value.file, damage.value.position) == (str(path), 0)
        else:
            assert _by_kernel(path, 4 << 20) == expected
    assert 100 < refused < 400


def _crc(batch: bytes) -> bytes:
    from stratalog.record.checksum import crc32c

    return crc32c(batch[21:]).to_bytes(4, "big")


def test_equal_bytes_have_equal_hashes_whatever_the_codec(tmp_path: Path) -> None:
    found = []
    for codec in Codec:
        path = tmp_path / f"{codec.name}.log"
        path.write_bytes(build_batch([NewRecord(b"key", b"value" * 50, 1)], codec=codec))
        found.append(_by_kernel(path, 4 << 20))
    assert all(rows == found[0] for rows in found)
    assert isinstance(next(batches(path.read_bytes())), Batch)
