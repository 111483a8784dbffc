"""The server as a process: started, asked, stopped, killed, started again (BRK-5)."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.desk import open_desk
from stratalog.base.clock import SystemClock
from stratalog.base.errors import StorageIOError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from stratalog.server.address import ADDRESS_FILE
from stratalog.server.client import find_server, is_locked
from tests.clean.services import put
from tests.cli.helpers import Shell
from tests.server.running import PATIENCE_SECONDS, Running, running

DISK = LocalFileSystem()
STOCKS = TopicPartition("stocks", 0)


def until(what: Callable[[], Any]) -> Any:
    """Wait until something is so; what it answers."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := what()):
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)
    return found


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.requirement("BRK-5", "CFG-2", "ADM-1")
def test_started_asked_stopped_and_started_again(shell: Shell, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as server:
        desk = find_server(str(data), DISK)
        assert desk is not None
        assert desk.url == server.url
        desk.create_topic("stocks", 2, {"cleanup.policy": "compact"})
        desk.alter_configs("topic", "stocks", {"retention.ms": "12345"})
        desk.alter_configs("prefix", "st", {"segment.ms": "7654321"})
        desk.alter_configs("broker", None, {"log.cleaner.backoff.ms": "2000"})

        second = shell("server", "start", data, "--port", 0)
        assert second.code == 1
        assert f"in use by the server at {server.url}" in one_line(second.err)
        second = shell("server", "start", data, "--port", server.port, "--format", "json")
        assert second.code == 1
        assert second.json["error"]["type"] == "LogLockedError"
        other = shell("server", "start", tmp_path / "other", "--port", server.port)
        assert other.code == 1
        assert f"port {server.port} of 127.0.0.1 is in use" in one_line(other.err)
        assert not (tmp_path / "other").exists(), "nothing was begun"

        status = shell("server", "status", data)
        assert status.code == 0
        assert server.url in status.out
        assert str(server.process.pid) in status.out

        assert server.end(signal.SIGINT) == 0
        assert "stopped" in server.said()
    assert not (data / ADDRESS_FILE).exists()
    assert (data / ".kafka_cleanshutdown").exists(), "the next start scans nothing"
    assert not is_locked(str(data), DISK)
    with pytest.raises(StorageIOError, match="does not answer: Connection refused"):
        desk.list_topics()

    status = shell("server", "status", data, "--format", "json")
    assert status.code == 1
    assert status.json == {"ok": False, "running": False, "in_use": False}
    with running(data) as server:
        desk = server.desk
        assert desk.describe_topic("stocks")["configs"] == {
            "cleanup.policy": "compact",
            "retention.ms": "12345",
        }
        found = desk.describe_configs("topic", "stocks", all=True)["configs"]
        values = {config["name"]: config["value"] for config in found}
        assert values["segment.ms"] == "7654321"
        [broker] = desk.describe_configs("broker")["configs"]
        assert (broker["name"], broker["value"]) == ("log.cleaner.backoff.ms", "2000")
        stopped = shell("server", "stop", data)
        assert stopped.code == 0
        assert server.process.wait(PATIENCE_SECONDS) == 0
    again = shell("server", "stop", data)
    assert again.code == 1
    assert "no server runs on" in one_line(again.err)


@pytest.mark.requirement("BRK-5", "LDG-2")
def test_a_ledger_by_itself_then_killed_and_started_again(tmp_path: Path) -> None:
    """A threshold that is set by REST makes the server compact; what it made outlives `kill -9`."""
    data, config = tmp_path / "data", tmp_path / "often.properties"
    config.write_text("log.cleaner.backoff.ms=50\n")
    with open_desk([str(data)], DISK, SystemClock()) as own:
        own.create_topic("stocks", 1, {"compaction.mode": "ledger"})
        put(own.service.store.get(STOCKS), ("a", "1"), ("b", "1"), ("a", "2"))
    with running(data, "--config-file", config) as server:
        desk = server.desk

        def ledger() -> Any:
            [found] = desk.compaction_status("stocks")["partitions"]
            return found["ledger"]

        assert ledger() is None, "nobody has asked, and the threshold is 0"
        desk.alter_configs("prefix", "st", {"compaction.threshold": "1"})
        found = until(ledger)
        assert (found["horizon"], found["records"]) == (3, 2)
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert (data / ADDRESS_FILE).exists(), "nobody was left to remove it"
    with pytest.raises(StorageIOError, match="does not answer"):
        desk.list_topics()
    assert find_server(str(data), DISK) is None, "its lock is free: it is a dead one's"
    with open_desk([str(data)], DISK, SystemClock()) as own:
        assert own.topic_names() == ["stocks"]
    with running(data) as server:
        again = find_server(str(data), DISK)
        assert again is not None
        assert again.url == server.url
        [status] = again.compaction_status("stocks")["partitions"]
        assert (status["state"], status["trigger"]) == ("succeeded", "backlog")
        assert status["ledger"] == found
        assert status["threshold_bytes"] == 1
        assert server.end() == 0
    assert not (data / ADDRESS_FILE).exists()


@pytest.mark.requirement("BRK-5")
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--host", "0.0.0.0"], 1, "only the loopback interface"),
        (["--host", "localhost.example"], 1, "--host 'localhost.example' is no number"),
        (["--port", "70000"], 2, "70000"),
        (["--config-file", "nowhere"], 2, "does not exist"),
        (["--config-file", "bad.properties"], 2, "log.retention.ms"),
    ],
)
def test_what_does_not_start(
    shell: Shell, tmp_path: Path, options: list[str], code: int, said: str
) -> None:
    (tmp_path / "bad.properties").write_text("log.retention.ms=soon\n")
    told = [str(tmp_path / it) if it.endswith(".properties") else it for it in options]
    done = shell("server", "start", tmp_path / "data", *told)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "data").exists()


