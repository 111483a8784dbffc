"""`stratalog records delete|trim-prefix`: delete the records below an offset.

Of a topic (by the server, or in --data DIR), or of the partitions in a directory that nobody has
open, whose settings may be given along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stratalog.base.errors import UsageError
from stratalog.cli.desks import Where, desk_at, list_format_option, steering_options
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
from stratalog.cli.options import (
    JSON,
    TSV,
    clock_of,
    config_file_option,
    config_option,
    now_option,
    told_of,
)
from stratalog.cli.output import print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import change, size, table
from stratalog.cli.targets import Served, is_topic, needed_directories, served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.admin.deleting import PlannedDeletion, UpTo
    from stratalog.base.filesystem import FileSystem
    from stratalog.segment.names import TopicPartition

FAILED = 1
_FILE_BYTES = 64 << 20
_REFUSED = "Nothing was changed."
_DRY_RUN = "A dry run: nothing was changed."
_QUESTION = "Delete these records?"
PLANNED = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("log start", "log_start_offset"),
    Column("new start", "offset"),
    Column("log end", "log_end_offset"),
    Column("records (at most)", "records", count),
    bytes_column("hidden", "hidden_bytes"),
    bytes_column("freed", "freed_bytes"),
)


@click.group(short_help="Delete records below an offset.")
def records() -> None:
    """Delete records."""


@records.command(short_help="Delete the records below an offset.")
@click.argument("target", metavar="TOPIC|DIR", required=False)
@click.option("--topic", help="Which topic, if DIR holds several.")
@click.option(
    "-o",
    "--offset",
    metavar="N|end|@MS",
    help="The first offset that stays; end: none does; @MS: the first record from that time on "
    "(ms since 1970 UTC).",
)
@click.option("-p", "--partitions", metavar="N[,N]", help="Which partitions. [default: all]")
@click.option(
    "--offset-json-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Partitions and offsets in the format of kafka-delete-records; -1 is the log end.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would go.")
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@steering_options
@config_option
@config_file_option
@now_option
@list_format_option
@click.pass_context
def delete(
    context: click.Context,
    where: Where,
    target: str | None,
    topic: str | None,
    offset: str | None,
    partitions: str | None,
    offset_json_file: str | None,
    dry_run: bool,
    no_confirm: bool,
    config: tuple[str, ...],
    config_file: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Delete the records below an offset, of TOPIC (in --data or by --server), or in the partitions
    of one topic in DIR.

    The plan is shown first, then you are asked. The new log start is on the disk before the command
    ends. A topic that is compacted only is refused.
    """
    if (offset is None) == (offset_json_file is None):
        raise click.UsageError("Say up to where: -o OFFSET or --offset-json-file FILE.")
    if offset_json_file is not None and (topic is not None or partitions is not None):
        raise click.UsageError("--offset-json-file says which partitions: no --topic, no -p.")
    numbers = _numbers(partitions)
    if offset is not None:
        _checked_offset(offset)
    check_answerable(no_confirm=no_confirm, dry_run=dry_run)
    by_topic = is_topic(where, target)
    given = (config, config_file, now_ms)
    found = None
    if not by_topic:
        (directory,) = needed_directories([target] if target is not None else [])
        found = served([directory])
    if by_topic or found is not None:
        if any(given):
            raise click.UsageError("--config, --config-file and --now go with a DIR of nobody's.")
        if found is not None:
            where = Where((), found[0].url, None, where.verbose)
            topic, numbers = _narrowed(found[0], topic, numbers)
        else:
            topic = _named(target, topic, offset_json_file)
        document = _delete_of_topic(
            where, topic, offset, numbers, offset_json_file, dry_run, no_confirm, output
        )
        context.exit(exit_code(document))
    settings = told_of(config, config_file, [directory])

    from stratalog.admin.deleting import delete_records, plan_deletion
    from stratalog.admin.desk.changing import still_shown
    from stratalog.base.filesystem import LocalFileSystem

    disk, clock = LocalFileSystem(), clock_of(now_ms)
    wanted = _wanted(directory, topic, offset, partitions, offset_json_file, disk)
    planned = plan_deletion(directory, wanted, settings, disk, clock)
    warnings = still_shown(planned, disk)
    failed = next((item.error for item in planned if item.error is not None), None)
    if failed is not None and len(planned) == 1:
        raise failed
    if dry_run or failed is not None:
        _show(planned, warnings, output, _DRY_RUN if dry_run else _REFUSED)
        context.exit(0 if failed is None else FAILED)
    if all(item.offset == item.log_start_offset for item in planned):
        _show(planned, warnings, output, None)
        return
    confirm("\n".join([render(planned), *_warned(warnings)]), _QUESTION, no_confirm=no_confirm)
    with ProgressBar() as bar:
        done = delete_records(planned, settings, disk, clock, bar, bar.hold)
    _show(done, warnings, output, None)
    context.exit(0 if all(item.error is None for item in done) else FAILED)


records.add_command(delete, "trim-prefix")


# ---------------------------------------------------------------- by a desk


def _named(target: str | None, topic: str | None, file: str | None) -> str | None:
    """The topic; None: the file says it. Raises `click.UsageError`."""
    if file is not None:
        if target is not None:
            raise click.UsageError("--offset-json-file says which topics: no TOPIC.")
        return None
    if (target is None) == (topic is None):
        raise click.UsageError("Name the topic, once.")
    return target if topic is None else topic


