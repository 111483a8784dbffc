"""`stratalog cleaner run|status|retry`: the cleaner's queue, and partitions that it failed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.cleaner_run import run
from stratalog.cli.compaction import (
    directories_argument,
    errors,
    settings_options,
    topics_settings,
)
from stratalog.cli.options import JSON, clock_of, format_option
from stratalog.cli.output import print_json
from stratalog.cli.tables import counted, facts, moment, size

if TYPE_CHECKING:
    from stratalog.admin.cleaning import LookedAt, StatusReport

FAILED = 1


@click.group(short_help="The cleaner's queue and its failures.")
def cleaner() -> None:
    """Run a cleaner, see what it would do in a directory, let it try again where it has failed."""


cleaner.add_command(run)


@cleaner.command(short_help="The queue, what fails, what is paused.")
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
    """List the partitions that are to be cleaned, in their order, those in which cleaning has
    failed, with the cause, and those that are paused."""
    settings_of = topics_settings(config, config_file, topic_config)

    from stratalog.admin.cleaning import status as look
    from stratalog.base.filesystem import LocalFileSystem

    disk, clock = LocalFileSystem(), clock_of(now_ms)
    report = look(directories, settings_of, disk, clock, finds_expiry=True)
    if output == JSON:
        print_json(report.cleaner_json())
    else:
        click.echo(_render(report))
    context.exit(0 if report.is_ok else FAILED)


def _render(report: StatusReport) -> str:
    sections, queue = report.sections, report.queue()
    failing = [item for item in report.found if item.is_failing]
    paused = [item.place.name for item in report.found if item.note.paused]
    pairs = [
        ("partitions", f"{len(report.partitions):,}"),
        ("to be cleaned", f"{len(queue):,}"),
        ("failing", f"{len(failing):,}"),
        ("paused", f"{len(paused):,}"),
        ("clean", size(sections.clean)),
        ("cleanable", size(sections.cleanable)),
        ("held back", size(sections.uncleanable)),
        ("active", size(sections.active)),
    ]
    lines = [facts(pairs)]
    lines += [item.sentence for item in queue]
    lines += [_failure(item) for item in failing]
    lines += [f"{name} is paused." for name in paused]
    return "\n".join(lines + errors(report.partitions))


def _failure(item: LookedAt) -> str:
    if item.quarantine is not None:
        return f"{item.place.name} is quarantined: {item.quarantine}"
    failure = item.note.failure
    assert failure is not None
    return (
        f"{item.place.name} could not be cleaned ({counted(failure.tries, 'attempt')}, the last at "
        f"{moment(failure.failed_ms)}): {failure.cause}; next attempt: "
        f"{moment(failure.retry_at_ms)}"
    )


@cleaner.command(short_help="Try again where cleaning has failed.")
@directories_argument
@format_option
def retry(directories: tuple[str, ...], output: str) -> None:
    """Let partitions be cleaned again at once that wait after a failure.

    For directories that no process has open. A quarantine is settled by `stratalog log repair`.
    """
    from stratalog.admin.cleaning import changes_json
    from stratalog.admin.cleaning import retry as again
    from stratalog.base.filesystem import LocalFileSystem

    changes = again(directories, LocalFileSystem())
    if output == JSON:
        print_json(changes_json(changes))
        return
    for item in changes:
        click.echo(
            f"{item.partition}: {'is to be tried again' if item.changed else 'has not failed'}"
        )
