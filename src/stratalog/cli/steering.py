"""`compaction pause|resume`, `cleaner retry`: of topics by a desk, or of directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from stratalog.cli.desks import Where, desk_at
from stratalog.cli.listing import Column, Item, exit_code, show
from stratalog.cli.options import JSON, TSV
from stratalog.cli.output import print_json, print_note
from stratalog.cli.targets import (
    Served,
    first_of,
    gathered,
    is_topic,
    needed_directories,
    refuse_topics_options,
    served,
)

if TYPE_CHECKING:
    from stratalog.admin.steering import NoteChange
    from stratalog.base.filesystem import FileSystem

Document = dict[str, Any]
Steer = Literal["pause", "resume", "retry"]
STEERED = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("changed", "changed"),
    Column("paused", "paused"),
    Column("failing", "failing"),
)


def steer(
    where: Where,
    targets: Sequence[str],
    partition: int | None,
    output: str,
    operation: Steer,
    words: tuple[str, str],
) -> int:
    """`pause`, `resume`, `retry` of topics, or of directories; the exit code.

    `words`: what to say of a partition that was changed, and of one that was so before.
    """
    if is_topic(where, first_of(targets)):
        if not targets and operation != "retry":
            raise click.UsageError("Missing argument 'TOPIC'.")
        with desk_at(where) as desk:
            document = gathered(getattr(desk, operation), targets, partition)
        return show_steered(document, output, words)
    refuse_topics_options(output, partition)
    directories = needed_directories(targets)
    owned = served(directories)
    if owned is not None:
        return _show_changes(_steered_by(owned, operation), output, words)

    from stratalog.admin import steering
    from stratalog.base.filesystem import LocalFileSystem

    change: Callable[[Sequence[str], FileSystem], tuple[NoteChange, ...]]
    change = getattr(steering, operation)
    document = steering.changes_json(change(directories, LocalFileSystem()))
    return _show_changes(document, output, words)


def _steered_by(owned: Sequence[Served], operation: str) -> Document:
    """By the servers that own the directories, as the directories' own command tells it."""
    rows = []
    for one in owned:
        call = getattr(one.desk, operation)
        if one.topic is not None:
            topics = [one.topic]
        else:
            topics = [row["name"] for row in one.desk.list_topics()["topics"]]
        for topic in topics:
            rows += call(topic, one.partition)["partitions"]
    return {
        "ok": all(row["error"] is None for row in rows),
        "partitions": [
            {
                "partition": name_of(row),
                "changed": row["changed"],
                "paused": row["paused"],
                "is_failing": row["failing"],
                **({} if row["error"] is None else {"error": row["error"]["message"]}),
            }
            for row in rows
        ],
    }


def _show_changes(document: Document, output: str, words: tuple[str, str]) -> int:
    if output == JSON:
        print_json(document)
        return exit_code(document)
    rows = document["partitions"]
    for row in rows:
        told = row.get("error") or words[0 if row["changed"] else 1]
        click.echo(f"{row['partition']}: {told}")
    _note_failing([row["partition"] for row in rows if row["is_failing"]])
    return exit_code(document)


def show_steered(document: Document, output: str, words: tuple[str, str]) -> int:
    rows = document["partitions"]
    text = "\n".join(
        f"{name_of(row)}: "
        + (row["error"]["message"] if row["error"] else words[0 if row["changed"] else 1])
        for row in rows
    )
    show(document, output, STEERED, rows, text=text)
    if output not in (JSON, TSV):
        _note_failing([name_of(row) for row in rows if row["failing"]])
    return exit_code(document)


def _note_failing(names: Sequence[str]) -> None:
    if names:
        told = ", ".join(names)
        print_note(f"note: cleaning has failed in {told}; see stratalog cleaner status")


def name_of(row: Item) -> str:
    """An item's partition."""
    return f"{row['topic']}-{row['partition']}"
