"""The file that says where a server listens: hostile until it is proven."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import StratalogError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.server.address import (
    ADDRESS_FILE,
    ServerAddress,
    decode_address,
    encode_address,
    read_address,
    remove_addresses,
    write_addresses,
)
from stratalog.server.listener import bind, url_of
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, explore
from tests.sim.sweeps import budget

DISK = LocalFileSystem()
GOOD = ServerAddress("http://127.0.0.1:9750", 4711, "5f0c", 1_700_000_000_000)


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(encode_address(GOOD)), **fields}).encode()


def test_it_comes_back() -> None:
    assert decode_address(encode_address(GOOD)) == GOOD
    six = ServerAddress("http://[::1]:80", 2, "", 0)
    assert decode_address(encode_address(six)) == six
    assert (six.host, six.port) == ("::1", 80)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        changed(url="http://rebound.example:80"),
        changed(url="http://10.0.0.1:80"),
        changed(url="https://127.0.0.1:80"),
        changed(url="http://127.0.0.1"),
        changed(url="http://127.0.0.1:0"),
        changed(url="http://127.0.0.1:99999"),
        changed(url="http://127.0.0.1:80/path"),
        changed(url="http://127.0.0.1:80?a"),
        changed(url="http://rebound.example@127.0.0.1:80"),
        changed(url="file:///etc/passwd"),
        changed(url=5),
        changed(url=None),
        changed(url=["http://127.0.0.1:80"]),
        changed(process_id=0),
        changed(process_id=1),
        changed(process_id=-5),
        changed(process_id="5"),
        changed(process_id=True),
        changed(process_id=1.5),
        changed(instance=5),
        changed(instance=None),
        changed(started_ms="x"),
        changed(version=2),
        changed(version="1"),
    ],
)
def test_what_is_no_address(content: bytes, tmp_path: Path) -> None:
    assert decode_address(content) is None
    (tmp_path / ADDRESS_FILE).write_bytes(content)
    assert read_address(str(tmp_path), DISK) is None


def test_any_bytes_are_an_address_or_none(count_cases: Callable[[str, int], None]) -> None:
    """Seed 6; bytes of a good one replaced, cut, repeated."""
    chance, good, cases = random.Random(6), encode_address(GOOD), budget(3000)
    for _ in range(cases):
        content = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(content))
            content[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        found = decode_address(bytes(content))
        assert found is None or found.host in ("127.0.0.1", "localhost") or found.host[:4] == "127."
    count_cases("damaged address files", cases)


def test_odd_files(tmp_path: Path) -> None:
    assert read_address(str(tmp_path), DISK) is None
    assert read_address(str(tmp_path / "nowhere"), DISK) is None
    (tmp_path / ADDRESS_FILE).write_bytes(b" " * 100_000)
    assert read_address(str(tmp_path), DISK) is None
    (tmp_path / ADDRESS_FILE).unlink()
    (tmp_path / ADDRESS_FILE).mkdir()
    assert read_address(str(tmp_path), DISK) is None
    (tmp_path / ADDRESS_FILE).rmdir()
    os.mkfifo(tmp_path / ADDRESS_FILE)
    assert read_address(str(tmp_path), DISK) is None, "a pipe is not waited for"


def test_only_its_own_is_removed(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in ("a", "b")]
    for path in dirs:
        os.mkdir(path)
    write_addresses(dirs, GOOD, DISK)
    assert [read_address(path, DISK) for path in dirs] == [GOOD, GOOD]
    newer = ServerAddress(GOOD.url, GOOD.process_id, "newer", 0)
    write_addresses(dirs[1:], newer, DISK)
    remove_addresses(dirs, GOOD, DISK)
    assert os.listdir(dirs[0]) == []
    assert read_address(dirs[1], DISK) == newer


def test_a_crash_leaves_a_whole_address_or_none(count_cases: Callable[[str, int], None]) -> None:
    """At every call that a power cut can hit; what was written before it returned is there."""
    older = ServerAddress("http://127.0.0.1:1", 5, "older", 0)

    def scenario(disk: SimDisk, journal: Journal) -> None:
        disk.make_directory("/data")
        disk.fsync_directory("/")
        for address in (older, GOOD):
            journal.begin(address)
            write_addresses(["/data"], address, disk)
            journal.promise(address)

    def judge(disk: SimDisk, promised: Hashable, in_flight: Hashable) -> None:
        found = read_address("/data", disk) if disk.exists("/data") else None
        assert found in ((promised,) if in_flight is None else (promised, in_flight))

    stats = explore(scenario, judge, seed=6, max_states=budget(500))
    stats.count(count_cases)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.0.1", "rebound.example", "", "127.0.0.1:80", "[::1]"]
)
def test_only_loopback_is_bound(host: str) -> None:
    with pytest.raises(UsageError, match="--host") as caught:
        bind(host, 0)
    assert "\n" not in str(caught.value)


def test_ports() -> None:
    with bind("localhost", 0) as bound:
        url = url_of(bound)
        assert url.startswith("http://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        bound.listen()
        with pytest.raises(StratalogError, match=f"port {port} of 127.0.0.1 is in use") as caught:
            bind("127.0.0.1", port)
        assert "--port" in str(caught.value)
