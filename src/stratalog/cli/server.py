"""`stratalog server start|status|stop`: the process that owns data directories and serves REST."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from stratalog.base.errors import LogLockedError, StorageIOError, StratalogError, UsageError
from stratalog.cli.options import DIRECTORY, JSON, book_of, format_option
from stratalog.cli.output import print_error, print_json, print_note
from stratalog.cli.progress import ProgressBar
from stratalog.cli.tables import counted, facts

if TYPE_CHECKING:
    from stratalog.clean.engine import Progress
    from stratalog.server.address import ServerAddress

FAILED, INTERRUPTED = 1, 130
_NEW_DIRECTORY = click.Path(file_okay=False)
_POLL_SECONDS = 0.1


@click.group(short_help="The process that owns data directories.")
def server() -> None:
    """Run the server of data directories: retention, cleaner, compactor, and REST on loopback."""


@server.command(short_help="Own data directories and serve REST.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=_NEW_DIRECTORY)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9750,
    show_default=True,
    help="Of REST; 0 takes any that is free.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="An address of the loopback interface."
)
@click.option(
    "--config-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A broker's server.properties; what is changed at run time wins over it.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@format_option
@click.pass_context
def start(
    context: click.Context,
    directories: tuple[str, ...],
    port: int,
    host: str,
    config_file: str | None,
    as_json: bool,
    output: str,
) -> None:
    """Own the data directories DIR, which are made if they are not there: delete what retention
    lets go, clean and compact, and answer REST under /api/v1. Ctrl-C stops it in order; a second
    one at once, and the next start recovers.

    With --json the first line says where it listens: {"url": ..., "process_id": ...}. A topic that
    was not created here and of which nobody says a cleanup.policy is left alone.
    """
    if "" in directories:  # a shell's variable that is not set; it is not the current directory
        raise click.BadParameter("an empty name is no directory", param_hint="DIR")
    book = book_of((), {"cleanup.policy": ()}, config_file, named=directories)

    from stratalog.base.clock import SystemClock
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.cli.engines import warm_kernels
    from stratalog.server.process import ServerOptions, serve

    options = ServerOptions(directories, book, host, port)
    stopper, shown = _Stopper(), ExitStack()
    bar = shown.enter_context(ProgressBar())
    as_json = as_json or output == JSON
    is_ready = False

    def ready(address: ServerAddress) -> None:
        nonlocal is_ready
        is_ready = True
        if as_json:
            print_json({"url": address.url, "process_id": address.process_id})
        else:
            click.echo(f"{address.url} (process {address.process_id}); Ctrl-C stops it")

    def opened() -> None:
        shown.close()
        stopper.begin_to_serve()

    def tell(progress: Progress) -> None:
        stopper.check()
        bar(progress)

    try:
        serve(
            options,
            LocalFileSystem(),
            SystemClock(),
            wait=stopper.wait,
            prepare=warm_kernels,
            on_open=opened,
            on_ready=ready,
            on_progress=tell,
        )
    except StratalogError as error:
        # Of JSON there is one object: where it listens, or why it does not.
        print_error(error, as_json=as_json and not is_ready)
        context.exit(FAILED)
    finally:
        shown.close()
        stopper.end()
    print_note("stopped")


class _Stopper:
    """SIGINT and SIGTERM: before the logs are open they end everything where it is, afterwards
    they let it be ended in order, and the second one does not wait for that."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._serves = False
        self._before: dict[int, Any] = {}
        self._take()

    def _take(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._serves:
            self._told.set()
            raise KeyboardInterrupt
        if self._told.is_set():
            os._exit(INTERRUPTED)  # threads may be waiting for a disk: nothing is waited for
        self._told.set()

    def check(self) -> None:
        """For other threads: raises `KeyboardInterrupt` once it is over."""
        if self._told.is_set() and not self._serves:
            raise KeyboardInterrupt

    def begin_to_serve(self) -> None:
        """From here on a signal is only noted."""
        self._serves = True
        self._take()  # the bar gives back what was before it

    def wait(self, is_well: Callable[[], bool]) -> None:
        """Until a signal comes, or something is not well."""
        while is_well() and not self._told.wait(_POLL_SECONDS):
            pass
        print_note("stopping: rounds are given up, the logs are closed; again: at once")

    def end(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


@server.command(short_help="Whether a server runs.")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@format_option
@click.pass_context
def status(context: click.Context, directory: str, output: str) -> None:
    """Say what the server of a data directory does; exit code 1 if none runs."""
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.server.client import find_server, is_locked

    disk = LocalFileSystem()
    found = find_server(directory, disk)
    if found is None:
        used = is_locked(directory, disk)
        if output == JSON:
            print_json({"ok": False, "running": False, "in_use": used})
        else:
            click.echo(
                f"no server runs on {directory}" + (", but another process has it" if used else "")
            )
        context.exit(FAILED)
    document = found.server_info()
    if output == JSON:
        print_json({**document, "running": True, "url": found.url})
        return
    cleaner = document["cleaner"]
    pairs = [
        ("url", found.url),
        ("process", str(document["process_id"])),
        ("version", document["version"]),
        ("topics", f"{document['topics']:,}"),
        ("partitions", f"{document['partitions']:,}"),
        ("cleaner", counted(cleaner["threads"], "thread") if cleaner["running"] else "not running"),
    ]
    pairs += [("directory", path) for path in document["log_dirs"]]
    pairs += [("offline", f"{path}: {why}") for path, why in document["offline"].items()]
    click.echo(facts(pairs))


@server.command(short_help="Stop it in order.")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for its end.",
)
@format_option
def stop(directory: str, timeout_seconds: float, output: str) -> None:
    """Stop the server of a data directory, and wait until it has closed the logs."""
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.server.client import find_server, is_locked

    if timeout_seconds != timeout_seconds:  # nan, which no time is longer than
        raise click.BadParameter("it is no number of seconds", param_hint="--timeout")
    disk = LocalFileSystem()
    found = find_server(directory, disk)
    if found is None:
        if is_locked(directory, disk):
            raise LogLockedError(f"{directory}: in use by a process that is no server")
        raise UsageError(f"no server runs on {directory}")
    process_id = found.health()["process_id"]
    try:
        os.kill(process_id, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended meanwhile
    except PermissionError:
        raise UsageError(f"process {process_id} belongs to somebody else") from None
    until = time.monotonic() + timeout_seconds
    while is_locked(directory, disk):
        if time.monotonic() > until:
            raise StorageIOError(
                f"process {process_id} has not ended within {timeout_seconds:g} s; it goes on"
            )
        time.sleep(_POLL_SECONDS)
    if output == JSON:
        print_json({"ok": True, "stopped": process_id})
    else:
        click.echo(f"stopped the server at {found.url} (process {process_id})")
