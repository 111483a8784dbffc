"""The server as one call: owns data directories, cleans, retains, answers REST, until it is told to
stop.

    bind ─► nobody in the way? ─► lock, recover, start ─► listen ─► tell the address ─► wait
    take the address away ─► stop listening ─► abort rounds ─► close the logs ─► unlock

Invariants
- I1  A port that is taken or a directory that is locked is known before anything is recovered.
- I2  Whatever ends it, an error too, undoes what was begun in the opposite order.
- I3  A crash leaves an address that nobody believes (`address`), and logs that the next start
      recovers.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from socket import socket

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.admin.desk.looking import check_data_directory
from stratalog.base.clock import Clock
from stratalog.base.errors import LogLockedError, StorageIOError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress
from stratalog.config.book import SettingsBook
from stratalog.server.address import (
    ServerAddress,
    read_address,
    remove_addresses,
    write_addresses,
)
from stratalog.server.client import is_locked
from stratalog.server.listener import Listener, bind, missing_extra, url_of

DEFAULT_PORT = 9750


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What is served and where. `book`: the broker's settings of a file."""

    log_dirs: Sequence[str]
    book: SettingsBook
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT


def serve(
    options: ServerOptions,
    filesystem: FileSystem,
    clock: Clock,
    *,
    wait: Callable[[Callable[[], bool]], None],
    prepare: Callable[[], object] = lambda: None,
    on_open: Callable[[], None] = lambda: None,
    on_ready: Callable[[ServerAddress], None] = lambda _: None,
    on_progress: OnProgress = lambda _: None,
) -> None:
    """Serve until `wait` returns; it is given a function that says whether all is still well.

    `prepare` is called once nothing is known to be in the way, and before anything is opened;
    `on_open`: the logs are open, from here on it can be stopped in order; `on_ready`: requests are
    answered.

    Raises `UsageError` (host, port), `LogLockedError`, `MissingExtraError`, and what `open_desk`
    raises; `StorageIOError` if REST ends by itself.
    """
    try:
        from stratalog.web.app import create_app
        from stratalog.web.scraping import metrics_of
    except ImportError as error:
        raise missing_extra(error) from error
    log_dirs = list(dict.fromkeys(map(os.path.abspath, options.log_dirs)))
    with ExitStack() as stack:
        bound = stack.enter_context(_bound(options, log_dirs, filesystem))
        _check(log_dirs, filesystem)
        prepare()
        desk = stack.enter_context(_opened(options, log_dirs, filesystem, clock, on_progress))
        on_open()
        address = ServerAddress(url_of(bound), os.getpid(), uuid.uuid4().hex, clock.now_ms())
        app = create_app(desk, instance=address.instance, metrics=metrics_of(desk.service, clock))
        listener = Listener(app, bound)
        stack.callback(listener.stop)
        listener.start()
        stack.callback(remove_addresses, log_dirs, address, filesystem)
        write_addresses(log_dirs, address, filesystem)
        on_ready(address)
        wait(lambda: listener.is_alive)
        if not listener.is_alive:
            raise StorageIOError("REST has ended by itself; the messages before tell why")


@contextmanager
def _bound(
    options: ServerOptions, log_dirs: Sequence[str], filesystem: FileSystem
) -> Iterator[socket]:
    """A bound socket. Where the port is taken and a directory is, too, it is the directory that
    is told of: both by the server that runs already."""
    try:
        bound = bind(options.host, options.port)
    except UsageError:
        for log_dir in log_dirs:
            if options.port != 0 and is_locked(log_dir, filesystem):
                raise _locked(log_dir, filesystem) from None
        raise
    with closing(bound):
        yield bound


def _check(log_dirs: Sequence[str], filesystem: FileSystem) -> None:
    """Refuse what cannot be, in no time. Raises `UsageError`, `LogLockedError`."""
    for log_dir in log_dirs:
        if filesystem.exists(log_dir):
            check_data_directory(log_dir, filesystem)
            if is_locked(log_dir, filesystem):
                raise _locked(log_dir, filesystem)


@contextmanager
def _opened(
    options: ServerOptions,
    log_dirs: Sequence[str],
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> Iterator[OwnDesk]:
    try:
        opening = open_desk(
            log_dirs, filesystem, clock, book=options.book, starts=True, on_progress=on_progress
        )
        desk = opening.__enter__()
    except LogLockedError:
        for log_dir in log_dirs:
            if is_locked(log_dir, filesystem):
                raise _locked(log_dir, filesystem) from None
        raise
    with ExitStack() as stack:
        stack.push(opening)
        yield desk


def _locked(log_dir: str, filesystem: FileSystem) -> LogLockedError:
    """That another process owns a directory, and which, where it is a server."""
    address = read_address(log_dir, filesystem)
    if address is None:
        return LogLockedError(f"{log_dir}: in use by another running process; stop it first")
    return LogLockedError(
        f"{log_dir}: in use by the server at {address.url} (process {address.process_id}); "
        f"`stratalog server stop {log_dir}` ends it"
    )
