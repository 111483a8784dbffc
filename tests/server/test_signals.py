"""What signals do to `stratalog server start`: before the logs are open, after, twice (BRK-5)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import StorageIOError
from stratalog.clean.engine import Progress
from stratalog.cli import server as command
from stratalog.server import process
from stratalog.server.address import ServerAddress
from tests.cli.helpers import Outcome, Shell

ADDRESS = ServerAddress("http://127.0.0.1:1", 4711, "it", 0)
STOPS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def started(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command with another function in the place of `serve`."""

    def start(serve: Callable[..., None], *options: str) -> Outcome:
        before = [signal.getsignal(number) for number in STOPS]
        monkeypatch.setattr(process, "serve", serve)
        monkeypatch.setattr("stratalog.cli.engines.warm_kernels", lambda: False)
        done = shell("server", "start", tmp_path / "data", *options)
        assert [signal.getsignal(number) for number in STOPS] == before
        return done

    return start


@pytest.mark.requirement("BRK-5")
@pytest.mark.parametrize("number", STOPS)
def test_before_the_logs_are_open_it_ends_where_it_is(
    started: Callable[..., Outcome], number: int
) -> None:
    heard: list[str] = []

    def serve(*_: Any, on_progress: Callable[[Progress], None], **__: Any) -> None:
        on_progress(Progress("recover", 1, 2))
        try:
            os.kill(os.getpid(), number)
            heard.append("nothing")
        finally:
            thread = threading.Thread(target=worker, args=[on_progress])  # one that recovers
            thread.start()
            thread.join()

    def worker(on_progress: Callable[[Progress], None]) -> None:
        try:
            on_progress(Progress("recover", 2, 2))
        except KeyboardInterrupt:
            heard.append("it is over")

    done = started(serve)
    assert done.code == 130
    assert heard == ["it is over"]


@pytest.mark.requirement("BRK-5")
@pytest.mark.parametrize("number", STOPS)
def test_afterwards_it_ends_in_order(started: Callable[..., Outcome], number: int) -> None:
    closed: list[str] = []

    def serve(*_: Any, on_open: Any, on_ready: Any, wait: Any, on_progress: Any, **__: Any) -> None:
        on_open()
        os.kill(os.getpid(), number)  # it is noted, and raises nothing
        on_ready(ADDRESS)
        wait(lambda: True)
        on_progress(Progress("recover", 1, 2))
        closed.append("the logs")

    done = started(serve, "--json")
    assert (done.code, closed) == (0, ["the logs"])
    assert done.json == {"url": ADDRESS.url, "process_id": ADDRESS.process_id}
    assert done.err.splitlines()[-1] == "stopped"


def test_the_second_does_not_wait(
    started: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(command.os, "_exit", left.append)

    def serve(*_: Any, on_open: Any, wait: Any, **__: Any) -> None:
        on_open()
        os.kill(os.getpid(), signal.SIGTERM)
        wait(lambda: True)
        assert left == []
        os.kill(os.getpid(), signal.SIGINT)
        assert left == [130]

    assert started(serve).code == 0


def test_what_is_not_well_ends_it(started: Callable[..., Outcome]) -> None:
    def serve(*_: Any, on_open: Any, on_ready: Any, wait: Any, **__: Any) -> None:
        on_open()
        on_ready(ADDRESS)
        wait(lambda: False)
        raise StorageIOError("REST has ended by itself")

    done = started(serve, "--format", "json")
    assert done.code == 1
    assert done.json == {"url": ADDRESS.url, "process_id": ADDRESS.process_id}, "one object only"
    assert "error: REST has ended by itself" in done.err
