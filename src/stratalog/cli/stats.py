"""`stratalog stats`: count what logs hold; with `--html`, a page on it and on what cleaning saves.

The same command is there as `stratalog log stats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from stratalog.base.errors import StratalogError
from stratalog.cli.engines import warm_kernels
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
from stratalog.cli.output import error_fields, print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import counted, facts, moment, size, table

if TYPE_CHECKING:
    from stratalog.admin.page.figures import Figures
    from stratalog.admin.stats import PartitionStats
    from stratalog.base.clock import Clock
    from stratalog.config.book import SettingsBook

FAILED = 1
_STDOUT = "-"
_OF_THE_PAGE = ("top", "threads")


@click.command(short_help="Count what logs hold; --html: a page with plots.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option(
    "--html",
    metavar="FILE",
    help="Write a page for a browser: what cleaning would save, and where; - is stdout.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="With --html: how many keys to name, those that lose most records.",
)
@click.option("--threads", type=click.IntRange(min=1), help="With --html: threads that look.")
@config_option
@config_file_option
@topic_config_option
@now_option
@format_option
@click.pass_context
def stats(
    context: click.Context,
    directories: tuple[str, ...],
    html: str | None,
    top: int,
    threads: int | None,
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Count what logs hold: records, keys, tombstones, codecs, transactions, times.

    With --html also what cleaning would save by the settings that are given (every topic is taken
    for a compacted one unless they say otherwise), the dirty part of each partition, the keys that
    lose most records, and what retention would take. FILE is one page that needs no network. The
    directories are only read, so they may belong to a running process.
    """
    book = book_of(
        config, {"cleanup.policy": ("compact",)}, config_file, topic_config, named=directories
    )
    if html is None:
        for name in _OF_THE_PAGE:
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise click.UsageError(f"--{name} goes with --html")
        context.exit(_print_counts(directories, book, clock_of(now_ms), output))
    if html == "":
        raise click.UsageError("--html names no file.")
    if html == _STDOUT and output == JSON:
        raise click.UsageError("--html - and --format json both want stdout")
    figures = _write_page(directories, html, top, threads, book, clock_of(now_ms), output)
    context.exit(0 if figures.is_ok else FAILED)


def _write_page(
    directories: tuple[str, ...],
    html: str,
    top: int,
    threads: int | None,
    book: SettingsBook,
    clock: Clock,
    output: str,
) -> Figures:
    from stratalog.admin.directories import find_partitions
    from stratalog.admin.page.figures import Wanted, gather
    from stratalog.admin.page.render import check_installed, page_of
    from stratalog.admin.page.target import check_target, write_page
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.base.open_files import raise_open_files_limit

    check_installed()
    raise_open_files_limit()  # a partition's files are all open at once
    filesystem = LocalFileSystem()
    if html != _STDOUT:
        check_target(html, find_partitions(directories, filesystem))
    warm_kernels()
    from stratalog.clean.local_engine import LocalEngine

    wanted = Wanted(book.of, top, lambda disk: LocalEngine(disk, threads=threads))
    with ProgressBar() as bar:
        figures = gather(directories, wanted, filesystem, clock, bar)
    page = page_of(figures, top)
    if html == _STDOUT:
        click.echo(page.encode(), nl=False)
    else:
        size_bytes = write_page(html, page)
        if output == JSON:
            print_json({"html": html, "size_bytes": size_bytes, **figures.as_json()})
        else:
            click.echo(_headline(figures))
            partitions = counted(len(figures.partitions), "partition")
            click.echo(f"{click.format_filename(html)}: {partitions}, {size(size_bytes)}")
    for item in figures.unread:
        print_note(f"{item.partition}: error: {item.error}")
    return figures


def _headline(figures: Figures) -> str:
    saved, whole = figures.saved_bytes, figures.bytes_before
    if saved <= 0:
        return f"Cleaning now would save nothing of {size(whole)}."
    return f"Cleaning now would save {size(saved)} of {size(whole)} ({saved / whole:.0%})."


