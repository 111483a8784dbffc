"""`stratalog compact`: clean partitions, or say what cleaning would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stratalog.cli import engines
from stratalog.cli.listing import confirm_loss
from stratalog.cli.options import (
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
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import change, counted, size, table

if TYPE_CHECKING:
    from stratalog.admin.report import CompactionReport, Counts, PartitionReport
    from stratalog.config.book import SettingsBook

_REASONS = {
    "superseded": "superseded",
    "tombstone_expired": "tombstones",
    "aborted": "aborted",
    "no_key": "no key",
    "control_expired": "markers",
}


_SEGMENTS = 20
"""Segments that a preview's text names; its JSON has all."""


class _Location(click.Path):
    """A directory that is there, or a URI, of which whoever opens it says what is wrong."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if _is_uri(value) else super().convert(value, param, ctx)


def _is_uri(path: str) -> bool:
    return "://" in path


@click.command(short_help="Keep the last record of each key.")
@click.argument(
    "directories",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=_Location(exists=True, file_okay=False),
)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be dropped, and why.")
@click.option("--in-place", is_flag=True, help="Replace the segments in DIR.")
@click.option(
    "--out",
    type=click.Path(),
    metavar="DIR",
    help="Leave DIR alone; write a new directory, or the next generation of a location.",
)
@click.option(
    "--keep-active",
    is_flag=True,
    help="Leave the active segment as it is instead of closing it first.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="With --dry-run: how many of the keys that lose most records to name.",
)
@click.option(
    "--engine",
    type=click.Choice([engines.SPARK, engines.LOCAL]),
    help="Spark or threads. [default: spark where it is installed]",
)
@click.option("--no-confirm", is_flag=True, help="Do not ask before a ledger's records go.")
@click.option("--master", metavar="URL", help="Spark's master. [default: local[*]]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads on this machine.")
@config_option
@config_file_option
@topic_config_option
@now_option
@format_option
def compact(
    directories: tuple[str, ...],
    dry_run: bool,
    in_place: bool,
    out: str | None,
    keep_active: bool,
    top: int,
    engine: str | None,
    no_confirm: bool,
    master: str | None,
    threads: int | None,
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Keep the last record of each key, as Kafka's log cleaner does.

    Topics that were created in DIR have their own settings; every other partition is taken for a
    compacted one, unless the settings that are given say otherwise: name the partitions you mean. A
    directory that a running broker holds is refused.

    A log that has a ledger is cleaned in place only with --config compaction.mode=inplace; the
    ledger goes then. Where only it has some records, that is asked first.

    With --config compaction.mode=ledger, --out names a location where the compacted copy is kept:
    each run reads what is new and the copy before it, and writes the next generation.

    DIR may be s3://BUCKET/PATH, and so may what --out names: there, a manifest says which of the
    generations that were written counts. Credentials are those of AWS's variables and files.
    """
    if out == "":
        raise click.UsageError("--out names no directory.")
    if dry_run + in_place + (out is not None) != 1:
        raise click.UsageError(
            "Say where the result goes: one of --dry-run, --in-place, --out DIR."
        )
    book = book_of(config, {"cleanup.policy": ("compact",)}, config_file, topic_config, directories)
    settings = book.of_broker()
    makes_ledgers = settings.text("compaction.mode") == "ledger"
    if not settings.is_compacted and not makes_ledgers and topic_config is None:
        raise click.BadParameter(
            "cleanup.policy is without compact: there is nothing to do", param_hint="--config"
        )
    choice = engines.choose(engine, master, threads)
    if output != JSON:
        print_note(f"engine: {choice}")

    from stratalog.admin.compaction import CompactionOptions
    from stratalog.admin.compaction import compact as run
    from stratalog.admin.report import Mode
    from stratalog.base.filesystem import LocalFileSystem

    mode = Mode.DRY_RUN if dry_run else Mode.IN_PLACE if in_place else Mode.OUT
    filesystem = LocalFileSystem()
    if any(map(_is_uri, [*directories, out or ""])):
        if out is None or choice.name == engines.LOCAL:
            raise click.UsageError("Object storage is for Spark, and wants --out.")
        _show(_compact_to(directories, out, book, choice, keep_active, now_ms), choice, output)
        return
    gives_up = mode is Mode.IN_PLACE and _gives_up_ledgers(directories, book, no_confirm)
    with (
        ProgressBar(raises=choice.name == engines.LOCAL) as bar,
        engines.starter(choice, filesystem) as start,
    ):
        report = run(
            directories,
            CompactionOptions(
                mode,
                settings,
                out,
                keep_active,
                top if dry_run else 0,
                choice.name,
                engine_checks_digests=choice.name == engines.SPARK,
                settings_of=book.of,
                gives_up_ledgers=gives_up,
            ),
            start,
            filesystem,
            clock_of(now_ms),
            bar,
        )
    _show(report, choice, output)


def _gives_up_ledgers(directories: tuple[str, ...], book: SettingsBook, no_confirm: bool) -> bool:
    """Whether what only ledgers have is to go, as somebody wants. Raises `click.UsageError` if
    there is nobody to ask, `StratalogError` for a no."""
    from stratalog.admin.giving_up import only_in_ledgers
    from stratalog.base.filesystem import LocalFileSystem

    found = only_in_ledgers(directories, book.of, LocalFileSystem(), clock_of(None))
    if not found:
        return False
    told = "\n".join(f"warning: {line}, which goes with it" for line in found)
    confirm_loss(told, no_confirm=no_confirm)
    return True


