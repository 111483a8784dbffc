"""A bound port and the thread that serves an application on it (uvicorn).

Uvicorn runs in a thread of its own: signals stay with the process, and the logs are closed by the
thread that has opened them, when and in which order it wants.

Invariants
- I1  The port is bound before anything is opened, and nobody is served before `start`.
- I2  `stop` returns within `grace_seconds` and two more, whatever clients do: who is not done by
      then loses the connection.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING

from stratalog.base.errors import MissingExtraError, StorageIOError, UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE_SECONDS = 5.0
_BACKLOG = 128
_MAX_CONNECTIONS = 256
"""A descriptor each. Those who only keep a connection open are let go (`protocol`)."""
_START_SECONDS = 30.0
_POLL_SECONDS = 0.01


def bind(host: str, port: int) -> socket.socket:
    """A socket at this machine's loopback; `port` 0: any that is free.

    Raises `UsageError` for another interface or a port that cannot be had, each in one line.
    """
    address = "127.0.0.1" if host == "localhost" else host
    try:
        found = ip_address(address)
    except ValueError:
        raise UsageError(f"--host {host!r} is no number of an interface like 127.0.0.1") from None
    if not found.is_loopback:
        raise UsageError(
            f"--host {host}: only the loopback interface (127.0.0.1, ::1) can be served: "
            "REST has neither TLS nor passwords"
        )
    family = socket.AF_INET6 if found.version == 6 else socket.AF_INET
    # Named as TCP, asyncio lets an answer's body follow its head at once (TCP_NODELAY).
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {address} is in use by another program; choose another with "
                "--port, or any that is free with --port 0"
            ) from None
        raise UsageError(f"port {port} of {address}: {error.strerror}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener:
    """Serves `app` at a bound socket, which becomes the listener's."""

    def __init__(self, app: ASGIApp, bound: socket.socket, grace_seconds: float = GRACE_SECONDS):
        """Raises `MissingExtraError` without uvicorn."""
        try:
            import uvicorn

            from stratalog.server.protocol import ImpatientProtocol
        except ImportError as error:
            raise missing_extra(error) from error
        config = uvicorn.Config(
            app,
            http=ImpatientProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=max(1, int(grace_seconds)),
        )
        self._server = uvicorn.Server(config)
        self._bound = bound
        self._grace_seconds = grace_seconds
        self._thread = threading.Thread(target=self._run, name="stratalog-rest", daemon=True)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # clients' faults are theirs

    def _run(self) -> None:
        self._server.run(sockets=[self._bound])

    def start(self) -> None:
        """Serve from now on. Raises `StorageIOError` if that does not come about."""
        self._thread.start()
        until = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise StorageIOError("the server of REST did not start")
            time.sleep(_POLL_SECONDS)

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more connections, and let those who are being answered finish."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(self._grace_seconds + 2)
        self._bound.close()


def missing_extra(error: ImportError) -> MissingExtraError:
    """The server's packages are not there."""
    return MissingExtraError(
        f"the server is not installed ({error}); pip install 'stratalog[server]'"
    )
