"""The registry's file: read back as it was written, and damage never taken for anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.admin.desk.registry import (
    REGISTRY_FILE,
    Entry,
    Registry,
    Stage,
    decode,
    read_registry,
    write_registry,
)
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.config.book import SettingsBook
from stratalog.record.checksum import crc32c
from tests.admin.helpers import DISK

CountCases = Callable[[str, int], None]
FULL = Registry(
    {
        "orders": Entry(4, {"cleanup.policy": "compact"}, Stage.READY, made=True, topic_id="x-_1"),
        "growing": Entry(9, {}, Stage.ADDING, made=True, before=3),
        "going": Entry(1, {"retention.ms": "5"}, Stage.DELETING),
        "found": Entry(None, {"retention.ms": "-1"}),
    },
    {"audit.": {"retention.ms": "-1", "cleanup.policy": ""}},
    {"log.retention.ms": "7"},
)


def sealed(content: object) -> bytes:
    line = json.dumps(content).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def test_what_is_written_is_read_back() -> None:
    for registry in (Registry(), FULL):
        assert decode(registry.encode()) == registry
    assert FULL.begun() == ["going", "growing"]


def test_a_registry_of_an_earlier_version_has_topics_without_ids() -> None:
    fields = {"partitions": 1, "configs": {}, "stage": "ready", "made": True, "before": 0}
    content = {"version": 1, "topics": {"t": fields}, "prefixes": {}, "broker": {}}
    assert decode(sealed(content)).topics == {"t": Entry(1, made=True)}
    for bad in ("a b", "x" * 65, 7):
        with pytest.raises(CorruptionError):
            decode(sealed({**content, "topics": {"t": {**fields, "topic_id": bad}}}))


def test_every_damage_is_told(count_cases: CountCases) -> None:
    content, random = FULL.encode(), Random(1)
    damaged = [content[:end] for end in range(len(content))]
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << random.randrange(8)
        damaged.append(bytes(flipped))
    for found in damaged:
        with pytest.raises(CorruptionError):
            decode(found)
    count_cases("damaged registries", len(damaged))


WHOLE = {"version": 1, "topics": {}, "prefixes": {}, "broker": {}}
ENTRY = {"partitions": 1, "configs": {}, "stage": "ready", "made": True, "before": 0}


@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        {},
        {**WHOLE, "version": 2},
        {**WHOLE, "topics": []},
        {**WHOLE, "topics": {"a b": ENTRY}},
        {**WHOLE, "topics": {"..": ENTRY}},
        {**WHOLE, "topics": {"a": None}},
        {**WHOLE, "topics": {"a": {**ENTRY, "partitions": 0}}},
        {**WHOLE, "topics": {"a": {**ENTRY, "partitions": True}}},
        {**WHOLE, "topics": {"a": {**ENTRY, "partitions": 1 << 40}}},
        {**WHOLE, "topics": {"a": {**ENTRY, "stage": "odd"}}},
        {**WHOLE, "topics": {"a": {**ENTRY, "made": 1}}},
        {**WHOLE, "topics": {"a": {**ENTRY, "before": -1}}},
        {**WHOLE, "topics": {"a": {**ENTRY, "configs": {"a": 1}}}},
        {**WHOLE, "broker": {"a": None}},
        {**WHOLE, "prefixes": {"a": "b"}},
    ],
)
def test_what_has_the_right_checksum_may_be_wrong_all_the_same(content: object) -> None:
    with pytest.raises(CorruptionError):
        decode(sealed(content))


def test_deep_json_is_damage_and_no_crash() -> None:
    line = b"[" * 100_000 + b"\n"
    with pytest.raises(CorruptionError):
        decode(line + b"%08x\n" % crc32c(line))


def test_the_file_says_which_directory_is_its_home(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    places = [str(first), str(second)]
    assert read_registry(places, DISK) == (None, Registry())
    write_registry(str(second), FULL, DISK)
    assert read_registry(places, DISK) == (str(second), FULL)
    write_registry(str(first), FULL, DISK)
    with pytest.raises(UsageError, match="both have a stratalog-topics"):
        read_registry(places, DISK)
    (first / REGISTRY_FILE).write_bytes(b"")
    with pytest.raises(CorruptionError, match=f"{first}/{REGISTRY_FILE}: the text does not match"):
        read_registry(places, DISK)


def test_the_registry_stands_over_the_file_and_below_the_command_line() -> None:
    base = SettingsBook(
        {"log.retention.ms": "1", "log.segment.bytes": "2000000"},
        topics={"orders": {"segment.ms": "60000"}},
        overrides={"segment.bytes": "3000000"},
        defaults={"cleanup.policy": ()},
    )
    book = FULL.book(base)
    orders = book.of("orders")
    assert orders.words("cleanup.policy") == ("compact",)
    assert orders.integer("segment.ms") == 60_000
    assert orders.integer("segment.bytes") == 3_000_000
    assert orders.integer("retention.ms") == 7, "changed at run time, over the file's 1"
    assert book.of("audit.x").integer("retention.ms") == -1
    assert book.of("growing").words("cleanup.policy") == ("delete",), "made here: the table's"
    assert book.of("found").words("cleanup.policy") == (), "nobody knows"
