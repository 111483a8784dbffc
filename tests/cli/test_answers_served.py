"""The rows of `answers.md` once more, by a server: the same answers and exit codes.

One listener serves whatever desk a row has; the command line asks it by `--server`. Every day the
first row of each command and exit code, in the sweep all.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import SystemClock
from tests.admin.helpers import DISK
from tests.cli.helpers import Shell
from tests.cli.test_answers import ROWS, SITUATIONS, Row, assert_answers, firsts, template

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
__all__ = ["template"]
pytestmark = [pytest.mark.usefixtures("hasty_disk"), pytest.mark.requirement("ADM-1", "CFG-2")]

SERVED = [
    row
    for row in ROWS
    if row.situation in ("topics", "paused", "failing", "kafka", "alone")
    and not any(word in row.command for word in ("--data", "--server", "DATA", "OFFSETS"))
]

EVERY_DAY = firsts(SERVED)
CASES = [
    pytest.param(row, marks=() if row in EVERY_DAY else pytest.mark.slow, id=str(row))
    for row in SERVED
]


class Current:
    """The desk of the row that runs."""

    desk: OwnDesk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.desk, name)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Current, str]]:
    from stratalog.server.listener import Listener, bind, url_of
    from stratalog.web.app import create_app

    current = Current()
    bound = bind("127.0.0.1", 0)
    listener = Listener(create_app(current, instance="of the rows"), bound)
    listener.start()
    yield current, url_of(bound)
    listener.stop()


@pytest.mark.parametrize("row", CASES)
def test_a_server_answers_the_same(
    row: Row,
    served: tuple[Current, str],
    template: Path,
    tmp_path: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STRATALOG_DATA", raising=False)
    current, url = served
    SITUATIONS[row.situation](template, tmp_path / "data")
    with open_desk([str(tmp_path / "data")], DISK, SystemClock()) as current.desk:
        done = shell(*shlex.split(row.command), "--server", url, "-v")
    shutil.rmtree(tmp_path / "data")
    assert done.code == row.code, (done.out, done.err)
    assert_answers(row, done.out + done.err, tmp_path / "data")
    if row.code == 0:
        assert f"by the server at {url}" in done.err
