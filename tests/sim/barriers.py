"""The steps that may be left out, or change places, without anything being lost; and why.

A step is `what name @ who`; see `tests.sim.mutants`. What `tests.sim.trials` proves of an exchange
by itself (no barrier is moved past what it is to keep back) is not listed. `test_barriers` fails
for an entry that is missed after all, that no scenario has, or that is proven.
"""

from __future__ import annotations

NEEDLESS: dict[str, str] = {
    "fsync .index.truncate-.part @ truncation.write": "an index that is not whole is made anew",
    "fsync .index.test-.part @ swapping.write_parts": "as above",
    "fsync .index.tmp @ recovery.replace": "as above",
    "fsync .timeindex.truncate-.part @ truncation.write": (
        "below a sector, as here, it is whole or made anew; a larger one needs it"
    ),
    "fsync .timeindex.test-.part @ swapping.write_parts": "as above",
    "fsync .timeindex.tmp @ recovery.replace": "as above",
    "fsync .txnindex.truncate-.part @ truncation.write": "of the active segment: a roll syncs it",
    "fsync_directory data @ log_dir.write_points": (
        "two checkpoints are written one after the other: each syncs the other's name, too; "
        "without both, an older recovery point only makes the scan longer"
    ),
    "fsync_directory partition @ opening.open_log": (
        "of leader epochs past the end, which the next opening cuts off again; whoever flushes "
        "first syncs the names"
    ),
    "fsync_directory partition @ recovery.replace": "of an index; `recover` syncs the names",
    "fsync_directory partition @ recovery.start_over": (
        "a directory without a segment is begun anew at the log's start, too"
    ),
}
"""Left out without harm. Those that are kept all the same are one half of an atomic write, or guard
files that are larger than those of a scenario."""

MISSED_IN_A_SWEEP: dict[str, tuple[str, ...]] = {
    "drop": ("fsync_directory partition @ recovery.recover",),
    "swap": (),
}
"""What is missed, but in states so rare that a day's budget does not come by them."""

_ROLLED = "fsync_directory partition @ durability.sync_segment"
MISSED_TWICE_CUT: dict[str, tuple[str, ...]] = {
    "drop": (_ROLLED,),
    "swap": (f"{_ROLLED} <-> create .index @ indexes.open_for_update",),
}
"""What is missed only if the recovery is cut, too: by `test_crash_store`, transactions over a roll,
without this barrier. Here the power is cut once."""

_POINTS = "fsync_directory data @ log_dir.write_points"
_NAMES = "fsync_directory partition @ durability.sync_names"
_SWAP = "fsync_directory partition @ swap.apply"

