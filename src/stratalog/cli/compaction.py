"""`stratalog compaction status|explain|history|pause|resume`: what cleaning does, and why not.

Of topics (by the server, or in --data DIR: `compaction_topics`), or of directories, whose settings
may be given along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stratalog.cli.compaction_topics import (
    cancel,
    partition_option,
    run,
    show_explanations,
    show_history,
    show_status,
    wait_option,
)
from stratalog.cli.desks import Where, list_format_option, steering_options
from stratalog.cli.options import (
    DIRECTORY,
    JSON,
    book_of,
    clock_of,
    config_file_option,
    config_option,
    now_option,
    topic_config_option,
)
from stratalog.cli.output import print_json
from stratalog.cli.steering import steer
from stratalog.cli.tables import change, moment, size, table
from stratalog.cli.targets import (
    first_of,
    is_topic,
    needed_directories,
    refuse_topics_options,
)

if TYPE_CHECKING:
    from stratalog.admin.cleaning import (
        HistoryReport,
        LookedAt,
        PartitionItem,
        SettingsOf,
        StatusReport,
    )
    from stratalog.clean.history import Entry

FAILED = 1
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(short_help="Compact topics; what that did, will do and why not; pause and resume it.")
def compaction() -> None:
    """Run, see and steer the compaction of topics, or of the partitions in directories.

    A name is a topic's where --data or --server says where topics are, else a directory. status,
    explain and history also work while another process has the directory open.
    """


compaction.add_command(run)
compaction.add_command(cancel)

targets_argument = click.argument("targets", metavar="TOPIC|DIR...", nargs=-1)
directories_argument = click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY
)


def settings_options(command: Command) -> Command:
    """The options that settings come from, and the clock."""
    for option in (now_option, topic_config_option, config_file_option, config_option):
        command = option(command)
    return command


def topics_settings(
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    directories: Sequence[str],
) -> SettingsOf:
    """Each topic's settings; a topic of which nobody says otherwise is taken for compacted."""
    defaults = {"cleanup.policy": ("compact",)}
    return book_of(config, defaults, config_file, topic_config, directories).of


def refuse_settings(*given: object) -> None:
    """Of topics the settings are known. Raises `click.UsageError`."""
    if any(it not in (None, ()) for it in given):
        raise click.UsageError("--config, --topic-config, --config-file and --now go with a DIR.")