def _print_counts(
    directories: tuple[str, ...], book: SettingsBook, clock: Clock, output: str
) -> int:
    """The exit code: that of one is told, does not keep others from being counted."""
    from stratalog.admin.directories import find_partitions
    from stratalog.admin.stats import try_partition_stats
    from stratalog.base.filesystem import LocalFileSystem

    filesystem = LocalFileSystem()
    places = find_partitions(directories, filesystem)
    warm_kernels()
    with ProgressBar() as bar:
        found = [
            try_partition_stats(place, book.of(place.topic_partition.topic), filesystem, clock, bar)
            for place in places
        ]
    failed = [error for error in found if isinstance(error, StratalogError)]
    if failed and len(found) == 1:
        raise failed[0]
    if output == JSON:
        pairs = zip(places, found, strict=True)
        rows = [_row(place.name, place.path, item) for place, item in pairs]
        print_json({"ok": not failed, "partitions": rows})
    elif len(found) > 1:
        click.echo(_overview([place.name for place in places], found))
    else:
        click.echo("\n".join(_details(it) for it in found if not isinstance(it, StratalogError)))
    return FAILED if failed else 0


def _row(partition: str, directory: str, item: PartitionStats | StratalogError) -> dict[str, Any]:
    if isinstance(item, StratalogError):
        return {"partition": partition, "directory": directory, "error": error_fields(item)}
    return {**item.as_json(), "error": None}


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _count(number: int | None) -> str:
    return "too many to tell" if number is None else f"{number:,}"


def _details(found: PartitionStats) -> str:
    codecs = ", ".join(f"{name} {count:,}" for name, count in found.codecs.items())
    checkpoint = found.cleaner_checkpoint
    pairs = [
        ("partition", found.partition),
        ("directory", found.directory),
        ("segments", f"{found.segments:,}"),
        ("log", size(found.log_bytes)),
        ("indexes", size(found.index_bytes)),
        ("offsets", f"{found.log_start_offset} to {found.log_end_offset}"),
        ("last stable offset", str(found.last_stable_offset)),
        ("cleaned up to", "never" if checkpoint is None else str(checkpoint)),
        ("batches", f"{found.batches:,} ({codecs or 'none'})"),
        ("records", f"{found.records:,}"),
        ("keys", _count(found.keys)),
        ("live", _percent(found.live_ratio)),
        ("tombstones", f"{found.tombstones:,}"),
        ("without a key", f"{found.keyless:,}"),
        ("key and value bytes", f"{size(found.key_bytes)}, {size(found.value_bytes)}"),
        ("oldest record", moment(found.oldest_timestamp)),
        ("newest record", moment(found.newest_timestamp)),
        ("transactions", f"{found.commits:,} committed, {found.aborts:,} aborted"),
        ("aborted records", f"{found.aborted_records:,}"),
        ("open transactions", "yes" if found.open_transactions else "no"),
    ]
    return facts(pairs)


def _overview(names: list[str], found: Sequence[PartitionStats | StratalogError]) -> str:
    is_wrong = any(isinstance(item, StratalogError) for item in found)
    heads = [
        "partition",
        "segments",
        "size",
        "records",
        "keys",
        "live",
        "tombstones",
        "no key",
        "newest record",
    ]
    rows = []
    for name, item in zip(names, found, strict=True):
        if isinstance(item, StratalogError):
            unknown = ["-"] * (len(heads) - 1)
            rows.append([name, *unknown, type(item).__name__, error_fields(item)["message"]])
        else:
            rows.append([*_cells(item), *["-", "-"] * is_wrong])
    return table([*heads, *["error", "message"] * is_wrong], rows)


def _cells(item: PartitionStats) -> list[str]:
    return [
        item.partition,
        f"{item.segments:,}",
        size(item.log_bytes),
        f"{item.records:,}",
        _count(item.keys),
        _percent(item.live_ratio),
        f"{item.tombstones:,}",
        f"{item.keyless:,}",
        moment(item.newest_timestamp),
    ]
