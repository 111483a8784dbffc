"""Compaction by a desk: `compaction run|cancel`, and the other commands where they name topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stratalog.cli.desks import Where, desk_at, list_format_option, where_options
from stratalog.cli.listing import (
    Column,
    Item,
    bytes_column,
    count,
    exit_code,
    percent,
    show,
    text_table,
    time_column,
)
from stratalog.cli.steering import name_of, show_steered
from stratalog.cli.tables import counted, facts, size
from stratalog.cli.targets import gathered

if TYPE_CHECKING:
    from stratalog.admin.desk.protocol import Desk

Command = TypeVar("Command", bound=Callable[..., Any])
Document = dict[str, Any]
_POLL_SECONDS = 0.2
_UNDER_WAY = ("waiting", "running")
_NAMES = (Column("topic", "topic"), Column("partition", "partition"))
STATUS = (
    *_NAMES,
    Column("mode", "mode"),
    Column("state", "state"),
    Column("phase", "phase"),
    bytes_column("done", "done_bytes"),
    time_column("last run", "started_ms"),
    bytes_column("clean", "bytes.clean"),
    bytes_column("cleanable", "bytes.cleanable"),
    bytes_column("held back", "bytes.uncleanable"),
    bytes_column("active", "bytes.active"),
    Column("dirty", "dirty_ratio", percent),
    bytes_column("backlog", "backlog_bytes"),
    Column("cleaned to", "checkpoint"),
    Column("ledger", "ledger.number"),
    Column("horizon", "ledger.horizon"),
    time_column("next expiry", "next_expiry_ms"),
    Column("paused", "paused"),
)
STARTED = (*_NAMES, Column("request", "request"), *STATUS[2:])
_LEFT_OUT = ("held back", "cleaned to", "horizon", "next expiry")
"""For people: `topic describe-storage` has them."""
EXPLAINED = (
    *_NAMES,
    Column("reason", "reason"),
    Column("obstacle", "obstacle"),
    Column("place", "place"),
    Column("sentence", "sentence"),
)
HISTORY = (
    *_NAMES,
    time_column("began", "started_ms"),
    Column("took ms", "duration_ms", count),
    Column("why", "trigger"),
    Column("result", "result"),
    Column("from", "first_dirty"),
    Column("to", "end_offset"),
    Column("records before", "records_before", count),
    Column("after", "records_after", count),
    bytes_column("size before", "bytes_before"),
    bytes_column("after", "bytes_after"),
    Column("cause", "cause"),
)
QUEUE = (
    *_NAMES,
    Column("place", "place"),
    Column("reason", "reason"),
    Column("dirty", "dirty_ratio", percent),
)

partition_option = click.option(
    "-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Only this one of a TOPIC."
)
wait_option = click.option(
    "-w", "--wait-complete", "waits", is_flag=True, help="Of topics: wait until nothing runs."
)


# ---------------------------------------------------------------- run, cancel


@click.command(short_help="Compact topics now.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@partition_option
@click.option("-w", "--wait", "waits", is_flag=True, help="Wait until it is done.")
@where_options
@list_format_option
@click.pass_context
def run(
    context: click.Context,
    where: Where,
    topics: tuple[str, ...],
    partition: int | None,
    waits: bool,
    output: str,
) -> None:
    """Compact TOPIC now, whatever its dirty ratio or backlog, the active segment included.

    A server starts it, and this ends; without one it is done when this ends. What is running
    already goes on, and its status is told.
    """
    with desk_at(where) as desk:
        document = gathered(_strict(desk.compact), topics, partition)
        if waits and document["ok"]:
            requests = {_key(row): row["request"] for row in document["partitions"]}
            document = _waited(desk, topics, partition)
            for row in document["partitions"]:
                row["request"] = requests.get(_key(row))
            failed = any(row["state"] in ("failed", "aborted") for row in document["partitions"])
            document["ok"] = document["ok"] and not failed
    show(document, output, STARTED, document["partitions"], text=_status_text(document, STARTED))
    context.exit(exit_code(document))


def _strict(call: Callable[[str, int | None], Document]) -> Callable[..., Document]:
    """For `gathered`, where there always is a topic."""
    return call


def _key(row: Item) -> tuple[str, int]:
    return row["topic"], row["partition"]


def _waited(desk: Desk, topics: Sequence[str], partition: int | None) -> Document:
    while True:
        document = gathered(desk.compaction_status, topics, partition)
        if not any(row["state"] in _UNDER_WAY for row in document["partitions"]):
            return document
        time.sleep(_POLL_SECONDS)


@click.command(short_help="Stop a compaction that runs.")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@partition_option
@where_options
@list_format_option
@click.pass_context
def cancel(
    context: click.Context,
    where: Where,
    topics: tuple[str, ...],
    partition: int | None,
    output: str,
) -> None:
    """Stop the compaction of TOPIC, or take it back if it waits. The log stays as it was."""
    with desk_at(where) as desk:
        document = gathered(_strict(desk.cancel), topics, partition)
    context.exit(show_steered(document, output, ("stopped", "nothing ran")))


# ---------------------------------------------------------------- looking


def show_status(
    where: Where, topics: Sequence[str], partition: int | None, output: str, *, waits: bool
) -> int:
    """`compaction status` of topics; the exit code. Waiting ends with 1 after a failure."""
    with desk_at(where) as desk:
        if waits:
            document = _waited(desk, topics, partition)
            if any(row["state"] == "failed" for row in document["partitions"]):
                document["ok"] = False
        else:
            document = gathered(desk.compaction_status, topics, partition)
    show(document, output, STATUS, document["partitions"], text=_status_text(document, STATUS))
    return exit_code(document)


def _status_text(document: Document, columns: Sequence[Column]) -> str:
    rows = document["partitions"]
    if not rows:
        return "There are no partitions."
    lines = [text_table([it for it in columns if it.head not in _LEFT_OUT], rows)]
    for row in rows:
        name = f"{row['topic']}-{row['partition']}"
        if row["cause"]:
            lines.append(f"{name}: {row['state']}: {row['cause']}")
        if row["quarantine"]:
            lines.append(f"{name} is quarantined: {row['quarantine']}")
    return "\n".join(lines)


def show_explanations(
    where: Where, topics: Sequence[str], partition: int | None, output: str
) -> int:
    """`compaction explain` of topics; the exit code."""
    with desk_at(where) as desk:
        document = gathered(desk.explain, topics, partition)
    rows = document["partitions"]
    text = "\n".join(
        f"{row['topic']}-{row['partition']}: error: {row['error']['message']}"
        if row["error"] is not None
        else str(row["sentence"])
        for row in rows
    )
    show(document, output, EXPLAINED, rows, text=text or "There are no partitions.")
    return exit_code(document)


def show_history(
    where: Where,
    topics: Sequence[str],
    partition: int | None,
    limit: int | None,
    output: str,
) -> int:
    """`compaction history` of topics; the exit code."""
    with desk_at(where) as desk:
        document = gathered(partial(_history, desk, limit), topics, partition)
    rounds = []
    for row in document["partitions"]:
        names = {"topic": row["topic"], "partition": row["partition"]}
        if row["error"] is not None:
            fields = dict.fromkeys(column.field for column in HISTORY)
            rounds.append({**fields, **names, "error": row["error"]})
        rounds += [{**entry, **names, "error": None} for entry in row["history"]]
    text = text_table(HISTORY, rounds) if rounds else "No round is on record."
    show(document, output, HISTORY, rounds, text=text)
    return exit_code(document)


def _history(desk: Desk, limit: int | None, topic: str | None, partition: int | None) -> Document:
    return desk.history(topic, partition, limit)


def show_cleaner(where: Where, output: str) -> int:
    """`cleaner status` of a desk; the exit code. Lines of tabs are those of the queue."""
    with desk_at(where) as desk:
        document = desk.cleaner_status()
    queue = [{**row, "error": None} for row in document["queue"]]
    show(document, output, QUEUE, queue, text=_cleaner_text(document))
    return exit_code(document)


def _cleaner_text(document: Document) -> str:
    totals = document["totals"]
    sections = totals["bytes"]
    state = counted(document["threads"], "thread") if document["running"] else "not running"
    lines = [
        facts(
            [
                ("cleaner", state),
                ("partitions", f"{totals['partitions']:,}"),
                ("to be cleaned", f"{len(document['queue']):,}"),
                ("failing", f"{totals['uncleanable_partitions']:,}"),
                ("paused", f"{len(document['paused']):,}"),
                ("clean", size(sections["clean"])),
                ("cleanable", size(sections["cleanable"])),
                ("held back", size(sections["uncleanable"])),
                ("active", size(sections["active"])),
            ]
        )
    ]
    for row in document["activities"]:
        done = f", {size(row['done_bytes'])} done" if row["done_bytes"] is not None else ""
        lines.append(f"{row['thread']}: {name_of(row)} ({row['trigger']}){done}")
    lines += [str(row["sentence"]) for row in document["queue"]]
    for row in document["uncleanable"]:
        cause = row["quarantine"] or (row["failure"] or {}).get("cause")
        lines.append(f"{name_of(row)} is not cleaned: {cause}")
    lines += [f"{name_of(row)} is paused." for row in document["paused"]]
    lines += [f"{name_of(row)}: error: {row['error']['message']}" for row in document["errors"]]
    return "\n".join(lines)
