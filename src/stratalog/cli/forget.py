"""`stratalog forget KEY DIR...`: erase a key, with a receipt (CLN-11)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from stratalog.base.errors import StratalogError
from stratalog.cli.compaction import directories_argument, settings_options
from stratalog.cli.engines import warm_kernels
from stratalog.cli.keys import key_format_option, key_of
from stratalog.cli.options import JSON, book_of, clock_of, format_option
from stratalog.cli.output import print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import moment

if TYPE_CHECKING:
    from stratalog.admin.forgetting import Receipt

FAILED = 1


@click.command(short_help="Erase a key from partitions, with a receipt.")
@click.argument("key")
@directories_argument
@key_format_option
@click.option(
    "--no-tombstone",
    is_flag=True,
    help="Leave no tombstone: no file holds the key when the command ends, and readers that have "
    "the old value are not told.",
)
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@settings_options
@format_option
@click.pass_context
def forget(
    context: click.Context,
    key: str,
    directories: tuple[str, ...],
    key_format: str,
    no_tombstone: bool,
    no_confirm: bool,
    config: tuple[str, ...],
    config_file: str | None,
    topic_config: str | None,
    now_ms: int | None,
    output: str,
) -> None:
    """Erase KEY from the partitions in DIR: a tombstone, and a cleaning up to it.

    When the command ends, no file of a partition holds a value of KEY, also none that waited to be
    deleted. The tombstone stays for delete.retention.ms, so that readers learn of it; a cleaning
    after that leaves no file that holds KEY. `log verify --absent-key KEY` confirms either.

    The cleaning drops what is superseded of other keys, too, so it has to be said that the topic is
    a compacted one: --config cleanup.policy=compact, or in --topic-config.
    """
    if not (no_confirm or sys.stdin.isatty()):
        raise click.UsageError("There is nobody to ask: --no-confirm erases without a question.")
    wanted = key_of(key, key_format, "KEY")
    book = book_of(config, {"cleanup.policy": ()}, config_file, topic_config, directories)

    from stratalog.admin.directories import find_partitions
    from stratalog.admin.forgetting import forget_in
    from stratalog.base.filesystem import LocalFileSystem

    disk = LocalFileSystem()
    places = find_partitions(directories, disk)
    if not no_confirm:
        print_note("\n".join(place.path for place in places))
        if not click.confirm(f"Erase the key {key!r} here, for good?", default=False, err=True):
            raise StratalogError("not confirmed: nothing was changed")
    warm_kernels()
    with ProgressBar() as bar:
        receipts = forget_in(
            places,
            wanted,
            book,
            disk,
            clock_of(now_ms),
            keeps_tombstone=not no_tombstone,
            on_progress=bar,
        )
    if output == JSON:
        print_json(
            {
                "ok": all(one.error is None for one in receipts),
                "partitions": [one.as_json() for one in receipts],
            }
        )
    else:
        click.echo("\n".join(map(_line, receipts)))
    context.exit(0 if all(one.error is None for one in receipts) else FAILED)


def _line(receipt: Receipt) -> str:
    name = f"{receipt.topic}-{receipt.partition}"
    if receipt.error is not None:
        return receipt.error if receipt.error.startswith(name) else f"{name}: {receipt.error}"
    if not receipt.was_there:
        return f"{name}: does not hold the key."
    since = f"{name}: no file holds a value of the key since {moment(receipt.values_gone_ms)}"
    if receipt.tombstone_offset < 0:
        return f"{since}, and none holds the key."
    stays = f"its tombstone, at offset {receipt.tombstone_offset},"
    if receipt.keys_gone_ms is None:
        return (
            f"{since}; {stays} has no deadline: tombstone.horizon or delete.retention.ms says so."
        )
    return f"{since}; {stays} goes with the first cleaning from {moment(receipt.keys_gone_ms)} on."
