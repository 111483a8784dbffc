"""`stratalog cleaner run DIR...`: keep the logs of directories clean, until it is told to stop."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from stratalog.cli.compaction import directories_argument, settings_options
from stratalog.cli.engines import warm_kernels
from stratalog.cli.options import JSON, book_of, clock_of, format_option
from stratalog.cli.output import print_json, print_note
from stratalog.cli.tables import size

if TYPE_CHECKING:
    from stratalog.admin.directories import PartitionPlace
    from stratalog.admin.service import Service
    from stratalog.clean.history import Entry
    from stratalog.config.book import SettingsBook
    from stratalog.log.retention import Deletion
    from stratalog.segment.names import TopicPartition

FAILED = 1
_FILES_PER_PARTITION = 5
"""Three of the active segment, and one of each that is closed, of which there are a few."""


@click.command(short_help="Clean what is dirty, as it gets dirty.")
@directories_argument
@click.option("--once", is_flag=True, help="Clean what is eligible now, and end.")
@settings_options
@format_option
@click.pass_context
def run(
    context: click.Context,
    directories: tuple[str, ...],
    once: bool,
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Own the log directories DIR and do what a broker does to them: clean partitions whose dirty
    ratio is above min.cleanable.dirty.ratio or whose lag or tombstones ask for it, delete old
    segments, flush, write checkpoints. Ctrl-C stops it in order.

    A topic whose cleanup.policy nobody gives is left alone: say it for each in --topic-config, or
    for all with --config cleanup.policy=compact. Unlike `compact` this obeys the dirty ratio, and
    closes the active segment only when segment.ms asks for it.
    """
    if now_ms is not None and not once:
        raise click.UsageError("--now is a time that stands still: it goes with --once.")
    book = book_of(config, {"cleanup.policy": ()}, config_file, topic_config, directories)

    from stratalog.admin.directories import find_partitions
    from stratalog.admin.service import open_service
    from stratalog.base.filesystem import LocalFileSystem

    disk = LocalFileSystem()
    places = find_partitions(directories, disk)
    named = {os.path.abspath(directory) for directory in directories}
    for place in places:
        if place.path in named:
            raise click.BadParameter(
                f"{place.path} is one partition; this owns whole log directories: name "
                f"{place.log_dir}",
                param_hint="DIR",
            )
    log_dirs = sorted({place.log_dir for place in places})
    _tell_idle(places, book)
    _allow_files(len(places))
    warm_kernels()
    rounds: list[tuple[TopicPartition, Entry]] = []
    deleted: list[tuple[TopicPartition, Deletion]] = []

    def told(key: TopicPartition, entry: Entry) -> None:
        rounds.append((key, entry))
        if output != JSON:
            click.echo(_line(key, entry))

    with open_service(log_dirs, book, disk, clock_of(now_ms), starts=not once) as service:
        service.cleaner.on_round = told
        if once:
            deleted = _once(service)
        else:
            _until_told(service, len(service.store.partitions()))
    failed = [entry for _, entry in rounds if entry.result == "failed"]
    if output == JSON:
        print_json(
            {
                "ok": not failed,
                "rounds": [{"partition": str(key), **entry.as_json()} for key, entry in rounds],
                "deleted": [{"partition": str(key), **asdict(gone)} for key, gone in deleted],
            }
        )
    elif deleted:
        click.echo("\n".join(f"{key}: {gone.line}" for key, gone in deleted))
    elif not rounds:
        click.echo("Nothing was to be done.")
    context.exit(FAILED if failed else 0)


def _tell_idle(places: list[PartitionPlace], book: SettingsBook) -> None:
    """What is not done, and perhaps should be."""
    from stratalog.admin.policies import COMPACTED_TOPICS

    topics = {place.topic_partition.topic for place in places} - set(COMPACTED_TOPICS)
    silent = sorted(name for name in topics if not book.of(name).is_given("cleanup.policy"))
    if silent:
        names = ", ".join(silent[:5]) + (", ..." if len(silent) > 5 else "")
        print_note(f"note: nobody gives a cleanup.policy, so these are left alone: {names}")
    if not book.of_broker().flag("log.cleaner.enable"):
        print_note("note: log.cleaner.enable is false: nothing is cleaned")


def _allow_files(partitions: int) -> None:
    """Have as many files open as the process may, and say if they may not be enough."""
    from stratalog.base.open_files import raise_open_files_limit

    limit, needed = raise_open_files_limit(), partitions * _FILES_PER_PARTITION
    if needed > limit:
        print_note(
            f"note: {partitions:,} partitions need about {needed:,} open files, and this process "
            f"may have {limit:,}: allow more with `ulimit -n`"
        )


def _once(service: Service) -> list[tuple[TopicPartition, Deletion]]:
    """What is due now: idle segments are rolled, old ones deleted, which are answered, dirty logs
    cleaned."""
    service.store.roll_idle()
    decided = service.store.run_retention()
    while service.cleaner_settings.enable and service.cleaner.run_once("cleaner"):
        pass
    return [(key, gone) for key, made in decided.items() for gone in made.deletions]


def _until_told(service: Service, partitions: int) -> None:
    """Wait for Ctrl-C or a request to end; both close the logs in order."""
    stop = threading.Event()
    before = [
        (number, signal.signal(number, lambda *_: stop.set()))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]
    print_note(f"{partitions} partitions, {service.status().threads} cleaner threads; Ctrl-C stops")
    try:
        while not stop.wait(0.5):
            pass
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    print_note("stopping: what is being cleaned is given up, the logs are closed")


def _line(key: TopicPartition, entry: Entry) -> str:
    if entry.result != "cleaned":
        return f"{key}: {entry.result} ({entry.trigger}): {entry.cause}".rstrip(": ")
    seconds = entry.duration_ms / 1000
    return (
        f"{key}: cleaned ({entry.trigger}) up to offset {entry.end_offset}: "
        f"{size(entry.bytes_before)} -> {size(entry.bytes_after)}, "
        f"{entry.records_before:,} -> {entry.records_after:,} records, {seconds:.1f} s"
    )
