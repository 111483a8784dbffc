"""`stratalog topic list|create|describe|alter|delete|describe-storage`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stratalog.cli.desks import Where, desk_at, list_format_option, where_options
from stratalog.cli.listing import (
    Column,
    Item,
    bytes_column,
    check_answerable,
    confirm,
    count,
    exit_code,
    show,
    text_table,
)
from stratalog.cli.tables import counted, facts, size
from stratalog.cli.topic_storage import describe_storage

Command = TypeVar("Command", bound=Callable[..., Any])
DRY_RUN = "A dry run: nothing was changed."

LISTED = (
    Column("topic", "name"),
    Column("partitions", "partitions", count),
    Column("policy", "cleanup_policy"),
    Column("mode", "compaction_mode"),
    bytes_column("size", "size_bytes"),
    Column("overrides", "overrides"),
    Column("state", "state"),
)
PARTITIONS = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("log start", "log_start_offset"),
    Column("log end", "log_end_offset"),
    Column("stable", "last_stable_offset"),
    Column("cleaned to", "cleaner_checkpoint"),
    Column("segments", "segments", count),
    bytes_column("size", "size_bytes"),
    Column("state", "state"),
    Column("directory", "directory"),
)

CREATED = (
    Column("topic", "topic"),
    Column("partitions", "partitions"),
    Column("created", "created"),
    Column("applied", "applied"),
)
ALTERED = (
    Column("topic", "topic"),
    Column("before", "before"),
    Column("partitions", "partitions"),
    Column("applied", "applied"),
)


@click.group(short_help="Create, list, describe, alter and delete topics.")
def topic() -> None:
    """Topics: their partitions, settings and segments.

    By the server that owns --data DIR, if one runs; else in the directory itself.
    """


topic.add_command(describe_storage)


def topic_argument(command: Command) -> Command:
    """The topic, as an argument, or as kafka-topics has it: `--topic`."""

    def either(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
        found = context.params.pop("topic_option", None)
        if value is not None and found is not None:
            raise click.UsageError("Name the topic once.")
        return value if found is None else str(found)

    option = click.option("--topic", "topic_option", hidden=True, is_eager=True)
    return option(click.argument("name", metavar="TOPIC", required=False, callback=either)(command))


def needed(name: str | None) -> str:
    """Raises `click.UsageError` where no topic was named."""
    if name is None:
        raise click.UsageError("Missing argument 'TOPIC'.")
    return name


def parse_partitions(text: str | None) -> list[int] | None:
    """`0,1,2`. Raises `click.BadParameter`."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 11 for word in words):
        raise click.BadParameter(f"{text!r} is not of the form 0,1,2", param_hint="-p")
    return [int(word) for word in dict.fromkeys(words)]


@topic.command("list", short_help="All topics.")
@click.option("--exclude-internal", is_flag=True, help="Leave out those that begin with __.")
@where_options
@list_format_option
@click.pass_context
def list_(context: click.Context, where: Where, exclude_internal: bool, output: str) -> None:
    """List the topics: partitions, cleanup policy, size, how many settings of their own."""
    with desk_at(where) as desk:
        document = desk.list_topics()
    if exclude_internal:
        document["topics"] = [row for row in document["topics"] if not row["internal"]]
    show(document, output, LISTED, document["topics"])
    context.exit(exit_code(document))


