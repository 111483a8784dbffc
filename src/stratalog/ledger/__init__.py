"""Ledgers: the compacted copy of a log that lies beside it (LDG).

    manifest   which generations count, oldest first; one file, switched atomically
    ledgers    those of a store: pinned by readers, switched by runs, unlinked if unneeded
    view       the compacted view: ledger up to its horizon, raw log from there on
    status     how the last run of a partition ended, also after a restart

Nothing here knows of cleaning: `clean/ledger_round.py` makes the generations.
"""