def _compact_to(
    directories: tuple[str, ...],
    out: str,
    book: SettingsBook,
    choice: engines.EngineChoice,
    keep_active: bool,
    now_ms: int | None,
) -> CompactionReport:
    from stratalog.pipeline.remote import compact_to

    with ProgressBar(raises=False) as bar, engines.session_of(choice) as spark:
        return compact_to(
            spark,
            directories,
            out,
            book=book,
            keep_active=keep_active,
            clock=clock_of(now_ms),
            on_progress=bar,
        )


def _show(report: CompactionReport, choice: engines.EngineChoice, output: str) -> None:
    if output == JSON:
        print_json({"engine": choice.name, "master": choice.master, **report.as_json()})
    else:
        click.echo(render(report))


def render(report: CompactionReport) -> str:
    """The closing table, and what is to be said besides."""
    cleaned = [partition for partition in report.partitions if partition.skipped is None]
    lines = []
    if cleaned:
        dropped = [
            name
            for name in _REASONS
            if name == "superseded" or getattr(report.totals.dropped, name)
        ]
        heads = ["partition", "offsets", "segments", "records", "size"]
        heads += [_REASONS[name] for name in dropped]
        rows = [
            [
                item.partition,
                change(str(item.first_dirty), str(item.end_offset)),
                *_cells(item.counts, dropped),
            ]
            for item in cleaned
        ]
        if len(cleaned) > 1:
            rows.append(["total", "", *_cells(report.totals, dropped)])
        lines += [table(heads, rows, last=len(cleaned) > 1), ""]
        lines += _preview(report)
    lines += [_note(item) for item in report.partitions if _note(item)]
    lines.append(_summary(report, len(cleaned)))
    return "\n".join(lines)


def _preview(report: CompactionReport) -> list[str]:
    """Of a dry run: what goes by reason, the segments that shrink most, the keys that lose most."""
    from stratalog.admin.report import Mode

    if report.mode is not Mode.DRY_RUN:
        return []
    totals = report.totals
    rows = [
        [
            title,
            f"{getattr(totals.dropped, reason):,}",
            size(getattr(totals.dropped_bytes, reason)),
        ]
        for reason, title in _REASONS.items()
        if getattr(totals.dropped, reason)
    ]
    lines = [table(["reason", "records", "bytes"], rows), ""] if rows else []
    segments = [
        (item.partition, segment)
        for item in report.partitions
        for segment in item.segments
        if segment.dropped.total
    ]
    segments.sort(key=lambda pair: -pair[1].saved_bytes)
    if segments:
        going = [reason for reason in _REASONS if getattr(totals.dropped, reason)]
        heads = ["segment", "records", "size", *(_REASONS[reason] for reason in going)]
        rows = [
            [
                f"{name}/{segment.base_offset}",
                change(f"{segment.records_before:,}", f"{segment.records_after:,}"),
                change(size(segment.bytes_before), size(segment.bytes_after)),
                *(f"{getattr(segment.dropped, reason):,}" for reason in going),
            ]
            for name, segment in segments[:_SEGMENTS]
        ]
        lines += [table(heads, rows)]
        more = len(segments) - len(rows)
        lines += [f"and {counted(more, 'segment')} more that shrink"] if more else []
        lines.append("")
    keys = [(item.partition, key) for item in report.partitions for key in item.top_keys]
    if keys:
        keys.sort(key=lambda pair: (-pair[1].records, -pair[1].bytes))
        rows = [[key.key, name, f"{key.records:,}", size(key.bytes)] for name, key in keys]
        lines += [table(["key", "partition", "superseded", "bytes"], rows), ""]
    return lines


def _cells(counts: Counts, dropped: list[str]) -> list[str]:
    return [
        change(f"{counts.segments_before:,}", f"{counts.segments_after:,}"),
        change(f"{counts.records_before:,}", f"{counts.records_after:,}"),
        change(size(counts.bytes_before), size(counts.bytes_after)),
        *(f"{getattr(counts.dropped, name):,}" for name in dropped),
    ]


def _note(item: PartitionReport) -> str:
    if item.skipped is not None:
        return f"{item.partition}: nothing to clean: {item.skipped}"
    if item.map_is_full:
        return (
            f"{item.partition}: the dedupe buffer was full at offset {item.end_offset}; "
            "run again to go on from there"
        )
    return ""


def _summary(report: CompactionReport, cleaned: int) -> str:
    from stratalog.admin.report import Mode

    if not cleaned and any(item.ledger for item in report.partitions):
        return f"{report.out}: nothing is new; its generation stays."
    if not cleaned:
        return "Nothing was cleaned." if report.out is None else f"Copied to {report.out}."
    saved = report.totals.bytes_before - report.totals.bytes_after
    share = saved / report.totals.bytes_before if report.totals.bytes_before else 0.0
    speed = f"{report.seconds:.1f} s, {report.megabytes_per_second:.3g} MB/s"
    ledgers = sum(item.ledger is not None for item in report.partitions)
    if ledgers == cleaned and report.mode is Mode.IN_PLACE:
        # The logs are as they were: nothing is saved of them.
        kept = size(report.totals.bytes_after)
        return f"Compacted into {counted(ledgers, 'ledger')} of {kept}. {speed}"
    if ledgers and report.generation is not None:
        kept = size(sum(item.ledger["size_bytes"] for item in report.partitions if item.ledger))
        where = f"{report.out}/{report.generation}"
        return f"Compacted into {counted(ledgers, 'ledger')} of {kept}, {where}. {speed}"
    match report.mode:
        case Mode.DRY_RUN:
            where = "A dry run: nothing was changed. Cleaning would save"
        case Mode.IN_PLACE:
            where = "Cleaned in place, saved"
        case Mode.OUT:
            where = f"Cleaned into {report.out}, saved"
    return f"{where} {size(saved)} ({share:.0%}). {speed}"
