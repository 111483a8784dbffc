"""The cleaner: deciding what a compacted log keeps, and making the segments that keep it.

    job.py          the values that cross between the steps: CleanSpec, CleaningJob, results
    policy.py       which part of a log is cleanable, how dirty it is         (pure)
    group.py        which segments become one                                (pure)
    plan.py         a partition's state -> CleaningJob                       (pure)
    chunk.py        a segment file, chunk by chunk, decompressed in pieces
    offset_map.py   key hash -> last offset, within a bound of memory
    spool.py        offsets gathered into one sorted array, past a bound on disk
    index.py        a chunk -> key hashes and offsets, and what it says of transactions
    settle.py       transactions over chunk reports: which markers may go    (pure)
    round_end.py    where a round ends when its map is full
    decide.py       a chunk -> what stays of it, as new bytes
    rewrite.py      a group of segments -> new segment files
    engine.py       what every engine does, and what it answers
    local_engine.py threads on this machine
    ledger_plan.py  last ledger and raw log -> CleaningJob
    ledger_round.py a run of it: a new generation beside the log, then the switch

The order of the steps is plan -> index -> merge -> settle -> decide -> rewrite; the swap that puts
the result in place is `log/swap.py`, because it belongs to whoever owns the directory.
"""
