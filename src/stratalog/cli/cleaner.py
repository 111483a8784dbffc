"""`stratalog cleaner run|status|retry`: the cleaner's queue, and partitions that it failed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.cleaner_run import run
from stratalog.cli.compaction import (
    errors,
    refuse_settings,
    settings_options,
    targets_argument,
    topics_settings,
)
from stratalog.cli.compaction_topics import (
    partition_option,
    show_cleaner,
)
from stratalog.cli.desks import Where, list_format_option, steering_options
from stratalog.cli.options import JSON, clock_of
from stratalog.cli.output import print_json
from stratalog.cli.steering import steer
from stratalog.cli.tables import counted, facts, moment, size
from stratalog.cli.targets import (
    first_of,
    is_topic,
    needed_directories,
    refuse_topics_options,
)

if TYPE_CHECKING:
    from stratalog.admin.cleaning import LookedAt, StatusReport

FAILED = 1


@click.group(short_help="The cleaner's queue and its failures.")
def cleaner() -> None:
    """Run a cleaner, see what it would do in a directory, let it try again where it has failed."""


cleaner.add_command(run)


@cleaner.command(short_help="The queue, what fails, what is paused.")
@targets_argument
@steering_options
@settings_options
@list_format_option
@click.pass_context
def status(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """List the partitions that are to be cleaned, in their order, those in which cleaning has
    failed, with the cause, and those that are paused."""
    if is_topic(where, first_of(targets)):
        if targets:
            raise click.UsageError("The cleaner has all topics: name none, or a DIR.")
        refuse_settings(config, config_file, topic_config, now_ms)
        context.exit(show_cleaner(where, output))
    refuse_topics_options(output, None)
    directories = needed_directories(targets)
    settings_of = topics_settings(config, config_file, topic_config, directories)

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
@targets_argument
@partition_option
@steering_options
@list_format_option
@click.pass_context
def retry(
    context: click.Context,
    where: Where,
    targets: tuple[str, ...],
    partition: int | None,
    output: str,
) -> None:
    """Let partitions be cleaned again at once that wait after a failure: of the topics, of all of
    them, or in directories.

    By the server, if one owns them; else for directories that no process has open. A quarantine is
    settled by `stratalog log repair`.
    """
    words = ("is to be tried again", "has not failed")
    context.exit(steer(where, targets, partition, output, "retry", words))
