"""The operations that every face shares: command line, REST, the Python API, Spark's jobs.

    desk/           what can be administered, once, as documents

    directories.py  which partitions a directory holds
    floors.py       settings -> the plain values of the floors below
    state.py        what lies in a partition -> the plan's inputs, without touching it
    copying.py      a log directory -> a fresh one
    placing.py      a round's outcome -> the partition's directory: roll, swaps, checkpoint
    report.py       what a compaction did, as values
    compaction.py   `compact`: find, lock, copy, and then
      compaction_plan.py   a partition and its options -> what is to be done
      compaction_run.py    batches of partitions: engine, place, note, history
      compaction_ledger.py those in ledger mode: begun, settled or undone
    location.py     a place that generations are written to: sweep, fill, switch
      location_manifest.py which generation counts
      location_ledger.py   a partition in ledger mode whose copy is kept there
      location_run.py      `compact --out` for such topics, from directories into one
    top_keys.py     the keys that a round would drop the most of
    columns.py      records -> columns, for counting, checking and dumping
    stats.py        what a log holds, counted
    verify.py       whether every byte of it holds together
    fold.py         the latest value per key of two directories, compared (CMP-18)
    dump.py         batches and records, for people
    importing.py    CSV and JSON lines -> logs
    store.py        a `LogStore` for one command, closed in order
    policies.py     whose records may be deleted
    retention.py    `retention`: old segments go, or are shown
    deleting.py     `records delete`: records below an offset go
    damage.py       what is damaged in a partition, and what settling it loses
    mend.py         the steps that put a partition in order
    repair.py       `log repair`: all of those, for many partitions
    service.py      `open_service`: a store, its cleaner and the settings in force
    topics.py       settings of each topic -> what store and cleaner go by
    round_engines.py  which engine cleans a partition of a service
    cleaning.py     `compaction status|explain|history`, `cleaner status` of a directory
    steering.py     `compaction pause|resume`, `cleaner retry` in directories that nobody has open
    forgetting.py   `forget`: a key is erased, with a receipt; absent.py looks whether it is
    page/           `stats --html`: figures of all of that, as one page
    overlay.py      a file system that only remembers changes: for showing a repair

Everything here takes and returns values and raises the errors of `base.errors`; printing is the
business of whoever calls.
"""