@compaction.command(short_help="What is clean, what is dirty, what comes next.")
@targets_argument
@partition_option
@wait_option
@steering_options
@settings_options
@list_format_option
@click.pass_context
def status(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    partition: int | None,
    waits: bool,
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """For each partition: bytes that are clean, cleanable, held back and active; the dirty ratio,
    the cleaner checkpoint, when the next tombstone expires, and whether cleaning is paused or
    fails."""
    if is_topic(where, first_of(targets)):
        refuse_settings(config, config_file, topic_config, now_ms)
        context.exit(show_status(where, targets, partition, output, waits=waits))
    refuse_topics_options(output, partition, waits)
    directories = needed_directories(targets)
    settings_of = topics_settings(config, config_file, topic_config, directories)

    from stratalog.admin.cleaning import status as look
    from stratalog.base.filesystem import LocalFileSystem

    report = look(directories, settings_of, LocalFileSystem(), clock_of(now_ms))
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo(_status(report))
    context.exit(0 if report.is_ok else FAILED)


def _status(report: StatusReport) -> str:
    heads = ["partition", "clean", "cleanable", "held back", "active", "dirty", "cleaned to"]
    heads += ["next expiry", "last run", "state"]
    rows = [_status_row(item) for item in report.found]
    lines = [table(heads, rows)] if rows else []
    return "\n".join(lines + errors(report.partitions))


def _status_row(item: LookedAt) -> list[str]:
    sections, facts = item.sections, item.facts
    expiry_ms = facts.next_expiry_ms
    return [
        item.place.name,
        *map(size, (sections.clean, sections.cleanable, sections.uncleanable, sections.active)),
        f"{facts.dirty_ratio:.1%}",
        "never" if item.checkpoint is None else str(item.checkpoint),
        "unknown" if expiry_ms is not None and expiry_ms < 0 else moment(expiry_ms),
        "-" if item.last is None else moment(item.last.started_ms),
        state_of(item),
    ]


def state_of(item: LookedAt) -> str:
    """One word, or several, for what keeps a partition from being cleaned."""
    words = ["paused"] if item.note.paused else []
    words += ["quarantined"] if item.quarantine is not None else []
    words += ["failing"] if item.note.failure is not None else []
    if item.facts.uses_ledger:
        words.append("ledger")
    return ", ".join(words) or ("ok" if item.facts.is_compacted else "not compacted")


def errors(items: tuple[PartitionItem[Any], ...]) -> list[str]:
    """A line for each partition that could not be read."""
    return [f"{item.partition}: error: {item.error}" for item in items if item.error is not None]


@compaction.command(short_help="Why a partition is, or is not, cleaned.")
@targets_argument
@partition_option
@steering_options
@settings_options
@list_format_option
@click.pass_context
def explain(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    partition: int | None,
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Say in one sentence for each partition why it is to be cleaned, or why not.

    By the settings that are given; every topic is taken for a compacted one unless they say
    otherwise. With --format json also all the values that decide.
    """
    if is_topic(where, first_of(targets)):
        refuse_settings(config, config_file, topic_config, now_ms)
        context.exit(show_explanations(where, targets, partition, output))
    refuse_topics_options(output, partition)
    directories = needed_directories(targets)
    settings_of = topics_settings(config, config_file, topic_config, directories)

    from stratalog.admin.cleaning import status as look
    from stratalog.base.filesystem import LocalFileSystem

    disk, clock = LocalFileSystem(), clock_of(now_ms)
    report = look(directories, settings_of, disk, clock, finds_expiry=True)
    if output == JSON:
        print_json(report.explained_json())
    else:
        for item in report.explanations():
            found = item.found
            click.echo(f"{item.partition}: error: {item.error}" if not found else found.sentence)
    context.exit(0 if report.is_ok else FAILED)


@compaction.command(short_help="The rounds that have been run.")
@targets_argument
@partition_option
@click.option("--limit", type=click.IntRange(min=1), help="At most so many of each partition.")
@steering_options
@list_format_option
@click.pass_context
def history(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    partition: int | None,
    limit: int | None,
    output: str,
) -> None:
    """List the newest rounds of each partition, oldest first: when, why, how long, what went."""
    if is_topic(where, first_of(targets)):
        context.exit(show_history(where, targets, partition, limit, output))
    refuse_topics_options(output, partition)
    directories = needed_directories(targets)

    from stratalog.admin.cleaning import history as read
    from stratalog.base.filesystem import LocalFileSystem

    report = read(directories, LocalFileSystem(), limit)
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo(_history(report))
    context.exit(0 if report.is_ok else FAILED)


def _history(report: HistoryReport) -> str:
    heads = ["partition", "began", "took", "why", "result", "offsets", "records", "size"]
    rows = [
        _history_row(item.partition, entry)
        for item in report.partitions
        for entry in item.found or ()
    ]
    lines = [table(heads, rows)] if rows else ["No round is on record."]
    lines += [
        f"{item.partition}: {moment(entry.started_ms)}: {entry.result}: {entry.cause}"
        for item in report.partitions
        for entry in item.found or ()
        if entry.cause
    ]
    return "\n".join(lines + errors(report.partitions))


def _history_row(partition: str, entry: Entry) -> list[str]:
    return [
        partition,
        moment(entry.started_ms),
        f"{entry.duration_ms / 1000:.1f} s",
        entry.trigger,
        entry.result,
        change(str(entry.first_dirty), str(entry.end_offset)),
        change(f"{entry.records_before:,}", f"{entry.records_after:,}"),
        change(size(entry.bytes_before), size(entry.bytes_after)),
    ]


@compaction.command(short_help="No cleaning until resumed.")
@targets_argument
@partition_option
@steering_options
@list_format_option
@click.pass_context
def pause(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    partition: int | None,
    output: str,
) -> None:
    """Stop the cleaning of partitions until `resume`, also over restarts. Retention goes on.

    By the server, if one owns them; else for directories that no process has open.
    """
    words = ("paused", "paused already")
    context.exit(steer(where, targets, partition, output, "pause", words))


@compaction.command(short_help="End a pause.")
@targets_argument
@partition_option
@steering_options
@list_format_option
@click.pass_context
def resume(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    partition: int | None,
    output: str,
) -> None:
    """End the pause of partitions."""
    words = ("resumed", "not paused")
    context.exit(steer(where, targets, partition, output, "resume", words))
