"""`stratalog topic describe-storage`: offsets, sizes, segments and the cleaner's view of a topic.

Sections as rpk has them (`-s -o -z`), and CLEANUP (`-c`) and SEGMENTS (`-g`), which it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from stratalog.cli.desks import Where, desk_at, list_format_option, where_options
from stratalog.cli.listing import (
    Column,
    Item,
    bytes_column,
    exit_code,
    percent,
    plain,
    show,
    text_table,
    time_column,
)
from stratalog.cli.tables import counted, facts, size

_PARTITION = (Column("partition", "partition"),)
_OFFSETS = (
    *_PARTITION,
    Column("log start", "log_start_offset"),
    Column("log end", "log_end_offset"),
    Column("stable", "last_stable_offset"),
    Column("cleaned to", "checkpoint"),
    Column("first dirty", "first_dirty"),
    Column("first uncleanable", "first_uncleanable"),
)
_SIZES = (
    *_PARTITION,
    bytes_column("clean", "bytes.clean"),
    bytes_column("cleanable", "bytes.cleanable"),
    bytes_column("held back", "bytes.uncleanable"),
    bytes_column("active", "bytes.active"),
    bytes_column("total", "size_bytes"),
    bytes_column("indexes", "index_bytes"),
)
_CLEANUP = (
    *_PARTITION,
    Column("mode", "mode"),
    Column("dirty", "dirty_ratio", percent),
    Column("state", "state"),
    time_column("last run", "ended_ms"),
    time_column("next expiry", "next_expiry_ms"),
    Column("paused", "paused"),
    Column("ledger", "ledger.number"),
    Column("horizon", "ledger.horizon"),
    Column("failure", "failure.cause"),
)
_SEGMENTS = (
    *_PARTITION,
    Column("base", "base_offset"),
    Column("end", "end_offset"),
    bytes_column("size", "size_bytes"),
    bytes_column("indexes", "index_bytes"),
    time_column("modified", "modified_ms"),
    Column("section", "section"),
)


@click.command("describe-storage", short_help="Offsets, sizes, segments, what is clean.")
@click.argument("name", metavar="TOPIC")
@click.option("-s", "--summary", is_flag=True, help="The SUMMARY only, or with others.")
@click.option("-o", "--offsets", is_flag=True, help="The OFFSETS.")
@click.option("-z", "--size", "sizes", is_flag=True, help="The SIZE of each section.")
@click.option("-c", "--cleanup", is_flag=True, help="The CLEANUP: what compaction did.")
@click.option("-g", "--segments", is_flag=True, help="The SEGMENTS.")
@click.option("-H", "--human-readable", is_flag=True, help="Sizes like 1.5 MiB.")
@click.option("-p", "--partitions", metavar="N[,N]", help="Which partitions. [default: all]")
@where_options
@list_format_option
@click.pass_context
def describe_storage(
    context: click.Context,
    where: Where,
    name: str,
    summary: bool,
    offsets: bool,
    sizes: bool,
    cleanup: bool,
    segments: bool,
    human_readable: bool,
    partitions: str | None,
    output: str,
) -> None:
    """Show how TOPIC is stored: without a choice of sections, all of them.

    With --format tsv one section's lines: -o, -z, -c or -g; without a choice the segments'.
    """
    from stratalog.cli.topic import parse_partitions

    numbers = parse_partitions(partitions)
    with desk_at(where) as desk:
        document = desk.describe_storage(name, numbers)
    chosen = {
        "OFFSETS": (offsets, _OFFSETS),
        "SIZE": (sizes, _SIZES),
        "CLEANUP": (cleanup, _CLEANUP),
        "SEGMENTS": (segments, _SEGMENTS),
    }
    shows_all = not (summary or offsets or sizes or cleanup or segments)
    parts = [_titled("SUMMARY", _summary(document, human_readable))] * (summary or shows_all)
    rows = document["partitions"]
    for title, (is_chosen, columns) in chosen.items():
        if is_chosen or shows_all:
            shown = columns if human_readable else [_raw(column) for column in columns]
            items = _items(title, rows)
            parts.append(_titled(title, text_table(shown, items) if items else "-"))
    picked = [pair for pair in chosen.items() if pair[1][0]] or [("SEGMENTS", chosen["SEGMENTS"])]
    title, (_, columns) = picked[0]
    show(document, output, columns, _items(title, rows), text="\n\n".join(parts))
    context.exit(exit_code(document))


def _items(title: str, rows: Sequence[Item]) -> list[Item]:
    if title != "SEGMENTS":
        return list(rows)
    found: list[Item] = []
    for row in rows:
        if row["error"] is not None:
            found.append({**dict.fromkeys(_SEGMENT_FIELDS), **row})
        found += [
            {**segment, "partition": row["partition"], "error": None} for segment in row["segments"]
        ]
    return found


_SEGMENT_FIELDS = [column.field for column in _SEGMENTS]


def _raw(column: Column) -> Column:
    return replace(column, human=plain) if column.human is size else column


def _titled(title: str, text: str) -> str:
    return f"{title}\n{'=' * len(title)}\n{text}"


def _summary(document: Item, human_readable: bool) -> str:
    rows = document["partitions"]
    segments = sum(len(row["segments"]) for row in rows)
    total = document["size_bytes"]
    return facts(
        [
            ("topic", document["topic"]),
            ("partitions", str(len(rows))),
            ("segments", counted(segments, "segment")),
            ("size", size(total) if human_readable else str(total)),
        ]
    )
