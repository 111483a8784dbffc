"""A `LogStore` for one command: opened, used, closed in order.

Invariants
- I1  The directories are left closed in order, also after an error of ours, so that the next
      opening scans nothing.
- I2  After Ctrl-C, which may strike between any two steps, they are left as a crash would leave
      them: locks are let go, no marker is written, the next opening recovers what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from stratalog.base.clock import Clock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress, Progress
from stratalog.ledger.copies import LedgerCopies
from stratalog.ledger.following import follow_ledgers
from stratalog.ledger.ledgers import Ledgers
from stratalog.log.log_store import LogStore, OpenProgress, StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition


@contextmanager
def open_store(
    log_dirs: Sequence[str],
    settings_of: Callable[[TopicPartition], LogSettings],
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress = lambda _: None,
    store_settings: StoreSettings | None = None,
) -> Iterator[LogStore]:
    """The logs in `log_dirs`; an unclean directory is recovered first, and a log that ends below
    its ledger's horizon goes on there.

    Raises as `LogStore.open`, and `StorageIOError` when closing fails.
    """

    def tell(opening: OpenProgress) -> None:
        on_progress(Progress("recover", opening.scanned_bytes, 0))

    paths = list(dict.fromkeys(log_dirs))
    told = store_settings or StoreSettings()
    store = LogStore.open(paths, settings_of, filesystem, clock, told, tell)
    try:
        for error in store.failed_dirs.values():
            raise error
        store.attach_copies(LedgerCopies(Ledgers(store, filesystem)))
        follow_ledgers(store, filesystem)
        yield store
    except StratalogError:
        with suppress(StratalogError):  # the first error is the one to tell
            store.close()
        raise
    except BaseException:
        store.abandon()
        raise
    else:
        store.close()


def problem_of(store: LogStore, topic_partition: TopicPartition) -> str | None:
    """Why a partition takes no writes; None if it does."""
    if topic_partition in store.failed:
        return str(store.failed[topic_partition])
    log = store.get(topic_partition)
    offline = store.offline_dirs.get(store.log_dir_of(topic_partition)) or log.offline
    if offline is not None:
        return f"offline: {offline}"
    if log.quarantine is not None:
        return (
            f"quarantined: {log.quarantine}; `stratalog log repair {log.path}` shows and settles it"
        )
    return None
