"""Which desk a command works at: the server's, if one runs, or the directory's own.

--server URL             that server
--data DIR (or the variable STRATALOG_DATA)
    its server, if one owns it       (it says so)
    the directory itself             otherwise; one that another process has is refused
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stratalog.cli.options import JSON, TEXT, TSV, book_of, config_file_option
from stratalog.cli.output import is_terminal, print_note
from stratalog.cli.progress import ProgressBar

if TYPE_CHECKING:
    from stratalog.admin.desk.protocol import Desk
    from stratalog.base.filesystem import FileSystem

Command = TypeVar("Command", bound=Callable[..., Any])
DATA_VARIABLE = "STRATALOG_DATA"


@dataclass(frozen=True, slots=True)
class Where:
    """What the command line says of where to work."""

    data: tuple[str, ...]
    server: str | None
    config_file: str | None
    verbose: bool

    @property
    def is_given(self) -> bool:
        """On the command line; the variable does not count."""
        return bool(self.data or self.server)


def where_options(command: Command) -> Command:
    """`--data`, `--server`, `--config-file` and `-v`, together as `where`."""

    @wraps(command)
    def with_where(*arguments: Any, **named: Any) -> Any:
        where = Where(*(named.pop(name) for name in ("data", "server", "config_file", "verbose")))
        return command(*arguments, where=where, **named)

    return _where_options(config_file_option(cast("Command", with_where)))


def steering_options(command: Command) -> Command:
    """`--data`, `--server` and `-v`, together as `where`: beside directories as arguments."""

    @wraps(command)
    def with_where(*arguments: Any, **named: Any) -> Any:
        where = Where(named.pop("data"), named.pop("server"), None, named.pop("verbose"))
        return command(*arguments, where=where, **named)

    return _where_options(cast("Command", with_where))


def _where_options(command: Command) -> Command:
    options = [
        click.option(
            "--data",
            multiple=True,
            type=click.Path(file_okay=False),
            metavar="DIR",
            help=f"The log directory; repeated, if a broker has several. [env: {DATA_VARIABLE}]",
        ),
        click.option("--server", metavar="URL", help="A server, like http://127.0.0.1:9750."),
        click.option("-v", "--verbose", is_flag=True, help="Say who does it."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def list_format_option(command: Command) -> Command:
    """`--format text|json|tsv`, as `output`."""
    return click.option(
        "--format",
        "output",
        type=click.Choice([TEXT, JSON, TSV]),
        default=TEXT,
        show_default=True,
        help="Text for people, one JSON object, or lines of tabs without a head, - for empty.",
    )(command)


@contextmanager
def desk_at(where: Where, *, says: bool = True) -> Iterator[Desk]:
    """The desk for a command, which says on a terminal, or with -v, which it is (once: `says`).

    While a directory is open, progress is shown, and Ctrl-C waits for what is short. Raises
    `click.UsageError` if nobody says where; `StorageIOError` for a server that does not answer.
    """
    from stratalog.base.filesystem import LocalFileSystem

    disk = LocalFileSystem()
    remote = remote_desk(where, disk)
    if remote is not None:
        if where.config_file is not None:
            print_note("note: --config-file is the server's own to read; it is passed over here")
        _say(where, remote, says)
        yield remote
        return

    from stratalog.admin.desk.bare import BareDesk
    from stratalog.base.clock import SystemClock

    book = book_of((), {}, where.config_file, named=data_of(where))
    with ProgressBar() as bar:
        desk = BareDesk(
            data_of(where),
            disk,
            SystemClock(),
            book=book,
            on_progress=bar,
            on_opened=bar.hold,
        )
        _say(where, desk, says)
        yield desk


def remote_desk(where: Where, disk: FileSystem) -> Desk | None:
    """The server's, if it is asked for, or owns the directory."""
    if where.server is not None:
        if where.data:
            raise click.UsageError("--data or --server, not both.")

        from stratalog.server.client import RemoteDesk

        return RemoteDesk(where.server)
    return desk_for(data_of(where), disk)


def desk_for(directories: Sequence[str], disk: FileSystem) -> Desk | None:
    """The desk of the server that owns one of these directories; None if none does."""
    from stratalog.server.client import find_server

    for directory in directories:
        found = find_server(directory, disk)
        if found is not None:
            return found
    return None


def data_of(where: Where) -> Sequence[str]:
    """The log directories. Raises `click.UsageError` if nobody names one."""
    if where.data:
        if "" in where.data:  # a shell's variable that is not set; it is not the current directory
            raise click.BadParameter("it names no directory", param_hint="--data")
        return where.data
    named = [path for path in os.environ.get(DATA_VARIABLE, "").split(os.pathsep) if path]
    if not named:
        raise click.UsageError(
            f"Say where: --data DIR (or the variable {DATA_VARIABLE}), or --server URL."
        )
    return named


def _say(where: Where, desk: Desk, says: bool) -> None:
    if says and (where.verbose or is_terminal()):
        print_note(desk.place)
