"""`stratalog compaction status|explain|history|pause|resume`: what cleaning does, and why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stratalog.cli.options import (
    DIRECTORY,
    JSON,
    book_of,
    clock_of,
    config_file_option,
    config_option,
    format_option,
    now_option,
    topic_config_option,
)
from stratalog.cli.output import print_json, print_note
from stratalog.cli.tables import change, moment, size, table

if TYPE_CHECKING:
    from stratalog.admin.cleaning import (
        HistoryReport,
        LookedAt,
        NoteChange,
        PartitionItem,
        SettingsOf,
        StatusReport,
    )
    from stratalog.clean.history import Entry

FAILED = 1
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(short_help="What cleaning did, will do and why not; pause and resume it.")
def compaction() -> None:
    """See and steer the cleaning of partitions. Nothing but `pause` and `resume` changes anything.

    status, explain and history also work while another process has the directory open.
    """


directories_argument = click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY
)


def settings_options(command: Command) -> Command:
    """The options that settings come from, and the clock."""
    for option in (now_option, topic_config_option, config_file_option, config_option):
        command = option(command)
    return command


def topics_settings(
    config: tuple[str, ...], config_file: str | None, topic_config: str | None
) -> SettingsOf:
    """Each topic's settings; a topic of which nobody says otherwise is taken for compacted."""
    return book_of(config, {"cleanup.policy": ("compact",)}, config_file, topic_config).of


@compaction.command(short_help="What is clean, what is dirty, what comes next.")
@directories_argument
@settings_options
@format_option
@click.pass_context
def status(
    context: click.Context,
    directories: tuple[str, ...],
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """For each partition: bytes that are clean, cleanable, held back and active; the dirty ratio,
    the cleaner checkpoint, when the next tombstone expires, and whether cleaning is paused or
    fails."""
    settings_of = topics_settings(config, config_file, topic_config)

    from stratalog.admin.cleaning import status as run
    from stratalog.base.filesystem import LocalFileSystem

    report = run(directories, settings_of, LocalFileSystem(), clock_of(now_ms))
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
    return ", ".join(words) or ("ok" if item.facts.is_compacted else "not compacted")


def errors(items: tuple[PartitionItem[Any], ...]) -> list[str]:
    """A line for each partition that could not be read."""
    return [f"{item.partition}: error: {item.error}" for item in items if item.error is not None]


@compaction.command(short_help="Why a partition is, or is not, cleaned.")
@directories_argument
@settings_options
@format_option
@click.pass_context
def explain(
    context: click.Context,
    directories: tuple[str, ...],
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
    settings_of = topics_settings(config, config_file, topic_config)

    from stratalog.admin.cleaning import status as run
    from stratalog.base.filesystem import LocalFileSystem

    disk, clock = LocalFileSystem(), clock_of(now_ms)
    report = run(directories, settings_of, disk, clock, finds_expiry=True)
    if output == JSON:
        print_json(report.explained_json())
    else:
        for item in report.explanations():
            found = item.found
            click.echo(f"{item.partition}: error: {item.error}" if not found else found.sentence)
    context.exit(0 if report.is_ok else FAILED)


@compaction.command(short_help="The rounds that have been run.")
@directories_argument
@click.option("--limit", type=click.IntRange(min=1), help="At most so many of each partition.")
@format_option
@click.pass_context
def history(
    context: click.Context, directories: tuple[str, ...], limit: int | None, output: str
) -> None:
    """List the newest rounds of each partition, oldest first: when, why, how long, what went."""
    from stratalog.admin.cleaning import history as run
    from stratalog.base.filesystem import LocalFileSystem

    report = run(directories, LocalFileSystem(), limit)
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
@directories_argument
@format_option
def pause(directories: tuple[str, ...], output: str) -> None:
    """Stop the cleaning of partitions until `resume`, also over restarts. Retention goes on.

    For directories that no process has open; the service obeys when it opens them.
    """
    from stratalog.admin.cleaning import pause as run
    from stratalog.base.filesystem import LocalFileSystem

    _tell(run(directories, LocalFileSystem()), output, ("paused", "paused already"))


@compaction.command(short_help="End a pause.")
@directories_argument
@format_option
def resume(directories: tuple[str, ...], output: str) -> None:
    """End the pause of partitions that no process has open."""
    from stratalog.admin.cleaning import resume as run
    from stratalog.base.filesystem import LocalFileSystem

    _tell(run(directories, LocalFileSystem()), output, ("resumed", "not paused"))


def _tell(changes: tuple[NoteChange, ...], output: str, words: tuple[str, str]) -> None:
    from stratalog.admin.cleaning import changes_json

    if output == JSON:
        print_json(changes_json(changes))
        return
    for item in changes:
        click.echo(f"{item.partition}: {words[0] if item.changed else words[1]}")
    failing = [item.partition for item in changes if item.is_failing]
    if failing:
        print_note(
            f"note: cleaning has failed in {', '.join(failing)}; see stratalog cleaner status"
        )