def test_one_partition_is_no_data_directory(shell: Shell, tmp_path: Path) -> None:
    partition = tmp_path / "stocks-0"
    partition.mkdir()
    (partition / "00000000000000000000.log").touch()
    done = shell("server", "start", partition, "--port", 0)
    assert done.code == 1
    assert "is one partition: name the directory that holds it" in done.err
    assert os.listdir(partition) == ["00000000000000000000.log"]


def test_a_directory_of_a_process_that_is_no_server(shell: Shell, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with open_desk([str(data)], DISK, SystemClock()):
        done = shell("server", "start", data, "--port", 0)
        assert done.code == 1
        assert "in use by another running process" in done.err
        done = shell("server", "start", data, "--port", 0, "--json")
        assert (done.code, done.err) == (1, "")
        assert done.json["error"]["type"] == "LogLockedError"
        assert "another process has it" in shell("server", "status", data).out
        assert "a process that is no server" in shell("server", "stop", data).err


# -- while something is going on ------------------------------------------------------------------


NEVER = {"min.cleanable.dirty.ratio": "1"}
"""Cleaned when it is asked for, not by itself."""


def with_much_to_clean(data: Path) -> None:
    """Two megabytes that will not shrink to nothing."""
    with open_desk([str(data)], DISK, SystemClock()) as desk:
        desk.create_topic("stocks", 2, {"cleanup.policy": "compact", **NEVER})
        log = desk.service.store.get(STOCKS)
        now_ms = SystemClock().now_ms()
        for batch in range(20):
            log.append_records(
                [
                    NewRecord(b"%d" % (batch * 50 + key), os.urandom(1000), now_ms)
                    for key in range(100)
                ]
            )
        log.roll()


@pytest.mark.requirement("LDG-2", "CFG-2", "BRK-5", "ADM-3")
def test_requests_while_it_compacts_and_a_stop_then(tmp_path: Path) -> None:
    """The round would take hours; nobody waits for it, neither a request nor the stop."""
    data, slow = tmp_path / "data", tmp_path / "slow.properties"
    with_much_to_clean(data)
    slow.write_text("log.cleaner.io.max.bytes.per.second=200\nlog.cleaner.enable=true\n")
    with running(data, "--config-file", slow) as server:
        desk = server.desk
        [first] = desk.compact("stocks", 0)["partitions"]
        assert first["request"] == "started"

        def runs() -> bool:
            [found] = desk.compaction_status("stocks", 0)["partitions"]
            return bool(found["state"] == "running")

        until(runs)
        [second] = desk.compact("stocks", 0)["partitions"]
        assert (second["request"], second["state"]) == ("running", "running")
        assert second["started_ms"] is not None
        assert [item["topic"] for item in desk.cleaner_status()["activities"]] == ["stocks"]
        assert desk.create_topic("beside")["created"]
        assert desk.delete_topic("beside")["deleted"]
        assert b'stratalog_cleaner_threads{state="busy"} 1.0' in scraped(server)

        changed = desk.alter_configs("topic", "stocks", {"cleanup.policy": "delete"})
        assert changed["aborted"] == ["stocks-0"]
        until(lambda: not runs())
        desk.alter_configs("topic", "stocks", {"cleanup.policy": "compact"})
        desk.compact("stocks", 0)
        until(runs)
        began = time.monotonic()
        assert server.end() == 0
        assert time.monotonic() - began < PATIENCE_SECONDS / 2
    with open_desk([str(data)], DISK, SystemClock()) as own:
        [found] = own.history("stocks", 0)["partitions"]
        assert [entry["result"] for entry in found["history"]] == ["aborted", "aborted"]
        assert own.service.store.get(STOCKS).log_end_offset == 2000


@pytest.mark.slow
@pytest.mark.requirement("LDG-2", "BRK-5")
def test_compaction_on_demand_where_the_cleaner_is_off(tmp_path: Path) -> None:
    """There are no threads of a cleaner's then, and still no request waits."""
    data, slow = tmp_path / "data", tmp_path / "slow.properties"
    with_much_to_clean(data)
    slow.write_text("log.cleaner.io.max.bytes.per.second=200\nlog.cleaner.enable=false\n")
    with running(data, "--config-file", slow) as server:
        for word in ("started", "running"):
            [found] = server.desk.compact("stocks", 0)["partitions"]
            assert (found["request"], found["state"]) == (word, "running")
        assert server.desk.cancel("stocks", 0)["partitions"][0]["changed"]
        until(lambda: server.desk.compaction_status("stocks", 0)["partitions"][0]["last_run"])
        assert server.desk.compact("stocks", 0)["partitions"][0]["request"] == "started"
        assert server.end() == 0


def scraped(server: Running) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        return received(peer)


def received(peer: socket.socket) -> bytes:
    content = b""
    try:
        while piece := peer.recv(65536):
            content += piece
    except ConnectionResetError:
        pass  # it did not care to read all of what we sent
    return content


HOSTILE: list[tuple[bytes, bytes]] = [
    (b"\x00" * 100 + b"\r\n\r\n", b" 400 "),
    (b"GET\r\n\r\n", b" 400 "),
    (b"\x16\x03\x01\x02\x00\x01\x00" + b"\x00" * 300 + b"\r\n\r\n", b" 400 "),
    (b"GET /api/v1/topics HTTP/1.1\r\n\r\n", b" 400 "),
    (b"GET /api/v1/topics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b" 400 "),
    (b"GET /api/v1/topics HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b" 421 "),
    (b"GET http://rebound.example/ HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b" 421 "),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 4"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b" 4"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 30_000 + b"\r\n", b" 4"),
    (b"GET /api/v1/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 404 "),
    (b"GET /api/v1/topics/%2e%2e%2fetc HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 404 "),
    (b"GET /api/v1/topics/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 404 "),
    (
        (
            b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        ),
        b" 413 ",
    ),
    (
        (
            b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Content-Length: 6\r\n\r\n{}"
        ),
        b" 400 ",
    ),
    (
        (
            b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        b"",  # whoever is strict refuses it, whoever is not reads the chunks
    ),
    (
        (
            b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n"
        ),
        b" 400 ",
    ),
    (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 40"),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 40"),
    (
        (
            b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ),
        b" 200 ",
    ),
]


def test_hostile_bytes_cost_the_server_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as server:
        idle = [
            socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS)
            for _ in range(40)
        ]
        for peer in idle[:20]:
            peer.sendall(b"POST /api/v1/topics HTTP/1.1\r\nHost: local")
        for peer in idle[20:30]:
            peer.sendall(
                b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
        for content, said in HOSTILE:
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as peer:
                try:
                    peer.sendall(content)
                    peer.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it has closed the connection already
                answer = received(peer).split(b"\r\n")[0]
            assert not answer or said in answer, (content[:80], answer)
            assert not answer.startswith(b"HTTP/1.1 5"), (content[:80], answer)
            assert server.desk.health()["ok"]
        assert server.desk.list_topics()["topics"] == []
        for peer in idle:
            peer.close()
        assert server.end() == 0, "what clients leave open holds nothing up"
        assert "Traceback" not in server.said(), server.said()
    assert sorted(os.listdir(tmp_path)) == ["data", "data.err"]
