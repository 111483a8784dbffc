"""What to do with a damaged ledger, in the words of an error (LDG-1).

A ledger is a copy: where the raw log still has all that it was made from, it is made anew. Where
the log has lost that, only the undamaged files bring it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.base.errors import CorruptionError
from stratalog.ledger.manifest import Generation, held_alone, ledgers_path


def advice(partition_dir: str, generation: Generation | None, log_start_offset: int | None) -> str:
    """What mends a damaged generation, or with None the manifest. `log_start_offset`: where the raw
    log begins; None: there is none, or nobody has looked."""
    path = ledgers_path(partition_dir)
    anew = f"remove {path} while no process has the log open, and compact again"
    if log_start_offset is None:
        return f"if the raw log still has all that the ledger holds, {anew}"
    start = 0 if generation is None else generation.start_offset
    alone = (start, log_start_offset) if log_start_offset > start else None
    if generation is not None:
        alone = held_alone(generation, log_start_offset) or alone
    if alone is None:
        return f"the raw log still has all of it: {anew}"
    begins = f"begins at offset {log_start_offset} by now"
    why = begins if log_start_offset >= alone[1] else "has lost records to damage"
    return (
        f"the raw log {why}, so what the ledger holds of offsets {alone[0]} to {alone[1] - 1} is "
        f"nowhere else: bring {path} back from a copy"
    )


@contextmanager
def advising(partition_dir: str) -> Iterator[None]:
    """Damage to a partition's ledgers that is met inside is raised with what mends it."""
    try:
        yield
    except CorruptionError as error:
        if error.file is None or not error.file.startswith(ledgers_path(partition_dir) + os.sep):
            raise
        words = f"{error.reason}; {advice(partition_dir, None, None)}"
        raise CorruptionError(words, file=error.file, position=error.position) from error
