"""`stratalog log-dirs describe`: the log directories, and how much of them each partition takes."""

from __future__ import annotations

from typing import Any

import click

from stratalog.cli.desks import Where, desk_at, list_format_option, where_options
from stratalog.cli.listing import Column, bytes_column, exit_code, plain, show, text_table
from stratalog.cli.tables import size

DESCRIBED = (
    Column("log dir", "log_dir"),
    Column("topic", "topic"),
    Column("partition", "partition"),
    bytes_column("size", "size_bytes"),
    Column("offset lag", "offset_lag"),
    Column("future", "is_future"),
)


@click.group("log-dirs", short_help="Log directories and what lies in them.")
def log_dirs() -> None:
    """Log directories."""


@log_dirs.command(short_help="Sizes by directory and partition.")
@click.option("--topic-list", metavar="TOPIC,TOPIC", help="Only of these. [default: all]")
@click.option("--describe", "_is_describe", is_flag=True, hidden=True)
@where_options
@list_format_option
@click.pass_context
def describe(
    context: click.Context,
    where: Where,
    topic_list: str | None,
    _is_describe: bool,
    output: str,
) -> None:
    """Say how large the partitions are, and what is left of the disks."""
    topics = None
    if topic_list is not None:
        topics = [name for it in topic_list.split(",") if (name := it.strip())]
        if not topics:  # a shell's variable that is not set: neither all topics nor none
            raise click.BadParameter("it names no topic", param_hint="--topic-list")
    with desk_at(where) as desk:
        document = desk.describe_log_dirs(topics)
    items: list[dict[str, Any]] = []
    lines = []
    for row in document["log_dirs"]:
        mine = [{**it, "log_dir": row["path"]} for it in row["partitions"]]
        if row["error"] is not None:
            lost = {**dict.fromkeys(column.field for column in DESCRIBED), "log_dir": row["path"]}
            items.append({**lost, "error": row["error"]})
        items += mine
        lines.append(_head(row))
        if mine:
            lines.append(text_table(DESCRIBED[1:], mine))
    show(document, output, DESCRIBED, items, text="\n".join(lines))
    context.exit(exit_code(document))


def _head(row: dict[str, Any]) -> str:
    if row["error"] is not None:
        return f"{row['path']}: {row['error']['message']}"
    left = plain(None) if row["usable_bytes"] is None else size(row["usable_bytes"])
    total = plain(None) if row["total_bytes"] is None else size(row["total_bytes"])
    return f"{row['path']}: {size(row['size_bytes'])}; of the disk's {total} are left {left}"
