"""`stratalog log repair`: show what is wrong with logs, and put it right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stratalog.cli.engines import warm_kernels
from stratalog.cli.options import DIRECTORY, JSON, clock_of, format_option
from stratalog.cli.output import print_json
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import counted, size

if TYPE_CHECKING:
    from stratalog.admin.damage import Damage
    from stratalog.admin.repair import RepairReport
    from stratalog.ledger.manifest import Generation

PROBLEMS_FOUND = 1


@click.command(short_help="Show, and put right, what is wrong with logs.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--apply", "applies", is_flag=True, help="Put it right. [default: only show]")
@click.option(
    "--damage",
    "choice",
    type=click.Choice(["cut", "skip"]),
    help="What becomes of damage that no crash explains: the log ends before it, or only what is "
    "not whole is left out.",
)
@format_option
@click.pass_context
def repair(
    context: click.Context,
    directories: tuple[str, ...],
    applies: bool,
    choice: str | None,
    output: str,
) -> None:
    """Show what is wrong with logs; with --apply, put it right.

    Every batch is read. What a crash explains is put right as opening the log would: unfinished
    swaps, a torn end, indexes. Damage that no crash explains loses records, one way or the other,
    so --damage must say which: without it such a partition is left as it is, with exit code 1.
    """
    from stratalog.admin.repair import RepairOptions
    from stratalog.admin.repair import repair as run
    from stratalog.base.filesystem import LocalFileSystem

    warm_kernels()
    with ProgressBar() as bar:
        report = run(
            directories, RepairOptions(applies, choice), LocalFileSystem(), clock_of(None), bar
        )
    if output == JSON:
        print_json(report.as_json())
    else:
        click.echo(_repaired(report))
    context.exit(0 if report.is_ok else PROBLEMS_FOUND)


def _repaired(report: RepairReport) -> str:
    lines = []
    for directory in report.directories:
        if not directory.closed_in_order:
            lines.append(f"{directory.directory}: was not closed in order")
        lines += [f"{directory.directory}: {step.text}" for step in directory.steps]
    for item in report.partitions:
        state = "sound"
        if item.error is not None:
            state = item.error
        elif item.undecided is not None:
            state = item.undecided
        elif item.steps or item.damage is not None:
            state = "repaired" if report.applied else "can be repaired"
        lines.append(
            f"{item.partition}: {counted(item.segments, 'segment')}, {size(item.log_bytes)}: "
            f"{state}"
        )
        if item.quarantine is not None:
            lines.append(f"  quarantined: {item.quarantine}")
        if item.damage is not None:
            lines += _places(item.damage)
            if item.undecided is not None or not report.applied:
                lines += _choices(item.damage, item.ledger)
        lines += [f"  {step.text}" for step in item.steps]
        lines += [f"  still wrong: {problem.file}: {problem.reason}" for problem in item.left]
    if not report.applied and report.has_steps:
        lines.append("Nothing was changed; --apply does it.")
    return "\n".join(lines)


def _places(damage: Damage) -> list[str]:
    lines = []
    for file, gap in damage.places:
        if gap.next_offset is None:
            offsets = f"offsets from {gap.first_offset} on"
        elif gap.next_offset == gap.first_offset + 1:
            offsets = f"offset {gap.first_offset}"
        else:
            offsets = f"offsets {gap.first_offset} to {gap.next_offset - 1}"
        where = f"position {gap.position}: {size(gap.size_bytes)}, {offsets}"
        lines.append(f"  damaged: {file}: {where}: {gap.reason}")
    return lines


def _choices(damage: Damage, ledger: Generation | None) -> list[str]:
    def ends(at: int) -> str:
        if ledger is None or ledger.horizon <= at:
            return str(at)
        only = f"offsets {at} to {ledger.horizon - 1} are only in ledger {ledger.number}"
        return f"{at} and goes on at {ledger.horizon} ({only})"

    cut, skip = damage.cut, damage.skip
    given_up = f"{counted(cut.batches, 'whole batch')}, {counted(cut.segments, 'later segment')}"
    of_cut = f"at most {cut.offsets:,} records, {size(cut.size_bytes)} ({given_up})"
    of_skip = f"at most {skip.offsets:,} records, {size(skip.size_bytes)}"
    return [
        f"  --damage cut: the log ends at {ends(cut.log_end_offset)}; loses {of_cut}",
        f"  --damage skip: the log ends at {ends(skip.log_end_offset)}; loses {of_skip}",
    ]
