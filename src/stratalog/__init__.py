"""Stratalog: a partitioned commit log in Kafka's format, and what happens to it after writing.

    import stratalog

    with stratalog.open("data") as store:
        stocks = store.create_topic("stocks", partitions=4, config={"cleanup.policy": "compact"})
        stocks.append("ACME", "12.50")

Importing the package is cheap: it loads nothing but this file. `open` and the classes come from
`stratalog.embedded` when they are first asked for; each floor is imported by who needs it (see
docs/ARCHITECTURE.md). So do the errors, the whole tree of `stratalog.base.errors`: what a
docstring says is raised can be caught as `stratalog.UsageError` and so on. What type checkers see
of it is in `__init__.pyi`.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_ERRORS = (
    "ConfirmationNeededError",
    "CorruptionError",
    "IllegalStepError",
    "InvalidConfigError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "LogChangedError",
    "LogLockedError",
    "LogOfflineError",
    "MissingExtraError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "PartitionExistsError",
    "PolicyViolationError",
    "ProducerFencedError",
    "RecordTooLargeError",
    "RemoteProtocolError",
    "RoundAbortedError",
    "StorageFullError",
    "StorageIOError",
    "StratalogError",
    "TooManyFilesError",
    "UnknownPartitionError",
    "UsageError",
)

_PLACES = {
    "Appended": ("stratalog.embedded.records", "Appended"),
    "Consumer": ("stratalog.embedded.consumer", "Consumer"),
    "Record": ("stratalog.embedded.records", "Record"),
    "Store": ("stratalog.embedded.store", "Store"),
    "Topic": ("stratalog.embedded.topic", "Topic"),
    "open": ("stratalog.embedded.store", "open_store"),
    **{name: ("stratalog.base.errors", name) for name in _ERRORS},
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PLACES[name]
    found = globals()[name] = getattr(import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
