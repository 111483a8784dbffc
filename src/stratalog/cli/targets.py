"""What an argument names: a topic, or a directory, which a server may own.

An argument is a topic where the command line says where topics are (--data, --server), or where
only the variable STRATALOG_DATA does and there is no such directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from stratalog.cli.desks import DATA_VARIABLE, Where
from stratalog.cli.options import TSV

if TYPE_CHECKING:
    from stratalog.server.client import RemoteDesk

Document = dict[str, Any]


def is_topic(where: Where, target: str | None) -> bool:
    """Whether `target` is a topic's name and not a directory."""
    if where.is_given:
        return True
    return bool(os.environ.get(DATA_VARIABLE)) and not (target and os.path.isdir(target))


def first_of(targets: Sequence[str]) -> str | None:
    return targets[0] if targets else None


def needed_directories(targets: Sequence[str]) -> list[str]:
    """The directories, which must be there. Raises `click.UsageError`."""
    if not targets:
        raise click.UsageError("Missing argument 'DIR', or where: --data DIR, --server URL.")
    for target in targets:
        if not os.path.exists(target):
            raise click.BadParameter(f"Directory {target!r} does not exist.", param_hint="DIR")
        if not os.path.isdir(target):
            raise click.BadParameter(f"Directory {target!r} is a file.", param_hint="DIR")
    return list(targets)


@dataclass(frozen=True, slots=True)
class Served:
    """A directory that a server owns: all of it, or one partition."""

    directory: str
    desk: RemoteDesk
    topic: str | None = None
    partition: int | None = None

    @property
    def url(self) -> str:
        return self.desk.url


def served(directories: Sequence[str]) -> list[Served] | None:
    """The servers that own these directories; None if none of them is owned.

    Raises `click.UsageError` if only some are.
    """
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.server.client import find_server

    disk, found = LocalFileSystem(), []
    for directory in directories:
        path = os.path.abspath(directory)
        desk = find_server(path, disk)
        if desk is not None:
            found.append(Served(directory, desk))
            continue
        desk = find_server(os.path.dirname(path), disk)
        if desk is not None:
            from stratalog.segment.names import parse_partition_directory

            key = parse_partition_directory(os.path.basename(path))
            if key is not None:
                found.append(Served(directory, desk, key.topic, key.partition))
    if found and len(found) < len(directories):
        raise click.UsageError("A server owns some of the directories: name them apart.")
    return found or None


def refuse_topics_options(output: str, partition: int | None, waits: bool = False) -> None:
    """What goes with topics only. Raises `click.UsageError`."""
    if output == TSV or partition is not None or waits:
        raise click.UsageError("--format tsv, -p and -w go with topics: say --data or --server.")


def gathered(
    call: Callable[[str | None, int | None], Document],
    topics: Sequence[str],
    partition: int | None,
) -> Document:
    """One document of several topics, or of all."""
    if not topics:
        if partition is not None:
            raise click.UsageError("-p goes with a TOPIC.")
        return call(None, None)
    found = [call(topic, partition) for topic in dict.fromkeys(topics)]
    rows = [row for document in found for row in document["partitions"]]
    return {**found[0], "ok": all(document["ok"] for document in found), "partitions": rows}
