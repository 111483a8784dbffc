"""Settings on their way to the log: what the table says is what a log is told."""

from __future__ import annotations

from dataclasses import fields

import pytest

from stratalog.admin.floors import log_settings, store_settings
from stratalog.config.settings import resolve
from stratalog.log.log_store import StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.record.codec import Codec

CHANGES = {
    "cleanup.policy": ("compact,delete", ("compact", "delete")),
    "retention.ms": ("-1", -1),
    "retention.bytes": ("128000", 128_000),
    "file.delete.delay.ms": ("0", 0),
    "flush.messages": ("1", 1),
    "flush.ms": ("500", 500),
    "segment.ms": ("11", 11),
    "compression.type": ("zstd", Codec.ZSTD),
}
FIELDS = {"compression.type": "compression"}


@pytest.mark.requirement("CFG-1")
def test_a_log_that_is_told_nothing_has_the_tables_defaults() -> None:
    assert log_settings(resolve({})) == LogSettings()


@pytest.mark.requirement("RET-1")
def test_a_store_has_the_tables_defaults_and_what_it_is_given() -> None:
    assert store_settings(resolve({})) == StoreSettings()
    given = {
        "log.cleanup.interval.mins": "2",
        "log.flush.offset.checkpoint.interval.ms": "7",
        "log.flush.start.offset.checkpoint.interval.ms": "8",
        "num.recovery.threads.per.data.dir": "9",
    }
    told = store_settings(resolve(given))
    assert told == StoreSettings(120_000, 7, 8, 7, recovery_threads=9)
    newer = {**given, "log.retention.check.interval.ms": "5"}
    assert store_settings(resolve(newer)).retention_check_ms == 5


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_reaches_its_field_and_no_other(name: str) -> None:
    text, value = CHANGES[name]
    told = log_settings(resolve({name: text}))
    changed = {
        field.name
        for field in fields(LogSettings)
        if getattr(told, field.name) != getattr(LogSettings(), field.name)
    }
    field_name = FIELDS.get(name, name.replace(".", "_"))
    assert changed == {field_name}
    assert getattr(told, field_name) == value


@pytest.mark.parametrize(
    ("text", "codec"), [("producer", None), ("uncompressed", Codec.NONE), ("lz4", Codec.LZ4)]
)
def test_only_a_named_codec_replaces_the_producers(text: str, codec: Codec | None) -> None:
    assert log_settings(resolve({"compression.type": text})).compression is codec
