"""`stratalog import`: a CSV or JSON-lines file becomes the logs of a topic."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import click

from stratalog.cli.options import (
    JSON,
    clock_of,
    config_option,
    format_option,
    now_option,
    settings_of,
)
from stratalog.cli.output import print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import size, table

if TYPE_CHECKING:
    from stratalog.admin.importing import ImportReport

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_SUFFIXES = re.compile(r"(\.(csv|jsonl|ndjson))?(\.gz)?$")


@click.command("import", short_help="Make a topic of a CSV or JSON-lines file.")
@click.argument("file", type=click.Path(True, True, False))
@click.argument("directory", metavar="DIR", type=click.Path(False, False))
@click.option(
    "--key", required=True, metavar="COL[,COL]", help="The column, or columns, of the key."
)
@click.option("--key-separator", default="|", show_default=True, help="Between key columns.")
@click.option("--value", metavar="COL", help="The column of the value. [default: the row as JSON]")
@click.option("--timestamp", metavar="COL", help="Column of ms or ISO 8601. [default: now]")
@click.option(
    "--tombstone-when",
    metavar="CONDITION",
    help="Rows that delete their key: 'COL is empty', 'COL is not empty', 'COL = TEXT', "
    "'COL != TEXT'.",
)
@click.option("--null", default="", help="Text that stands for an empty CSV cell, like NA.")
@click.option("--topic", help="The topic's name. [default: that of the file]")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--codec", type=click.Choice(_CODECS), help="[default: as compression.type says]")
@click.option("--batch-records", type=click.IntRange(min=1), default=500, show_default=True)
@click.option("--append", is_flag=True, help="Add to a topic that is there already.")
@config_option
@now_option
@format_option
def import_(
    file: str,
    directory: str,
    key: str,
    key_separator: str,
    value: str | None,
    timestamp: str | None,
    tombstone_when: str | None,
    null: str,
    topic: str | None,
    partitions: int,
    codec: str | None,
    batch_records: int,
    append: bool,
    config: tuple[str, ...],
    now_ms: int | None,
    output: str,
) -> None:
    """Make a topic in the log directory DIR of FILE (.csv or .jsonl, also with .gz).

    Keys go to the partitions where Kafka's producers would send them. The topic is made as `topic
    create` would make it, with the settings of --config; it is a compacted one unless --config
    cleanup.policy says otherwise.
    """
    settings_of(config, {"cleanup.policy": ("compact",)})  # what cannot be is a usage error

    from stratalog.admin.importing import ImportOptions, import_file
    from stratalog.admin.rows import RowRules
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.config.settings import parse_pairs
    from stratalog.record.codec import Codec

    rules = RowRules(
        tuple(column for column in key.split(",") if column),
        value,
        timestamp,
        tombstone_when,
        null,
        key_separator,
    )
    options = ImportOptions(
        topic or _SUFFIXES.sub("", os.path.basename(file)),
        rules,
        partitions,
        None if codec is None else Codec[codec.upper()],
        batch_records,
        append,
    )
    with ProgressBar() as bar:
        report = import_file(
            file,
            directory,
            options,
            parse_pairs(config),
            LocalFileSystem(),
            clock_of(now_ms),
            bar.count_rows,
        )
    for warning in report.warnings:
        print_note(f"warning: {warning}")
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo(render(report))


def render(report: ImportReport) -> str:
    """The partitions that came of it, and the sums."""
    rows = [
        [
            item.partition,
            f"{item.segments:,}",
            f"{item.records:,}",
            size(item.log_bytes),
            f"{item.log_end_offset:,}",
        ]
        for item in report.partitions
    ]
    heads = ["partition", "segments", "records", "size", "log end"]
    notes = [f"{report.tombstones:,} tombstones"] * bool(report.tombstones)
    notes += [f"{report.keyless:,} without a key"] * bool(report.keyless)
    of_which = f" ({', '.join(notes)})" if notes else ""
    configs = ", ".join(f"{name}={text}" for name, text in report.configs.items())
    made = f"\nCreated topic {report.topic} with {configs}." if report.created else ""
    return f"{table(heads, rows)}\n\n{report.rows:,} rows{of_which}, {report.seconds:.1f} s{made}"
