"""`stratalog compact`: clean partitions, or say what cleaning would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli import engines
from stratalog.cli.options import (
    DIRECTORY,
    JSON,
    clock_of,
    config_option,
    format_option,
    now_option,
    settings_of,
)
from stratalog.cli.output import print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import change, size, table

if TYPE_CHECKING:
    from stratalog.admin.report import CompactionReport, Counts, PartitionReport

_REASONS = {
    "superseded": "superseded",
    "tombstone_expired": "tombstones",
    "aborted": "aborted",
    "no_key": "no key",
    "control_expired": "markers",
}


@click.command(short_help="Keep the last record of each key.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be dropped, and why.")
@click.option("--in-place", is_flag=True, help="Replace the segments in DIR.")
@click.option(
    "--out", type=click.Path(), metavar="DIR", help="Leave DIR alone; write a whole new directory."
)
@click.option(
    "--keep-active",
    is_flag=True,
    help="Leave the active segment as it is instead of closing it first.",
)
@click.option(
    "--engine",
    type=click.Choice([engines.SPARK, engines.LOCAL]),
    help="Spark or threads. [default: spark where it is installed]",
)
@click.option("--master", metavar="URL", help="Spark's master. [default: local[*]]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads on this machine.")
@config_option
@now_option
@format_option
def compact(
    directories: tuple[str, ...],
    dry_run: bool,
    in_place: bool,
    out: str | None,
    keep_active: bool,
    engine: str | None,
    master: str | None,
    threads: int | None,
    config: tuple[str, ...],
    now_ms: int | None,
    output: str,
) -> None:
    """Keep the last record of each key, as Kafka's log cleaner does.

    Every partition in DIR is taken for a compacted one, whatever its topic's cleanup.policy is:
    name the partitions you mean. A directory that a running broker holds is refused.
    """
    if out == "":
        raise click.UsageError("--out names no directory.")
    if dry_run + in_place + (out is not None) != 1:
        raise click.UsageError("Say where the result goes: --dry-run, --in-place or --out DIR.")
    settings = settings_of(config, {"cleanup.policy": ("compact",)})
    if not settings.is_compacted:
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
    with (
        ProgressBar(raises=choice.name == engines.LOCAL) as bar,
        engines.starter(choice, filesystem) as start,
    ):
        report = run(
            directories,
            CompactionOptions(mode, settings, out, keep_active),
            start,
            filesystem,
            clock_of(now_ms),
            bar,
        )
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
    lines += [_note(item) for item in report.partitions if _note(item)]
    lines.append(_summary(report, len(cleaned)))
    return "\n".join(lines)


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

    if not cleaned:
        return "Nothing was cleaned." if report.out is None else f"Copied to {report.out}."
    saved = report.totals.bytes_before - report.totals.bytes_after
    share = saved / report.totals.bytes_before if report.totals.bytes_before else 0.0
    speed = f"{report.seconds:.1f} s, {report.megabytes_per_second:.3g} MB/s"
    match report.mode:
        case Mode.DRY_RUN:
            where = "A dry run: nothing was changed. Cleaning would save"
        case Mode.IN_PLACE:
            where = "Cleaned in place, saved"
        case Mode.OUT:
            where = f"Cleaned into {report.out}, saved"
    return f"{where} {size(saved)} ({share:.0%}). {speed}"
