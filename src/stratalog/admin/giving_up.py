"""What only a ledger has, where `compact --in-place` is to do without it (LDG-1).

Cleaning in place drops a ledger, as what it builds upon changes. Where the raw log has lost what
the ledger holds, somebody has to say that it may go: a command asks, a program sets
`CompactionOptions.gives_up_ledgers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.floors import log_settings
from stratalog.admin.state import open_to_read
from stratalog.base.clock import Clock
from stratalog.base.errors import ConfirmationNeededError, CorruptionError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.config.settings import Settings
from stratalog.ledger.ledgers import has_ledgers
from stratalog.ledger.manifest import held_alone, read_manifest
from stratalog.ledger.mending import advising


def only_in_ledgers(
    targets: Sequence[str],
    settings_of: Callable[[str], Settings],
    filesystem: FileSystem,
    clock: Clock,
) -> list[str]:
    """What a compaction in place of `targets` would give up, in words: a line a partition. What
    cannot be looked at is not told here: it is met again. Raises `UsageError`."""
    found = []
    for place in find_partitions(targets, filesystem):
        settings = settings_of(place.topic_partition.topic)
        if not drops_ledger(settings) or not has_ledgers(filesystem, place.path):
            continue
        with (
            suppress(StratalogError, FileNotFoundError),
            open_to_read(place, log_settings(settings), filesystem, clock) as log,
        ):
            told = _told(place, log.view.log_start_offset, filesystem)
            found += [] if told is None else [told]
    return found


def drops_ledger(settings: Settings) -> bool:
    """Whether these are settings by which a log is cleaned in place, whatever ledger it has."""
    is_inplace = settings.text("compaction.mode") == "inplace"
    return is_inplace and settings.is_given("compaction.mode") and settings.is_compacted


def check_given_up(place: PartitionPlace, log_start_offset: int, filesystem: FileSystem) -> None:
    """Raises `ConfirmationNeededError` if the ledger alone has something; `CorruptionError` if
    nobody knows."""
    if not has_ledgers(filesystem, place.path):
        return
    # A log that has its beginning need not know what a damaged ledger was.
    pardon = suppress(CorruptionError) if log_start_offset <= 0 else nullcontext()
    told = None
    with pardon, advising(place.path):
        told = _told(place, log_start_offset, filesystem)
    if told is not None:
        raise ConfirmationNeededError(
            f"{told}, which cleaning in place drops: `stratalog compact --in-place --no-confirm` "
            "gives them up, --config compaction.mode=ledger keeps them"
        )


def _told(place: PartitionPlace, log_start_offset: int, filesystem: FileSystem) -> str | None:
    alone = held_alone(read_manifest(filesystem, place.path).current, log_start_offset)
    if alone is None:
        return None
    return f"{place.path}: offsets {alone[0]} to {alone[1] - 1} are only in its ledger"