@topic.command(short_help="Make a topic.")
@topic_argument
@click.option("--partitions", type=int, default=1, show_default=True, help="How many.")
@click.option(
    "--replication-factor", type=int, default=1, show_default=True, help="1: this is one broker."
)
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="A topic's property; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="One that is there already is fine.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say whether it could be made.")
@where_options
@list_format_option
def create(
    where: Where,
    name: str | None,
    partitions: int,
    replication_factor: int,
    config: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Make TOPIC. The log directory is made, too, if it is not there."""
    from stratalog.base.errors import UsageError
    from stratalog.config.settings import parse_pairs

    name = needed(name)
    try:
        configs = {key: text.strip() for key, text in parse_pairs(config).items()}
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint="--config") from error
    if replication_factor != 1:
        raise UsageError(
            f"Unable to replicate the partition {replication_factor} time(s): there is 1 broker."
        )
    with desk_at(where) as desk:
        document = desk.create_topic(
            name, partitions, configs, if_not_exists=if_not_exists, dry_run=dry_run
        )
    parts = counted(document["partitions"], "partition")
    text = f"Created topic {name} with {parts}." if document["created"] else f"{name} is there."
    if dry_run:
        text = f"{DRY_RUN} {name} " + (f"would be made with {parts}." * document["created"])
        text += "is there already." * (not document["created"])
    show(document, output, CREATED, [document], text=text)


@topic.command(short_help="Partitions, offsets, sizes and settings.")
@topic_argument
@click.option(
    "--topics-with-overrides", is_flag=True, help="Only topics with settings of their own."
)
@click.option("--exclude-internal", is_flag=True, help="Leave out those that begin with __.")
@click.option("--if-exists", is_flag=True, help="Of a topic that is not there, say nothing.")
@where_options
@list_format_option
@click.pass_context
def describe(
    context: click.Context,
    where: Where,
    name: str | None,
    topics_with_overrides: bool,
    exclude_internal: bool,
    if_exists: bool,
    output: str,
) -> None:
    """Describe TOPIC, or all topics."""
    from stratalog.base.errors import UnknownPartitionError

    with desk_at(where) as desk:
        if name is not None:
            names = [name]
        else:
            rows = desk.list_topics()["topics"]
            names = [row["name"] for row in rows if not (exclude_internal and row["internal"])]
        found = []
        for one in names:
            try:
                found.append(desk.describe_topic(one))
            except UnknownPartitionError:
                if name is not None and not if_exists:
                    raise
    if topics_with_overrides:
        found = [it for it in found if it["configs"]]
    document: dict[str, Any] = {"ok": all(it["ok"] for it in found), "topics": found}
    if name is not None and len(found) == 1:
        document = found[0]
    items = [partition for it in found for partition in it["partitions"]]
    text = "\n\n".join(_described(it, topics_with_overrides) for it in found)
    show(document, output, PARTITIONS, items, text=text)
    context.exit(exit_code(document))


def _described(found: Item, only_head: bool) -> str:
    configs = ",".join(f"{name}={text}" for name, text in found["configs"].items())
    pairs = [
        ("topic", found["topic"]),
        ("partitions", str(found["partition_count"])),
        ("policy", ",".join(found["cleanup_policy"]) or "none"),
        ("size", size(found["size_bytes"])),
        ("configs", configs or "-"),
    ]
    if found["state"] != "ready":
        pairs.append(("state", found["state"]))
    lines = [facts(pairs)]
    if found["partitions"] and not only_head:
        lines += [text_table(PARTITIONS[1:], found["partitions"])]
    return "\n".join(lines)


@topic.command(short_help="Add partitions.")
@topic_argument
@click.option("--partitions", type=int, required=True, help="How many there are to be.")
@click.option("--if-exists", is_flag=True, help="Of a topic that is not there, say nothing.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say whether it could be done.")
@where_options
@list_format_option
def alter(
    where: Where,
    name: str | None,
    partitions: int,
    if_exists: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Add partitions to TOPIC. Settings are altered by `stratalog config alter`."""
    from stratalog.base.errors import UnknownPartitionError

    name = needed(name)
    try:
        with desk_at(where) as desk:
            document = desk.add_partitions(name, partitions, dry_run=dry_run)
    except UnknownPartitionError:
        if not if_exists:
            raise
        show({"ok": True, "topic": name, "applied": False}, output, (), [])
        return
    added = counted(len(document["added"]), "partition")
    text = f"{name}: {added} added, {document['partitions']} now."
    if dry_run:
        text = f"{DRY_RUN} {name}: {added} would be added."
    show(document, output, ALTERED, [document], text=text)


@topic.command(short_help="Delete a topic with all its records.")
@topic_argument
@click.option("--if-exists", is_flag=True, help="One that is not there is fine.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would go.")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@where_options
@list_format_option
def delete(
    where: Where,
    name: str | None,
    if_exists: bool,
    dry_run: bool,
    no_confirm: bool,
    output: str,
) -> None:
    """Delete TOPIC, all its records and its settings. What would go is shown first, then you are
    asked."""
    name = needed(name)
    check_answerable(no_confirm=no_confirm, dry_run=dry_run)
    with desk_at(where) as desk:
        plan = desk.delete_topic(name, if_exists=if_exists, dry_run=True)
    if dry_run or not plan["deleted"]:
        document = plan
    else:
        confirm(_plan(plan), f"Delete topic {name}?", no_confirm=no_confirm)
        with desk_at(where, says=False) as desk:
            document = desk.delete_topic(name, if_exists=if_exists)
    text = f"Deleted topic {name}, {size(document['freed_bytes'])}."
    if not document["deleted"]:
        text = f"There is no topic {name}."
    elif dry_run:
        text = f"{_plan(plan)}\n{DRY_RUN}"
    show(document, output, PARTITIONS, document["partitions"], text=text)


def _plan(plan: Item) -> str:
    parts = text_table(PARTITIONS[1:-1], plan["partitions"]) if plan["partitions"] else ""
    total = f"{size(plan['freed_bytes'])} in {counted(len(plan['partitions']), 'partition')} go"
    return f"{parts}\n{total}.".lstrip()