_EXCHANGED: dict[str, dict[str, tuple[str, ...]]] = {
    "a part means nothing before the intent: it is synced, and has its name, before that": {
        "fsync .index.test-.part @ swapping.write_parts": (
            "create .timeindex.test-.part @ swapping.write_parts",
        ),
        "fsync .index.truncate-.part @ truncation.write": (
            "create .timeindex.truncate-.part @ truncation.write",
        ),
        "fsync .log.test-.part @ swapping.write_parts": (
            "create .index.test-.part @ swapping.write_parts",
        ),
        "fsync .log.truncate-.part @ truncation.copy_prefix": (
            "set_modified .log.truncate-.part @ truncation.copy_prefix",
        ),
        "fsync .timeindex.test-.part @ swapping.write_parts": (
            "create .log.test-.part @ swapping.write_parts",
            "create .txnindex.test-.part @ swapping.write_parts",
        ),
        "fsync .timeindex.truncate-.part @ truncation.write": (
            "create .txnindex.truncate-.part @ truncation.write",
            "rename .log.truncate-.part @ swap.apply",
        ),
        "fsync .txnindex.test-.part @ swapping.write_parts": (
            "rename .log.test-.part @ swap.apply",
        ),
        "fsync .txnindex.truncate-.part @ truncation.write": (
            "rename .log.truncate-.part @ swap.apply",
        ),
        _NAMES: ("create .log.truncate-.part @ truncation.copy_prefix",),
    },
    "what is made aside means nothing before it is renamed, behind a barrier of its own": {
        "fsync .log @ recovery.cut": ("create .index.tmp @ recovery.replace",),
        "fsync_directory .stratalog @ recovery.unlink_digest": (
            "create .index.tmp @ recovery.replace",
        ),
        "fsync_directory data @ log_dir.write_starts": (
            "create leader-epoch-checkpoint.tmp @ open_log.set_epochs",
            "create recovery-point-offset-checkpoint.tmp @ log_dir.write_points",
        ),
        "fsync_directory data @ going.delete": (
            "create log-start-offset-checkpoint.tmp @ log_dir.write_starts",
        ),
        _NAMES: (
            "create leader-epoch-checkpoint.tmp @ open_log.set_epochs",
            "create log-start-offset-checkpoint.tmp @ log_dir.write_starts",
            "create recovery-point-offset-checkpoint.tmp @ log_dir.write_points",
        ),
        "fsync_directory partition @ open_log.set_epochs": (
            "create log-start-offset-checkpoint.tmp @ log_dir.write_starts",
        ),
        "fsync_directory partition @ recovery.recover": (
            "create leader-epoch-checkpoint.tmp @ opening.open_log",
        ),
        _SWAP: ("create swap-intent.tmp @ swap.carry_out",),
    },
    "an index that is not whole, or not there, is made anew": {
        "write .index.test-.part @ swapping.write_parts": (
            "fsync .index.test-.part @ swapping.write_parts",
        ),
        "write .index.truncate-.part @ truncation.write": (
            "fsync .index.truncate-.part @ truncation.write",
        ),
        "write .timeindex.test-.part @ swapping.write_parts": (
            "fsync .timeindex.test-.part @ swapping.write_parts",
        ),
        "write .timeindex.truncate-.part @ truncation.write": (
            "fsync .timeindex.truncate-.part @ truncation.write",
        ),
        "write .txnindex.truncate-.part @ truncation.write": (
            "fsync .txnindex.truncate-.part @ truncation.write",
        ),
        "rename .timeindex.truncate-.part @ swap.apply": (_SWAP,),
        "rename .txnindex.truncate-.part @ swap.apply": (_SWAP,),
        "write .index.tmp @ recovery.replace": ("fsync .index.tmp @ recovery.replace",),
        "fsync .index.tmp @ recovery.replace": ("rename .index.tmp @ recovery.replace",),
        "rename .index.tmp @ recovery.replace": ("fsync_directory partition @ recovery.replace",),
        "write .timeindex.tmp @ recovery.replace": ("fsync .timeindex.tmp @ recovery.replace",),
        "fsync .timeindex.tmp @ recovery.replace": ("rename .timeindex.tmp @ recovery.replace",),
        "rename .timeindex.tmp @ recovery.replace": (
            "fsync_directory partition @ recovery.replace",
        ),
        "fsync_directory partition @ recovery.replace": (
            "create .timeindex.tmp @ recovery.replace",
            "unlink .digest @ digest.remove_digest",
        ),
    },
    "a `.swap` without an intent is put in its place as one of Kafka's is": {
        "rename .timeindex.swap @ swap.apply": (_SWAP,),
        "rename .txnindex.swap @ swap.apply": (_SWAP,),
    },
    "an index that was just made, or is cut off behind its entries, says nothing by itself": {
        "fsync .timeindex @ indexes.fsync_times": ("create .index @ indexes.open_for_update",),
        "fsync_directory partition @ opening.create_segment": ("truncate .index @ indexes.init",),
        "fsync_directory partition @ opening.open_log": (
            "create .index @ indexes.open_for_update",
            "truncate .index @ indexes.init",
        ),
        "fsync_directory partition @ recovery.recover": ("truncate .index @ indexes.init",),
    },
    "a snapshot or a digest carries a checksum, and speaks of what is there when it is read": {
        _NAMES: (
            "create .digest @ digest.store_digest",
            "create .snapshot @ snapshots.write_snapshot",
            "make_directory .stratalog @ digest.store_digest",
        ),
    },
    "the digest then speaks of an index without its last entry: the index is made anew": {
        "write .index @ indexes.add_one": (
            "create .digest @ digest.store_digest",
            "make_directory .stratalog @ digest.store_digest",
        ),
        "write .timeindex @ indexes.add": (
            "create .digest @ digest.store_digest",
            "make_directory .stratalog @ digest.store_digest",
        ),
        "write .timeindex @ indexes.add_one": (
            "create .digest @ digest.store_digest",
            "make_directory .stratalog @ digest.store_digest",
        ),
    },
    "an intent that is back after its swap is done again, and finds nothing to do": {
        "fsync_directory .stratalog @ swap.apply": (
            "create .log.test-.part @ swapping.write_parts",
            "unlink .index.deleted @ leftovers.resolve",
            "write .log @ active.append",
            "write .timeindex @ indexes.add",
        ),
    },
    "a `.swap` whose other files are `.cleaned` goes back with them": {
        "fsync_directory .stratalog @ swap.carry_out": ("rename .log.cleaned @ swap.apply",),
    },
    "an older recovery point only makes the scan longer, and the next barrier comes before its log "
    "is shorter than it says; Kafka's own file is read by Kafka alone": {
        _POINTS: (
            "create .digest @ digest.store_digest",
            "create .kafka_cleanshutdown @ log_dir.close_log_dir",
            "create .log.truncate-.part @ truncation.copy_prefix",
            "create log-start-offset-checkpoint.tmp @ log_dir.write_starts",
            "create recovery-point-offset-checkpoint.tmp @ log_dir.write_points",
            "create replication-offset-checkpoint.tmp @ log_dir.write_points",
            "make_directory partition @ opening.open_log",
            "rename partition @ going.delete",
            "unlink .digest @ deletion.remove_tree",
            "unlink .index @ deletion.remove_tree",
            "unlink .log.deleted @ deletion.unlink_if_there",
            "unlink .snapshot @ truncation.write_truncated",
            "write .log @ active.append",
        ),
        "rename recovery-point-offset-checkpoint.tmp @ log_dir.write_points": (_POINTS,),
        "rename replication-offset-checkpoint.tmp @ log_dir.write_points": (_POINTS,),
    },
    "the marker that is back vouches for what is still so: no record has been touched": {
        "fsync_directory data @ log_dir.open_log_dir": (
            "make_directory partition @ opening.open_log",
            "truncate .index @ indexes.init",
            "unlink .index.deleted @ leftovers.resolve",
        ),
    },
    "a partition whose name is lost takes its files along": {
        "fsync_directory data @ opening.open_log": ("create .index @ indexes.open_for_update",),
    },
    "no cut finds a lock held": {
        "fsync_directory data @ log_dir.close_log_dir": ("lock .lock @ locking.lock_directory",),
    },
    "the barrier has nothing left to sync here: whoever made the files synced their names": {
        _NAMES: ("write .log @ active.append", "write .timeindex @ indexes.add"),
    },
    "an epoch is of a record that is not promised yet, or lies outside the log and is cut off when "
    "it is opened": {
        "fsync_directory partition @ open_log.set_epochs": (
            "unlink .digest @ digest.remove_digest",
            "unlink .snapshot @ truncation.write_truncated",
            "write .log @ active.append",
        ),
        "rename leader-epoch-checkpoint.tmp @ opening.open_log": (
            "fsync_directory partition @ opening.open_log",
        ),
    },
    "a snapshot at no segment's base is removed by whoever opens the log": {
        "unlink .snapshot @ swap.apply": (_SWAP,),
    },
    "neither is flushed: a scan ends at the first that is missing": {
        "write .log @ active.append": ("write .log @ active.append",),
    },
    "the damage that is back is cut off again, and whoever flushes syncs the file": {
        "truncate .log @ recovery.cut": ("fsync .log @ recovery.cut",),
    },
    "only a directory that was not stopped in order is recovered: here is no marker to keep back": {
        "fsync_directory data @ log_dir.open_log_dir": (
            "create .log @ recovery.start_over",
            "unlink .digest @ digest.remove_digest",
            "unlink .log @ recovery.unlink",
        ),
    },
    "what is below the log's start, or the first segment at it, is dropped or made again": {
        "create .log @ recovery.start_over": ("fsync_directory partition @ recovery.start_over",),
        "fsync_directory partition @ recovery.start_over": ("unlink .log @ recovery.unlink",),
        "fsync_directory .stratalog @ recovery.unlink_digest": ("unlink .log @ recovery.unlink",),
    },
}

HARMLESS: dict[str, str] = {
    f"{first} <-> {second}": reason
    for reason, pairs in _EXCHANGED.items()
    for first, seconds in pairs.items()
    for second in seconds
}
"""Exchanged without harm."""

_STARTS = "fsync_directory data @ log_dir.write_starts"
_INTENT = "fsync_directory .stratalog @ swap.apply"

SHOWN_BY: dict[str, str] = {
    "fsync .timeindex @ indexes.fsync_times": "out of the order of time",
    "fsync_directory partition @ opening.create": "restored without leader epochs",
    "fsync .log @ recovery.cut": "damaged in the first segment",
    "fsync .log.truncate-.part @ truncation.copy_prefix": "truncated between flushed batches",
    _STARTS: "two partitions and their checkpoints",
    f"rename log-start-offset-checkpoint.tmp @ log_dir.write_starts <-> {_STARTS}": (
        "two partitions and their checkpoints"
    ),
    _INTENT: "what was swapped is swapped again",
    f"unlink swap-intent @ swap.apply <-> {_INTENT}": "what was swapped is swapped again",
}
"""Steps that few scenarios miss: one that does."""
