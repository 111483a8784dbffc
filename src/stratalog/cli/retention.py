"""`stratalog retention`: delete the segments that are past their time, or say which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.options import (
    DIRECTORY,
    JSON,
    clock_of,
    config_file_option,
    config_option,
    format_option,
    now_option,
    told_of,
)
from stratalog.cli.output import print_json
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import counted, size

if TYPE_CHECKING:
    from stratalog.admin.retention import PartitionRetention, RetentionReport

FAILED = 1


@click.command(short_help="Delete old segments by time, size and log start.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would go, and why.")
@click.option("--apply", "applies", is_flag=True, help="Delete.")
@config_option
@config_file_option
@now_option
@format_option
@click.pass_context
def retention(
    context: click.Context,
    directories: tuple[str, ...],
    dry_run: bool,
    applies: bool,
    config: tuple[str, ...],
    config_file: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Delete the oldest segments of logs, as Kafka's retention does.

    By retention.ms (default: 7 days), retention.bytes (default: no limit) and the log start. Topics
    that were created in DIR have their own settings; every other partition is taken for one with
    cleanup.policy=delete unless --config says otherwise: name the partitions you mean. Kafka's own
    compacted topics (__consumer_offsets and the like) keep what they have. A directory that a
    running broker holds is refused.
    """
    if dry_run == applies:
        raise click.UsageError("Say what is to be done: --dry-run or --apply.")
    settings = told_of(config, config_file, directories)

    from stratalog.admin.retention import plan_retention, run_retention
    from stratalog.base.filesystem import LocalFileSystem

    disk, clock = LocalFileSystem(), clock_of(now_ms)
    if dry_run:
        report = plan_retention(directories, settings, disk, clock)
    else:
        with ProgressBar() as bar:
            report = run_retention(directories, settings, disk, clock, bar, bar.hold)
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo(render(report))
    context.exit(0 if report.is_ok else FAILED)


def render(report: RetentionReport) -> str:
    """What goes, segment by segment, and the sum."""
    lines = [line for item in report.partitions for line in _lines(item)]
    freed = sum(item.freed_bytes for item in report.partitions)
    count = sum(
        len(item.decision.deletions)
        for item in report.partitions
        if item.decision is not None and item.error is None
    )
    segments = f"{counted(count, 'segment')} of {size(freed)}"
    if not count:
        lines.append("Nothing is to be deleted." if not report.applied else "Nothing was deleted.")
    elif report.applied:
        lines.append(f"Deleted {segments}.")
    else:
        lines.append(f"A dry run: nothing was changed. --apply would delete {segments}.")
    return "\n".join(lines)


def _lines(item: PartitionRetention) -> list[str]:
    lines = []
    made = item.decision
    if made is not None and item.error is None:
        lines += [f"{item.partition}: {deletion.line}" for deletion in made.deletions]
        if made.deletions:
            kept = item.segments - len(made.deletions)
            rest = (
                "a new, empty segment begins" if made.rolls else f"{counted(kept, 'segment')} stay"
            )
            lines.append(
                f"{item.partition}: the log starts at {made.new_log_start_offset} instead of "
                f"{item.log_start_offset}; {size(made.size_bytes)} are freed, {rest}"
            )
        lines += [f"{item.partition}: the rest stays: {problem}" for problem in made.problems]
        if made.held_from is not None:
            lines.append(
                f"{item.partition}: what ends past offset {made.held_from} stays: retention goes "
                "no further than its ledger does"
            )
    if item.error is not None:
        lines.append(f"{item.partition}: {item.error}")
    return lines
