"""Pieces of logs as the tasks that Spark hands to its workers.

tasks_of      pieces -> tasks of about equal size, the biggest first
latest_tasks  whole partitions of `view=latest` -> tasks
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import InputPartition

from stratalog.pipeline.planning import LatestPart, Piece

_PACKED_BYTES = 4 << 20
_PACKED_PIECES = 64
"""Pieces of little logs share a task up to these: a task's start takes as long as some MiB."""


class SourceTask(InputPartition):
    """What one task reads: pieces, or whole partitions of `view=latest`."""

    def __init__(self, pieces: Sequence[Piece] = (), latest: Sequence[LatestPart] = ()):
        self.pieces = tuple(pieces)
        self.latest = tuple(latest)

    @property
    def size_bytes(self) -> int:
        """What is read of files."""
        pieces = sum(piece.size_bytes for piece in self.pieces)
        return pieces + sum(part.size_bytes for part in self.latest)


def tasks_of(
    pieces: Iterable[Piece], max_bytes: int, min_tasks: int | None, *, may_join: bool = True
) -> list[SourceTask]:
    """Tasks of neighbouring pieces, the biggest task first (SPK-1).

    `min_tasks`: no pieces are put together while there would be fewer tasks than that; `may_join`
    false: none at all.
    """
    ordered = list(pieces)
    if not may_join or (min_tasks is not None and len(ordered) <= min_tasks):
        groups = [[piece] for piece in ordered]
    else:
        total = sum(piece.size_bytes for piece in ordered)
        bound = max_bytes if min_tasks is None else min(max_bytes, total // min_tasks)
        groups = _grouped(ordered, bound)
    tasks = [SourceTask(group) for group in groups]
    return sorted(tasks, key=lambda task: -task.size_bytes)


def _grouped(pieces: list[Piece], max_bytes: int) -> list[list[Piece]]:
    """Neighbours of one partition up to `max_bytes`, of several up to `_PACKED_BYTES`."""
    groups: list[list[Piece]] = []
    size_bytes = 0
    for piece in pieces:
        size_bytes += piece.size_bytes
        if groups:
            is_same = groups[-1][-1].place == piece.place
            fits = size_bytes <= (max_bytes if is_same else min(max_bytes, _PACKED_BYTES))
            if fits and (is_same or len(groups[-1]) < _PACKED_PIECES):
                groups[-1].append(piece)
                continue
        groups.append([piece])
        size_bytes = piece.size_bytes
    return groups


def latest_tasks(parts: Iterable[LatestPart], min_tasks: int | None) -> list[SourceTask]:
    """One task a partition, the biggest first; little ones share tasks."""
    tasks: list[list[LatestPart]] = []
    size_bytes = 0
    for part in sorted(parts, key=lambda part: -part.size_bytes):
        size_bytes += part.size_bytes
        if (
            tasks
            and min_tasks is None
            and size_bytes <= _PACKED_BYTES
            and len(tasks[-1]) < _PACKED_PIECES
        ):
            tasks[-1].append(part)
        else:
            tasks.append([part])
            size_bytes = part.size_bytes
    return [SourceTask(latest=task) for task in tasks]
