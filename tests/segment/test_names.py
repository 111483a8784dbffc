from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.segment.names import (
    MAX_OFFSET,
    FileKind,
    FileState,
    ParsedName,
    TopicPartition,
    digest_name,
    file_name,
    is_topic_name,
    parse,
    parse_partition_directory,
    part_name,
    partition_directory,
)

OFFSETS = st.integers(0, MAX_OFFSET)
KINDS = st.sampled_from(list(FileKind))
STATES = st.sampled_from([state for state in FileState if state is not FileState.PART])


@pytest.mark.requirement("LOG-1")
def test_known_names() -> None:
    assert file_name(42, FileKind.LOG) == "00000000000000000042.log"
    assert (
        file_name(0, FileKind.TIME_INDEX, FileState.SWAP) == "00000000000000000000.timeindex.swap"
    )
    assert (
        part_name(7, FileKind.TXN_INDEX, "job-1", 3) == "00000000000000000007.txnindex.job-1-3.part"
    )
    assert digest_name(9) == "00000000000000000009.digest"
    assert file_name(MAX_OFFSET, FileKind.SNAPSHOT) == "09223372036854775807.snapshot"


@given(OFFSETS, KINDS, STATES)
def test_parse_is_the_inverse_of_file_name(offset: int, kind: FileKind, state: FileState) -> None:
    assert parse(file_name(offset, kind, state)) == ParsedName(offset, kind, state)


@given(OFFSETS, KINDS, st.from_regex(r"\A[A-Za-z0-9_-]{1,100}\Z"), st.integers(0, 10**18 - 1))
def test_parse_is_the_inverse_of_part_name(
    offset: int, kind: FileKind, job: str, attempt: int
) -> None:
    name = part_name(offset, kind, job, attempt)
    assert parse(name) == ParsedName(offset, kind, FileState.PART, job, attempt)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0.log",
        "00000000000000000042",
        "00000000000000000042.",
        "00000000000000000042.logs",
        "00000000000000000042.log.",
        "00000000000000000042.log.part",
        "00000000000000000042.log.job-01.part",
        "00000000000000000042.log.cleaned.swap",
        "000000000000000000042.log",
        "09223372036854775808.log",
        "0000000000000000004٢.log",
        "00000000000000000042.log\n",
        " 00000000000000000042.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        ".stratalog",
    ],
)
def test_foreign_names_are_not_segment_files(name: str) -> None:
    assert parse(name) is None


@given(st.text(max_size=60))
def test_parse_takes_any_text(name: str) -> None:
    parsed = parse(name)
    parse_partition_directory(name)
    assert parsed is None or str(parsed.base_offset) in name


@pytest.mark.requirement("LOG-1")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("a-b-c-17", TopicPartition("a-b-c", 17)),
        ("x--1", TopicPartition("x-", 1)),
        ("__consumer_offsets-49", TopicPartition("__consumer_offsets", 49)),
        ("...-2147483647", TopicPartition("...", 2147483647)),
    ],
)
def test_partition_directories(name: str, expected: TopicPartition) -> None:
    assert parse_partition_directory(name) == expected
    assert partition_directory(expected) == name


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-1",
        "orders-01",
        "orders--",
        "orders-2147483648",
        "or ders-1",
        "..-1",
        ".-1",
        "orders-0.0123-delete",
        "a" * 250 + "-0",
        "orders-1\n",
        "órders-1",
    ],
)
def test_other_directories_are_no_partitions(name: str) -> None:
    assert parse_partition_directory(name) is None


def test_topic_names() -> None:
    assert is_topic_name("a" * 249)
    assert not is_topic_name("a" * 250)
    assert not is_topic_name("")
    assert not is_topic_name("..")


@pytest.mark.requirement("LOG-1", "LOG-3")
def test_every_segment_file_that_kafka_wrote_has_a_name_we_would_write(
    golden_dir: Path, corpus_dir: Path
) -> None:
    seen = 0
    for root in (golden_dir, corpus_dir):
        for path in root.rglob("[0-9]" * 20 + ".*"):
            parsed = parse(path.name)
            assert parsed is not None, path
            assert file_name(parsed.base_offset, parsed.kind, parsed.state) == path.name
            seen += 1
    assert seen > 10_000
