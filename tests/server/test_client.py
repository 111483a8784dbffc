"""`RemoteDesk` is the desk of this process, asked by REST: same documents, same errors."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.desk import Desk, OwnDesk, open_desk
from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    RemoteProtocolError,
    StorageIOError,
    StratalogError,
    UsageError,
)
from stratalog.base.filesystem import LocalFileSystem
from stratalog.segment.names import TopicPartition
from stratalog.server import client
from stratalog.server.address import ADDRESS_FILE, ServerAddress, write_addresses
from stratalog.server.client import RemoteDesk, find_server, is_locked
from stratalog.server.listener import Listener, bind, url_of
from stratalog.web.app import create_app
from tests.clean.services import NOW, put

DISK = LocalFileSystem()


@contextmanager
def served(desk: Any, instance: str = "this-one") -> Iterator[str]:
    """The address of REST over a desk of this process."""
    bound = bind("127.0.0.1", 0)
    listener = Listener(create_app(desk, instance=instance), bound, grace_seconds=1)
    listener.start()
    try:
        yield url_of(bound)
    finally:
        listener.stop()


@contextmanager
def filled(path: Path) -> Iterator[OwnDesk]:
    with open_desk([str(path)], DISK, FixedClock(NOW)) as desk:
        desk.create_topic("stocks", 2, {"cleanup.policy": "compact"})
        log = desk.service.store.get(TopicPartition("stocks", 0))
        put(log, ("a", "1"), ("b", "1"))
        log.roll()
        put(log, ("a", "2"))
        desk.create_topic("visits")
        put(desk.service.store.get(TopicPartition("visits", 0)), ("x", "1"), ("y", "1"))
        yield desk


@pytest.fixture(scope="module")
def twins(
    tmp_path_factory: pytest.TempPathFactory, hasty_disk: None
) -> Iterator[tuple[Desk, Desk]]:
    """Two directories of the same content: one in this process, one behind REST."""
    root = tmp_path_factory.mktemp("twins")
    with filled(root / "here") as own, filled(root / "there") as other, served(other) as url:
        yield own, RemoteDesk(url)


_VARIES = {"modified_ms", "usable_bytes", "duration_ms", "index_ms", "rewrite_ms", "ended_ms"}


def plain(document: Any) -> Any:
    """Without what two directories, or two moments, may have different."""
    if isinstance(document, dict):
        return {name: plain(it) for name, it in document.items() if name not in _VARIES}
    if isinstance(document, list):
        return [plain(it) for it in document]
    return (
        re.sub(r"/twins\d+/(here|there)", "", document) if isinstance(document, str) else document
    )


def outcome(desk: Desk, ask: Callable[[Desk], Any]) -> Any:
    try:
        return plain(ask(desk))
    except StratalogError as error:
        return type(error), plain(str(error)), error.kafka_code


UP_TO = [{"topic": "visits", "partition": 0, "offset": 1}]
ASKED: list[Callable[[Desk], Any]] = [
    lambda d: d.list_topics(),
    lambda d: d.describe_topic("stocks"),
    lambda d: d.describe_topic("nope"),
    lambda d: d.describe_topic(""),
    lambda d: d.describe_topic(".."),
    lambda d: d.describe_topic("a/b?c=d&e#f %41"),
    lambda d: d.describe_topic("\u00e9\u4e16"),
    lambda d: d.describe_storage("stocks"),
    lambda d: d.describe_storage("stocks", [1, 0]),
    lambda d: d.describe_storage("stocks", [9]),
    lambda d: d.describe_log_dirs(),
    lambda d: d.describe_log_dirs(["stocks"]),
    lambda d: d.describe_log_dirs(["stocks", "nope"]),
    lambda d: d.create_topic("events", 2, {"retention.ms": "5"}, dry_run=True),
    lambda d: d.create_topic("events", 2, {"retention.ms": "5"}),
    lambda d: d.create_topic("events"),
    lambda d: d.create_topic("events", if_not_exists=True),
    lambda d: d.create_topic("events.x", 0),
    lambda d: d.create_topic("../up"),
    lambda d: d.create_topic("other", configs={"retention.ms": "soon"}),
    lambda d: d.create_topic("other", configs={"no.such": "1"}),
    lambda d: d.add_partitions("events", 3, dry_run=True),
    lambda d: d.add_partitions("events", 3),
    lambda d: d.add_partitions("events", 1),
    lambda d: d.add_partitions("nope", 2),
    lambda d: d.describe_configs("topic", "events"),
    lambda d: d.describe_configs("topic", "events", all=True),
    lambda d: d.describe_configs("topic", "nope"),
    lambda d: d.describe_configs("topic"),
    lambda d: d.describe_configs("prefix", "ev"),
    lambda d: d.describe_configs("prefix", "a/b"),
    lambda d: d.describe_configs("prefix", ""),
    lambda d: d.describe_configs("broker"),
    lambda d: d.describe_configs("broker", "1"),
    lambda d: d.describe_configs("group", "1"),  # type: ignore[arg-type]
    lambda d: d.alter_configs("topic", "events", {"retention.ms": "6"}, ["segment.ms"]),
    lambda d: d.alter_configs("topic", "events", {}, ["retention.ms"], dry_run=True),
    lambda d: d.alter_configs("topic", "events"),
    lambda d: d.alter_configs("topic", "nope", {"retention.ms": "6"}),
    lambda d: d.alter_configs("prefix", "ev", {"retention.ms": "7"}),
    lambda d: d.alter_configs("prefix", "a/b", {"retention.ms": "7"}),
    lambda d: d.alter_configs("broker", None, {"log.retention.ms": "8"}),
    lambda d: d.alter_configs("broker", None, {"log.dirs": "/x"}),
    lambda d: d.compaction_status(),
    lambda d: d.compaction_status("stocks", 1),
    lambda d: d.compaction_status("stocks", 9),
    lambda d: d.explain("stocks"),
    lambda d: d.compact("stocks"),
    lambda d: d.compact("events"),
    lambda d: d.compact("nope"),
    lambda d: d.create_topic("book", 1, {"compaction.mode": "ledger"}),
    lambda d: d.compact("book"),
    lambda d: d.compaction_status("book"),
    lambda d: d.explain("book"),
    lambda d: d.history(),
    lambda d: d.history("stocks", 0, limit=1),
    lambda d: d.pause("stocks", 0),
    lambda d: d.compact("stocks", 0),
    lambda d: d.cancel("stocks"),
    lambda d: d.resume("stocks"),
    lambda d: d.retry(),
    lambda d: d.retry("stocks", 1),
    lambda d: d.cleaner_status(),
    lambda d: d.delete_records(UP_TO, dry_run=True),
    lambda d: d.delete_records(UP_TO),
    lambda d: d.delete_records([{**UP_TO[0], "topic": "stocks"}]),
    lambda d: d.delete_records([{**UP_TO[0], "partition": 9}]),
    lambda d: d.delete_records([{**UP_TO[0], "offset": "@soon"}]),
    lambda d: d.delete_records([]),
    lambda d: d.delete_topic("events", dry_run=True),
    lambda d: d.delete_topic("events"),
    lambda d: d.delete_topic("events"),
    lambda d: d.delete_topic("events", if_exists=True),
    lambda d: d.list_topics(),
    lambda d: d.server_info(),
]


@pytest.mark.requirement("ADM-1", "CFG-2")
def test_both_desks_say_the_same(twins: tuple[Desk, Desk]) -> None:
    own, remote = twins
    refused = 0
    for place, ask in enumerate(ASKED):
        mine, theirs = outcome(own, ask), outcome(remote, ask)
        assert mine == theirs, (place, mine, theirs)
        refused += isinstance(mine, tuple)
    assert 20 < refused < len(ASKED) - 20


def test_it_is_a_desk(twins: tuple[Desk, Desk]) -> None:
    """Each operation of the protocol, with the same names of arguments."""
    import inspect

    for name, operation in inspect.getmembers(Desk, inspect.isfunction):
        if not name.startswith("_"):
            ours = inspect.signature(getattr(RemoteDesk, name))
            assert ours.parameters.keys() == inspect.signature(operation).parameters.keys(), name
    assert twins[1].place.startswith("by the server at http://127.0.0.1:")


def test_importing_it_is_cheap() -> None:
    script = (
        "import sys; import stratalog.server.client; "
        "heavy = {'numba', 'numpy', 'fastapi', 'starlette', 'uvicorn', 'pydantic', 'asyncio'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    source = Path(client.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(source)},
    )
    assert done.stdout.strip() == "[]"


# -- servers that are none ------------------------------------------------------------------------


@contextmanager
def answering(content: bytes, *, closes: bool = True) -> Iterator[RemoteDesk]:
    """What a program at the port might say to anything."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            with peer, suppress(OSError):  # who has seen enough hangs up
                peer.recv(65536)
                peer.sendall(content)
                if not closes:
                    over.wait(20)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield RemoteDesk(url, timeout_seconds=60 if closes else 0.5)
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def http(body: bytes, status: str = "200 OK", size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode() + body


def error(content: Any, status: str = "400 Bad Request") -> bytes:
    return http(json.dumps({"error": content}).encode(), status)


STRANGE = "is not a Stratalog server: it answers"


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", RemoteProtocolError, STRANGE),
        (http(b"<html>"), RemoteProtocolError, f"{STRANGE} no JSON"),
        (http(b"\xff"), RemoteProtocolError, f"{STRANGE} no JSON"),
        (http(b"[" * 100_000), RemoteProtocolError, f"{STRANGE} no JSON"),
        (http(b"[1]"), RemoteProtocolError, f"{STRANGE} no JSON object"),
        (http(b'{"a": 1', size=100), StorageIOError, "its answer broke off"),
        (b"", StorageIOError, "does not answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, RemoteProtocolError, STRANGE),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, RemoteProtocolError, STRANGE),
        (http(b"{}", "302 Found"), RemoteProtocolError, f"{STRANGE} status 302"),
        (error("no"), RemoteProtocolError, f"{STRANGE} status 400"),
        (error({"type": "UsageError", "message": "a\nb"}), UsageError, "a b"),
        (error({"type": "CorruptionError", "message": "f: bad"}), CorruptionError, "f: bad"),
        (error({"type": "SystemExit", "message": "1"}), StratalogError, "1"),
        (error({"type": "annotations", "message": "2"}), StratalogError, "2"),
        (error({"type": ["x"], "message": None}), StratalogError, "None"),
        (error({}), StratalogError, "None"),
    ],
)
def test_other_answers(content: bytes, kind: type[StratalogError], said: str) -> None:
    with answering(content) as desk, pytest.raises(StratalogError) as caught:
        desk.list_topics()
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_answer_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_ANSWER_BYTES", 100)
    expected = pytest.raises(RemoteProtocolError, match="more than 100 bytes")
    with answering(http(b"{" + b" " * 200 + b"}")) as desk, expected:
        desk.list_topics()


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    expected = pytest.raises(StorageIOError, match=r"does not answer: no answer within 0\.5 s")
    with answering(b"", closes=False) as desk, expected:
        desk.list_topics()


