"""A log that ends below its ledger's horizon goes on there, so that the ledger stays whole.

    ledger   [start ................ H)
    raw log            [ ... C)      [H, what is appended from now on

A run flushes the log up to the horizon before the ledger counts, so only damage brings that about:
a `log repair --damage cut`, or a recovery that took damage for a torn end. Records that were
appended at C would get offsets for which the ledger has others; without the ledger its copy of
[C, H), and of what the log's retention has taken, would be gone. An empty segment at H gives none
of it up: a gap in the offsets is what cleaning leaves, to Kafka too. Who truncates a log on purpose
has its ledgers cut back instead (`Ledgers.cut_back`).

Invariants
- I1  It is done before the first append of a process. Where it cannot be, nothing is appended.
- I2  Doing it twice changes nothing.
"""

from __future__ import annotations

import logging

from stratalog.base.errors import CorruptionError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.ledger.manifest import Generation, ledgers_path, note_lost, read_manifest
from stratalog.log.log_store import LogStore
from stratalog.log.view import LogView

_LOG = logging.getLogger("stratalog.ledger")


def follow_ledgers(store: LogStore, filesystem: FileSystem) -> None:
    """Let the logs of a store that was just opened go on behind their ledgers. What is wrong with
    one is logged; a log that cannot go on there takes no writes."""
    for topic_partition, log in store.writable_logs():
        if not filesystem.exists(ledgers_path(log.path)):
            continue
        end = log.log_end_offset
        try:
            current = read_manifest(filesystem, log.path).current
        except (StratalogError, FileNotFoundError) as error:
            _LOG.error("%s: its ledgers cannot be looked at: %s", topic_partition, error)
            continue
        if current is None or current.horizon <= end:
            continue
        try:
            note_lost(filesystem, log.path, end, current.horizon)
            log.skip_to(current.horizon)
        except (StratalogError, FileNotFoundError) as error:
            log.take_offline(f"it cannot go on behind its ledger: {error}")
            _LOG.error("%s: it cannot go on behind its ledger: %s", topic_partition, error)
            continue
        _LOG.warning("%s: %s", topic_partition, goes_on(current, end))


def goes_on(current: Generation, end_offset: int) -> str:
    """What is done where a log ends at `end_offset`, below the horizon of the ledger in use."""
    return (
        f"the log ends at offset {end_offset} and its ledger {current.number} (offsets "
        f"{current.start_offset} to {current.horizon - 1}) reaches past that: the log goes on at "
        f"offset {current.horizon}, so that the ledger stays; offsets {end_offset} to "
        f"{current.horizon - 1} are only in it"
    )


def check_follows(current: Generation | None, view: LogView, partition_dir: str) -> None:
    """Raises `CorruptionError` if the log ends below the ledger's horizon: nobody builds upon
    either then, as what the ledger holds would go."""
    if current is not None and view.log_end_offset < current.horizon:
        raise CorruptionError(
            f"the log ends at offset {view.log_end_offset}, below the horizon of its ledger "
            f"{current.number}, {current.horizon}: `stratalog log repair` lets it go on there",
            file=partition_dir,
        )
