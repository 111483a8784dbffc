"""`stratalog snapshot`: the newest record of each key as Parquet files or a Delta table."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from stratalog.cli.engines import hush_py4j, warm_kernels
from stratalog.cli.options import JSON, format_option
from stratalog.cli.output import print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import counted, size, table

if TYPE_CHECKING:
    from stratalog.pipeline.snapshot import PartitionReport, SnapshotReport

PARQUET, DELTA = "parquet", "delta"
_ROWS = 20
"""Partitions that the text names; the JSON has all."""


@click.command(short_help="Write the newest record of each key as Parquet or Delta.")
@click.argument("directory", metavar="DIR", type=str)
@click.argument("out", metavar="OUT", type=click.Path())
@click.option(
    "--to",
    type=click.Choice([PARQUET, DELTA]),
    default=PARQUET,
    show_default=True,
    help="Parquet files in OUT/current, or a Delta table in OUT.",
)
@click.option(
    "--as-of",
    metavar="OFFSET|TIME",
    help="Leave out what came later: an offset of each partition, @MS since 1970, a time like "
    '2026-01-31T12:00:00Z, or offsets like {"topic":{"0":23}}. [default: the log end]',
)
@click.option(
    "--incremental", is_flag=True, help="Build upon the snapshot in OUT: read only what is new."
)
@click.option("--subscribe", metavar="TOPIC[,TOPIC]", help="Which topics. [default: all]")
@click.option("--headers", is_flag=True, help="With the records' headers as a column.")
@click.option(
    "--option",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another option of the Spark source, like s3.endpoint; may be repeated.",
)
@click.option("--master", metavar="URL", help="Spark's master. [default: local[*]]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads on this machine.")
@format_option
def snapshot(
    directory: str,
    out: str,
    to: str,
    as_of: str | None,
    incremental: bool,
    subscribe: str | None,
    headers: bool,
    given: tuple[str, ...],
    master: str | None,
    threads: int | None,
    output: str,
) -> None:
    """Write the newest record of each key in DIR to OUT, without deleted keys.

    What is in OUT stays readable until all of the new snapshot is there. The logs are only read; a
    live process may have them open.
    """
    if out == "":
        raise click.UsageError("OUT names no directory.")
    if master is not None and threads is not None:
        raise click.UsageError("--threads goes with Spark on this machine, not with --master")
    options: dict[str, Any] = {"subscribe": subscribe, "includeHeaders": headers, **_pairs(given)}

    from stratalog.base.errors import MissingExtraError
    from stratalog.spark.java import INSTALL_HINT
    from stratalog.spark.session import is_running, spark_session

    try:
        from stratalog.pipeline.snapshot import check_request
        from stratalog.pipeline.snapshot import snapshot as run
    except ImportError as error:
        raise MissingExtraError(f"Spark is not installed ({error}); {INSTALL_HINT}") from error

    # A session takes seconds: what can be refused without one is.
    check_request(directory, out, to=to, as_of=as_of, incremental=incremental, **options)
    with ProgressBar(raises=False) as bar:
        was_running = is_running()
        hush_py4j()
        session = spark_session(master or f"local[{threads or '*'}]")
        try:
            warm_kernels()
            report = run(
                session,
                directory,
                out,
                to=to,
                as_of=as_of,
                incremental=incremental,
                on_progress=bar,
                before_commit=bar.hold,
                **options,
            )
        finally:
            if not was_running:
                session.stop()
    if output == JSON:
        print_json(asdict(report))
    else:
        _show(report)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for item in given:
        name, separator, value = item.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", param_hint="--option")
        pairs[name] = value
    return pairs


def _show(report: SnapshotReport) -> None:
    if report.note is not None:
        print_note(f"note: {report.note}: a whole snapshot was taken")
    rows = [
        [
            item.name,
            item.kind,
            f"{item.end_offset:,}",
            f"{item.rows:,}",
            size(item.size_bytes),
            size(item.read_bytes),
            f"{item.files_written} of {item.files}",
        ]
        for item in report.partitions[:_ROWS]
    ]
    heads = ["partition", "taken", "up to offset", "rows", "size", "log read", "files written"]
    click.echo(table(heads, rows))
    more = len(report.partitions) - len(rows)
    if more:
        click.echo(f"and {counted(more, 'partition')} more")
    for item in report.partitions:
        if item.reason is not None:
            print_note(_whole(item))
    click.echo(f"\n{report.path}: {report.rows:,} rows, {size(report.size_bytes)}")


def _whole(item: PartitionReport) -> str:
    return f"note: {item.name}: {item.reason}: taken whole"
