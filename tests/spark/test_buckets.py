"""What the driver decides: which hash buckets serve which job."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("pyspark")
from stratalog.spark import cutting

_MIB = 1 << 20


@pytest.mark.requirement("SPK-1")
def test_each_job_has_buckets_of_its_own_as_its_bytes_make() -> None:
    """A thousand large partitions: what a task sends does not grow with the number of them."""
    buckets = cutting.buckets_of([1024 * _MIB] * 1000, 200)
    assert [bucket for of_job in buckets for bucket in of_job] == list(range(4000))
    assert {len(of_job) for of_job in buckets} == {4}


@pytest.mark.requirement("SPK-1")
def test_small_jobs_share_buckets() -> None:
    buckets = cutting.buckets_of([_MIB] * 1000, 2)
    assert cutting.past_all(buckets) == 4
    assert max(map(len, buckets)) <= 2


@pytest.mark.requirement("SPK-1")
def test_whatever_the_sizes_there_are_buckets_for_all_in_order_and_none_is_too_large() -> None:
    random = Random(5)
    for _ in range(300):
        sizes = [random.choice([0, 1, _MIB, 300 * _MIB, 9000 * _MIB]) for _ in range(9)]
        cores = random.choice([1, 2, 7, 400])
        buckets = cutting.buckets_of(sizes, cores)
        load_bytes = [0.0] * max(of_job.stop for of_job in buckets)
        assert len(load_bytes) == max(cores, -(-sum(sizes) // cutting.BUCKET_BYTES), 1)
        for of_job, size_bytes in zip(buckets, sizes, strict=True):
            assert len(of_job) >= 1
            for bucket in of_job:
                load_bytes[bucket] += size_bytes / len(of_job)
        assert max(load_bytes) <= 3 * cutting.BUCKET_BYTES
        assert [of_job.start for of_job in buckets] == sorted(of_job.start for of_job in buckets)
