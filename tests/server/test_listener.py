"""Clients that take their time do not get the server's."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stratalog.server import listener as listening
from stratalog.server import protocol
from stratalog.server.client import RemoteDesk
from stratalog.server.listener import Listener, bind, url_of
from stratalog.web.app import create_app

REQUEST = b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\n"
LONG = {"ok": True, "topics": ["x" * 1000] * 30_000}
PATIENCE_SECONDS = 60.0


class Slow:
    """A desk that answers when it is let go, and at length."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.asked = threading.Event()

    def list_topics(self) -> Any:
        self.asked.set()
        assert self.go.wait(PATIENCE_SECONDS)
        return LONG


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def listener(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.3)
    bound = bind("127.0.0.1", 0)
    started = Listener(create_app(slow, instance="x"), bound, grace_seconds=1)  # type: ignore[arg-type]
    started.start()
    assert started.is_alive
    yield started
    slow.go.set()
    started.stop()
    assert not started.is_alive


@pytest.fixture
def port(listener: Listener) -> int:
    return int(listener._bound.getsockname()[1])


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)


def answer_of(peer: socket.socket) -> bytes:
    """One answer, head and body: they may well arrive apart."""
    with peer.makefile("rb") as stream:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            assert line, "it ended early"
            head += line
        size = re.search(rb"content-length: *(\d+)", head.lower())
        assert size is not None
        return head + stream.read(int(size[1]))


def is_closed(peer: socket.socket) -> bool:
    """It was closed by the other side, which we wait for."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_who_asks_nothing_is_let_go(port: int) -> None:
    with connected(port) as silent, connected(port) as begun:
        begun.sendall(REQUEST)
        assert is_closed(silent)
        assert is_closed(begun)


def test_a_byte_now_and_then_is_no_request(port: int) -> None:
    with connected(port) as dripping:
        end = time.monotonic() + PATIENCE_SECONDS
        dripping.sendall(REQUEST)
        try:
            while time.monotonic() < end:
                dripping.sendall(b"X: y\r\n")
                time.sleep(0.05)
        except OSError:
            return
    pytest.fail("it is still listened to")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /api/v1/health HTTP/1.1\r\n\r\n",
        REQUEST + b"Host: localhost\r\n\r\n",
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"GET /" + b"x" * 70_000,
    ],
)
@pytest.mark.usefixtures("patient")
def test_what_is_no_http_is_refused_in_the_one_shape(port: int, sent: bytes) -> None:
    with connected(port) as peer:
        peer.sendall(sent)
        answer = b""
        while piece := peer.recv(65536):
            answer += piece
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head.lower()
    error = json.loads(content)["error"]
    assert (error["code"], error["type"]) == ("bad_request", "UsageError")


def test_one_connection_too_many_is_refused_in_the_one_shape(
    monkeypatch: pytest.MonkeyPatch, slow: Slow
) -> None:
    monkeypatch.setattr(listening, "_MAX_CONNECTIONS", 2)
    bound = bind("127.0.0.1", 0)
    listener = Listener(create_app(slow, instance="x"), bound, grace_seconds=1)  # type: ignore[arg-type]
    listener.start()
    port = int(bound.getsockname()[1])
    try:
        with connected(port) as first:
            first.sendall(REQUEST.replace(b"topics", b"health") + b"\r\n")
            assert answer_of(first).startswith(b"HTTP/1.1 200"), "it is there, and alone"
            with connected(port) as second:
                second.sendall(REQUEST + b"\r\n")
                answer = b""
                while piece := second.recv(65536):
                    answer += piece
    finally:
        listener.stop()
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(content)["error"]["code"] == "busy"


@pytest.mark.usefixtures("patient")
def test_nonsense_behind_a_request_ends_its_connection_only(port: int, slow: Slow) -> None:
    with connected(port) as peer:
        peer.sendall(REQUEST.replace(b"topics", b"health") + b"\r\n\x00nonsense\r\n\r\n")
        while peer.recv(65536):
            pass
    with connected(port) as peer:
        peer.sendall(REQUEST.replace(b"topics", b"health") + b"\r\n")
        assert answer_of(peer).startswith(b"HTTP/1.1 200"), "others are served"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever means to ask has time for it on a busy machine, too."""
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 4.0)


@pytest.mark.usefixtures("patient")
def test_a_second_request_has_as_long(port: int) -> None:
    with connected(port) as peer:
        peer.sendall(REQUEST.replace(b"topics", b"health") + b"\r\n")
        assert answer_of(peer).startswith(b"HTTP/1.1 200")
        peer.sendall(b"GET ")
        assert is_closed(peer)


@pytest.mark.usefixtures("patient")
def test_an_answer_that_takes_its_time_is_waited_for(port: int, slow: Slow) -> None:
    """The bound is on clients, not on desks."""
    slow.go.clear()
    threading.Timer(0.9, slow.go.set).start()
    assert RemoteDesk(f"http://127.0.0.1:{port}").list_topics() == LONG


@pytest.mark.usefixtures("patient")
def test_who_does_not_read_is_let_go(listener: Listener, port: int, slow: Slow) -> None:
    with connected(port) as peer:
        peer.sendall(REQUEST + b"\r\n")
        assert slow.asked.wait(PATIENCE_SECONDS)
        end = time.monotonic() + PATIENCE_SECONDS
        while listener._server.server_state.connections and time.monotonic() < end:
            time.sleep(0.02)
        got = 0
        try:
            while piece := peer.recv(1 << 20):
                got += len(piece)
        except ConnectionResetError:
            pass
        assert got < 30_000_000, "all of it came"


@pytest.mark.usefixtures("patient")
def test_an_answer_does_not_wait_for_the_next_packet(listener: Listener, port: int) -> None:
    """Head and body are two writes; Nagle's algorithm would hold the second one back for 40 ms."""
    connections = listener._server.server_state.connections
    with connected(port):
        end = time.monotonic() + PATIENCE_SECONDS
        while not connections and time.monotonic() < end:
            time.sleep(0.01)
        [served] = connections
        accepted = served.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_stop_waits_for_who_is_being_answered(slow: Slow) -> None:
    bound = bind("127.0.0.1", 0)
    listener = Listener(create_app(slow, instance="x"), bound)  # type: ignore[arg-type]
    listener.start()
    desk, found = RemoteDesk(url_of(bound)), []
    slow.go.clear()
    asking = threading.Thread(target=lambda: found.append(desk.list_topics()))
    asking.start()
    assert slow.asked.wait(PATIENCE_SECONDS)
    threading.Timer(0.2, slow.go.set).start()
    listener.stop()
    asking.join(PATIENCE_SECONDS)
    assert found == [LONG]