def test_a_server_that_is_gone() -> None:
    bound = bind("127.0.0.1", 0)
    url = url_of(bound)
    bound.close()
    with pytest.raises(StorageIOError) as caught:
        RemoteDesk(url).list_topics()
    assert str(caught.value) == f"the server at {url} does not answer: Connection refused"


@pytest.mark.parametrize(
    "url",
    ["", "data", "https://127.0.0.1:1", "http://", "http://h:port", "http://h/path", "http://[::1"],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is no server's address"):
        RemoteDesk(url)


# -- finding it -----------------------------------------------------------------------------------


def told(path: Path, url: str, instance: str = "this-one") -> None:
    write_addresses([str(path)], ServerAddress(url, 4711, instance, NOW), DISK)


def test_the_server_of_a_directory_is_found(tmp_path: Path) -> None:
    assert find_server(str(tmp_path), DISK) is None
    assert find_server(str(tmp_path / "nowhere"), DISK) is None
    with served(object()) as url:
        told(tmp_path, url)
        found = find_server(str(tmp_path), DISK)
        assert found is not None
        assert found.url == url
        told(tmp_path, url, "another run")
        assert find_server(str(tmp_path), DISK) is None, "the port is another's by now"
    told(tmp_path, url)
    assert find_server(str(tmp_path), DISK) is None, "it is gone, and nobody owns the directory"


def test_an_owner_that_does_not_answer_is_told_of(tmp_path: Path) -> None:
    with filled(tmp_path / "data"), answering(http(b"hello")) as desk:
        told(tmp_path / "data", desk.url)
        # This process holds the lock, which is what another one would see of it.
        assert is_locked(str(tmp_path / "data"), DISK)
        with pytest.raises(StorageIOError, match=r"in use by process 4711, and .* is not a"):
            find_server(str(tmp_path / "data"), DISK)
    assert not is_locked(str(tmp_path / "data"), DISK)
    assert (tmp_path / "data" / ADDRESS_FILE).exists(), "it is the server's to remove"
