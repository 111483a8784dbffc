"""A broker's server.properties as commands take it: nothing in it is passed over silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.admin.helpers import records, write_log
from tests.cli.helpers import Shell, stratalog


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_log(tmp_path / "data" / "orders-0", [[records("ab")]])
    return tmp_path / "data"


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_directories_that_are_passed_over_are_told(data: Path, shell: Shell, name: str) -> None:
    file = data.parent / "server.properties"
    note = (
        f"note: {name}=/elsewhere, {data} is passed over: directories are those that a call names"
    )
    for command in (
        ("topic", "list", "--data", data),
        ("retention", data, "--dry-run"),
        ("compact", data, "--dry-run", "--engine", "local"),
        ("stats", data / "orders-0"),
    ):
        file.write_text(f"{name}=/elsewhere, {data}\nlog.retention.ms=7\n")
        told = shell(*command, "--config-file", file)
        assert told.code == 0, told.err
        assert note in told.err.splitlines()
        file.write_text(f"{name}={data}/\n")  # the same: nothing is passed over
        assert "log.dir" not in shell(*command, "--config-file", file).err


def test_a_server_tells_it_too(data: Path) -> None:
    file = data.parent / "server.properties"
    file.write_text("log.dirs=/elsewhere\n")
    (data / "stratalog-topics").write_text("damaged")  # so that it does not stay
    done = stratalog("server", "start", data, "--port", "0", "--config-file", file)
    assert done.returncode == 1
    assert "note: log.dirs=/elsewhere is passed over" in done.stderr


@pytest.mark.parametrize("option", ["--config-file", "--topic-config"])
def test_what_is_no_text_is_refused_in_a_line(data: Path, shell: Shell, option: str) -> None:
    file = data.parent / "file"
    for content, line in (
        (b"\x7fELF\x02\x01\x01\0" * 1000, 1),
        (b"log.retention.ms=7\nretention.ms=\0\0\n", 2),
        (bytes(range(256)) * 1000, 1),
        (b"a=b\r\nc=\x1b[2J\n", 2),
    ):
        file.write_bytes(content)
        for output in ("text", "json"):
            done = shell("retention" if option == "--config-file" else "compact", data, "--dry-run",
                         option, file, "--format", output)  # fmt: skip
            told = done.err if output == "text" else done.out
            assert done.code == 2
            assert f"{file}: line {line}: no text file: the character 0x" in told
            assert told.isprintable() or set(told) <= {*map(chr, range(32, 127)), "\n"}
