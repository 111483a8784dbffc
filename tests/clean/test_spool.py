"""Offsets gathered in memory or on disk: the same sorted array, and no file left."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.clean.spool import OffsetSpool


@pytest.mark.requirement("CMP-7")
@pytest.mark.parametrize("limit_bytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("sizes", [[], [0], [5], [3, 0, 9], [40] * 20])
def test_all_offsets_come_back_sorted(tmp_path: Path, limit_bytes: int, sizes: list[int]) -> None:
    random = Random(1)
    spool = OffsetSpool(limit_bytes, str(tmp_path))
    expected: list[int] = []
    for size in sizes:
        part = [random.randrange(1 << 60) for _ in range(size)]
        expected += part
        spool.append(np.array(part, np.int64))
    found = spool.finish()
    assert found.dtype == np.int64
    assert found.flags.c_contiguous
    assert found.tolist() == sorted(expected)
    assert os.listdir(tmp_path) == []


def test_past_its_bound_it_uses_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    real = np.memmap.__new__

    def noted(*arguments: object, **options: object) -> object:
        made.append(arguments)
        return real(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(np.memmap, "__new__", noted)
    for limit_bytes, count in ((1 << 20, 0), (64, 1)):
        spool = OffsetSpool(limit_bytes, str(tmp_path))
        for start in (100, 0, 50):
            spool.append(np.arange(start, start + 10))
        assert len(spool.finish()) == 30
        assert len(made) == count
        assert os.listdir(tmp_path) == []