def _narrowed(
    found: Served, topic: str | None, numbers: tuple[int, ...] | None
) -> tuple[str | None, tuple[int, ...] | None]:
    """What is meant in a directory that a server owns."""
    if found.partition is not None:
        return found.topic, (found.partition,) if numbers is None else numbers
    return topic, numbers


def _delete_of_topic(
    where: Where,
    topic: str | None,
    offset: str | None,
    numbers: tuple[int, ...] | None,
    file: str | None,
    dry_run: bool,
    no_confirm: bool,
    output: str,
) -> dict[str, Any]:
    with desk_at(where) as desk:
        if file is not None:
            offsets = _offsets_of(file)
        else:
            name = topic if topic is not None else _only(desk.list_topics()["topics"])
            there = [row["partition"] for row in desk.describe_topic(name)["partitions"]]
            offsets = [
                {"topic": name, "partition": number, "offset": offset}
                for number in (there if numbers is None else dict.fromkeys(numbers))
            ]
        plan = desk.delete_records(offsets, dry_run=True)
    if dry_run or not plan["ok"]:
        _show_plan(plan, output, _DRY_RUN if plan["ok"] else _REFUSED)
        return plan
    if any(row["offset"] != row["log_start_offset"] for row in plan["partitions"]):
        shown = "\n".join([text_table(PLANNED, plan["partitions"]), *_warned(plan["warnings"])])
        confirm(shown, _QUESTION, no_confirm=no_confirm)
    with desk_at(where, says=False) as desk:
        done = desk.delete_records(offsets)
    _show_plan(done, output, None if done["applied"] else _REFUSED)
    return done


def _warned(warnings: Sequence[str]) -> list[str]:
    return [f"warning: {warning}" for warning in warnings]


def _only(topics: Sequence[Item]) -> str:
    names = [str(row["name"]) for row in topics]
    if len(names) != 1:
        raise UsageError(f"several topics; --topic says which: {', '.join(names[:10]) or 'none'}")
    return names[0]


def _offsets_of(file: str) -> list[dict[str, Any]]:
    from stratalog.base.filesystem import LocalFileSystem

    wanted = _parsed_file(file, LocalFileSystem())
    return [
        {"topic": key.topic, "partition": key.partition, "offset": up_to.offset}
        for key, up_to in wanted.items()
    ]


def _show_plan(document: dict[str, Any], output: str, why_not: str | None) -> None:
    lines = [text_table(PLANNED, document["partitions"]), *([why_not] if why_not else [])]
    show(document, output, PLANNED, document["partitions"], text="\n".join(lines))


# ---------------------------------------------------------------- in a directory


def _wanted(
    directory: str,
    topic: str | None,
    offset: str | None,
    partitions: str | None,
    offset_json_file: str | None,
    disk: FileSystem,
) -> dict[TopicPartition, UpTo]:
    from stratalog.admin.deleting import Selection, choose

    if offset_json_file is not None:
        return _parsed_file(offset_json_file, disk)
    assert offset is not None
    up_to = _checked_offset(offset)
    return choose(directory, Selection(topic, _numbers(partitions)), up_to, disk)


def _parsed_file(path: str, disk: FileSystem) -> dict[TopicPartition, UpTo]:
    from stratalog.admin.deleting import parse_offsets
    from stratalog.base.filesystem import read_file

    try:
        return parse_offsets(read_file(disk, path, _FILE_BYTES))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _checked_offset(offset: str) -> UpTo:
    from stratalog.admin.deleting import parse_up_to

    try:
        return parse_up_to(offset)
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint="-o") from error


def _numbers(partitions: str | None) -> tuple[int, ...] | None:
    if partitions is None:
        return None
    words = partitions.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
        raise click.BadParameter(f"{partitions!r} is not of the form 0,1,2", param_hint="-p")
    return tuple(int(word) for word in words)


def _show(
    planned: Sequence[PlannedDeletion], warnings: Sequence[str], output: str, why_not: str | None
) -> None:
    """`why_not`: nothing was done, and this is what to say of it."""
    if output == TSV:
        raise click.UsageError("--format tsv goes with a TOPIC.")
    if output == JSON:
        ok = all(item.error is None for item in planned)
        print_json(
            {
                "ok": ok,
                "applied": why_not is None,
                "partitions": [item.as_json() for item in planned],
                "totals": {
                    "records": sum(item.records for item in planned),
                    "hidden_bytes": sum(item.hidden_bytes for item in planned),
                    "freed_bytes": sum(item.freed_bytes for item in planned),
                },
                "warnings": list(warnings),
            }
        )
        return
    click.echo(render(planned))
    if why_not is not None:
        click.echo(why_not)
    for warning in _warned(warnings):
        print_note(warning)


def render(planned: Sequence[PlannedDeletion]) -> str:
    """A row a partition; what is wrong with one below."""
    heads = ["partition", "log start", "log end", "records (at most)", "hidden", "freed"]
    rows = [
        [
            item.place.name,
            change(str(item.log_start_offset), str(item.offset)),
            str(item.log_end_offset),
            f"{item.records:,}",
            size(item.hidden_bytes),
            size(item.freed_bytes),
        ]
        for item in planned
        if item.error is None
    ]
    lines = [table(heads, rows)] if rows else []
    lines += [str(item.error) for item in planned if item.error is not None]
    return "\n".join(lines)
