"""`stratalog log dump|stats|verify|repair`: look into logs; `repair --apply` alone changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from stratalog.cli.engines import warm_kernels
from stratalog.cli.keys import key_format_option, key_of
from stratalog.cli.options import (
    DIRECTORY,
    JSON,
    clock_of,
    config_option,
    format_option,
    now_option,
    settings_of,
)
from stratalog.cli.output import print_json, print_json_list
from stratalog.cli.progress import ProgressBar
from stratalog.cli.repair import repair
from stratalog.cli.stats import stats
from stratalog.cli.tables import counted, moment, size

if TYPE_CHECKING:
    from stratalog.admin.absent import PartitionSearch
    from stratalog.admin.verifying import VerifyReport

PROBLEMS_FOUND = 1
_SHOWN = 10
"""Records of a key that text tells one by one; JSON tells more."""


@click.group(short_help="Look into logs: dump, stats, verify, repair.")
def log() -> None:
    """Look into logs; nothing is changed but by `repair --apply`."""


@log.command(short_help="Print batches and records.")
@click.argument("path", metavar="DIR|FILE", type=click.Path(exists=True))
@click.option("--records", is_flag=True, help="Also the records of each batch.")
@click.option(
    "--from", "start_offset", type=click.IntRange(min=0), default=0, help="Begin at this offset."
)
@click.option("--limit", type=click.IntRange(min=0), help="At most so many batches of each file.")
@format_option
def dump(path: str, records: bool, start_offset: int, limit: int | None, output: str) -> None:
    """Print the batches of a partition or of one file: .log, .index, .timeindex, .txnindex or
    .snapshot."""
    from stratalog.admin.dump import DumpOptions
    from stratalog.admin.dump import dump as rows_of
    from stratalog.base.filesystem import LocalFileSystem

    rows = rows_of(path, DumpOptions(records, start_offset, limit), LocalFileSystem())
    if output == JSON:
        failure = print_json_list({}, "rows", rows)
        if failure is not None:
            raise click.exceptions.Exit(1)
        return
    for row in rows:
        click.echo(_line(row))


def _line(row: dict[str, Any]) -> str:
    """In the manner of kafka-dump-log: `name: value` pairs, records behind a bar."""
    kind, rest = row["type"], {name: value for name, value in row.items() if name != "type"}
    if kind == "file":
        return f"{row['file']} ({size(row['size_bytes'])})"
    pairs = " ".join(f"{name}: {_value(value)}" for name, value in rest.items())
    return f"| {pairs}" if kind == "record" else pairs


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return "-" if value is None else str(value)


@log.command(short_help="Check every byte; compare two directories.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option(
    "--against",
    metavar="DIR",
    type=DIRECTORY,
    help="Also check that the latest value of every key is the same there.",
)
@click.option(
    "--absent-key",
    metavar="KEY",
    help="Check this instead: that no file holds a value of KEY any more.",
)
@key_format_option
@click.option(
    "--stage",
    type=click.Choice(["value", "key"]),
    default="value",
    show_default=True,
    help="With --absent-key: `key` wants its tombstones to be gone, too.",
)
@config_option
@now_option
@format_option
@click.pass_context
def verify(
    context: click.Context,
    directories: tuple[str, ...],
    against: str | None,
    absent_key: str | None,
    key_format: str,
    stage: str,
    config: tuple[str, ...],
    now_ms: int | None,
    output: str,
) -> None:
    """Check every batch, record, index and checkpoint. Exit code 1 if anything is wrong.

    With --absent-key, only look for that key, in all files that hold records, also those that wait
    to be deleted or that a cleaning has left: what a receipt of `forget` says.
    """
    settings = settings_of(config)
    if absent_key is None:
        for name in ("key_format", "stage"):
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --absent-key")
    else:
        if against is not None:
            raise click.UsageError("--absent-key and --against do not go together")
        key = key_of(absent_key, key_format, "--absent-key")
        context.exit(_verify_absent(directories, key, stage, output))

    from stratalog.admin.verifying import verify as run
    from stratalog.base.filesystem import LocalFileSystem

    warm_kernels()
    with ProgressBar() as bar:
        report = run(directories, against, settings, LocalFileSystem(), clock_of(now_ms), bar)
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo(_verdict(report))
    context.exit(0 if report.is_ok else PROBLEMS_FOUND)


def _verify_absent(directories: tuple[str, ...], key: bytes, stage: str, output: str) -> int:
    from stratalog.admin.absent import Stage, find_key
    from stratalog.base.filesystem import LocalFileSystem

    wanted = Stage.KEY_ABSENT if stage == "key" else Stage.VALUE_ABSENT
    warm_kernels()
    with ProgressBar() as bar:
        report = find_key(directories, key, wanted, LocalFileSystem(), bar)
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo("\n".join(line for item in report.partitions for line in _search(item)))
    return 0 if report.is_ok else PROBLEMS_FOUND


def _search(item: PartitionSearch) -> list[str]:
    verdict = {
        "value-present": f"values of the key: {item.values:,}, tombstones: {item.tombstones:,}",
        "value-absent": f"no value of the key is left; tombstones: {item.tombstones:,}",
        "key-absent": "the key is nowhere",
        "unknown": "not all of it could be read",
    }[item.stage.value]
    looked = f"{counted(item.files, 'file')}, {counted(item.records, 'record')}"
    lines = [f"{item.partition}: {looked}: {verdict}"]
    for record in item.found[:_SHOWN]:
        what = "a value"
        if not record.has_value:
            what = "a tombstone, " + (
                "which is kept until a cleaning sets its deadline"
                if record.expires_ms is None
                else f"which a cleaning removes from {moment(record.expires_ms)} on"
            )
        lines.append(f"  {record.file}: offset {record.offset}: {what}")
    more = item.values + item.tombstones - len(item.found[:_SHOWN])
    lines += [f"  and {counted(more, 'record')} more"] if more else []
    for problem in item.problems:
        where = "" if problem.position is None else f"position {problem.position}: "
        lines.append(f"  {problem.file}: {where}{problem.reason}")
    return lines


def _verdict(report: VerifyReport) -> str:
    lines = []
    for check in report.partitions:
        lines.append(
            f"{check.partition}: {check.segments:,} segments, {check.batches:,} batches, "
            f"{check.records:,} records, {size(check.log_bytes)}: {check.verdict}"
        )
    for problem in report.all_problems:
        where = "" if problem.position is None else f"position {problem.position}: "
        lines.append(f"  {problem.file}: {where}{problem.reason}")
    for comparison in report.comparisons:
        if comparison.different == 0:
            lines.append(
                f"{comparison.partition}: {comparison.keys:,} keys, all with the same latest value"
            )
            continue
        lines.append(
            f"{comparison.partition}: {comparison.different:,} of {comparison.keys:,} keys differ"
        )
        lines += [
            f"  key {key.key}: offset {_value(key.offset)} here, {_value(key.other_offset)} there"
            for key in comparison.differences
        ]
    lines += [f"{name}: only in one of the two directories" for name in report.missing]
    return "\n".join(lines)


log.add_command(repair)
log.add_command(stats)  # the same as `stratalog stats`
