"""`stratalog records delete`: delete the records below an offset."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stratalog.base.errors import StratalogError, UsageError
from stratalog.cli.options import (
    DIRECTORY,
    JSON,
    clock_of,
    config_file_option,
    config_option,
    format_option,
    now_option,
    settings_of,
)
from stratalog.cli.output import print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import change, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.admin.deleting import PlannedDeletion, UpTo
    from stratalog.base.filesystem import FileSystem
    from stratalog.segment.names import TopicPartition

FAILED = 1
_FILE_BYTES = 64 << 20
_REFUSED = "Nothing was changed."


@click.group(short_help="Delete records below an offset.")
def records() -> None:
    """Delete records."""


@records.command(short_help="Delete the records below an offset.")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
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
@config_option
@config_file_option
@now_option
@format_option
@click.pass_context
def delete(
    context: click.Context,
    directory: str,
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
    """Delete the records below an offset, in the partitions of one topic in DIR.

    The plan is shown first, then you are asked. The new log start is on the disk before the command
    ends. A topic that is compacted only (--config cleanup.policy=compact) is refused.
    """
    if (offset is None) == (offset_json_file is None):
        raise click.UsageError("Say up to where: -o OFFSET or --offset-json-file FILE.")
    if offset_json_file is not None and (topic is not None or partitions is not None):
        raise click.UsageError("--offset-json-file says which partitions: no --topic, no -p.")
    if not (dry_run or no_confirm or sys.stdin.isatty()):
        raise click.UsageError("There is nobody to ask: --no-confirm deletes without a question.")
    settings = settings_of(config, config_file=config_file)

    from stratalog.admin.deleting import delete_records, plan_deletion
    from stratalog.base.filesystem import LocalFileSystem

    disk, clock = LocalFileSystem(), clock_of(now_ms)
    wanted = _wanted(directory, topic, offset, partitions, offset_json_file, disk)
    planned = plan_deletion(directory, wanted, settings, disk, clock)
    failed = next((item.error for item in planned if item.error is not None), None)
    if failed is not None and len(planned) == 1:
        raise failed
    if dry_run or failed is not None:
        _show(planned, output, "A dry run: nothing was changed." if dry_run else _REFUSED)
        context.exit(0 if failed is None else FAILED)
    if all(item.offset == item.log_start_offset for item in planned):
        _show(planned, output, None)
        return
    if not no_confirm:
        _ask(planned)
    with ProgressBar() as bar:
        done = delete_records(planned, settings, disk, clock, bar, bar.hold)
    _show(done, output, None)
    context.exit(0 if all(item.error is None for item in done) else FAILED)


def _wanted(
    directory: str,
    topic: str | None,
    offset: str | None,
    partitions: str | None,
    offset_json_file: str | None,
    disk: FileSystem,
) -> dict[TopicPartition, UpTo]:
    from stratalog.admin.deleting import Selection, choose, parse_offsets, parse_up_to
    from stratalog.base.filesystem import read_file

    if offset_json_file is not None:
        try:
            return parse_offsets(read_file(disk, offset_json_file, _FILE_BYTES))
        except UsageError as error:
            raise UsageError(f"{offset_json_file}: {error}") from error
    assert offset is not None
    try:
        up_to = parse_up_to(offset)
    except UsageError as error:
        raise click.BadParameter(str(error), param_hint="-o") from error
    return choose(directory, Selection(topic, _numbers(partitions)), up_to, disk)


def _numbers(partitions: str | None) -> tuple[int, ...] | None:
    if partitions is None:
        return None
    words = partitions.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
        raise click.BadParameter(f"{partitions!r} is not of the form 0,1,2", param_hint="-p")
    return tuple(int(word) for word in words)


def _ask(planned: Sequence[PlannedDeletion]) -> None:
    print_note(render(planned))
    if not click.confirm("Delete these records?", default=False, err=True):
        raise StratalogError("not confirmed: nothing was changed")


def _show(planned: Sequence[PlannedDeletion], output: str, why_not: str | None) -> None:
    """`why_not`: nothing was done, and this is what to say of it."""
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
            }
        )
        return
    click.echo(render(planned))
    if why_not is not None:
        click.echo(why_not)


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
