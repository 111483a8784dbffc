"""Every command of the desk, with right and wrong input: `answers.md` says what it answers.

The table is the test: a row says what lies in DATA (and `STRATALOG_DATA` names it), the command,
its exit code, and parts of what it prints in their order, ` … ` between them. Each row is run for
text and for JSON, which is one object, and what is refused or a dry run changes nothing.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratalog.admin.desk import open_desk
from stratalog.base.clock import FixedClock
from stratalog.clean.note import Failure, Note, write_note
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, NOW_MS, records, tree, write_log
from tests.cli.helpers import Shell
from tests.log.test_locking import held_by_another_process

TABLE = Path(__file__).with_name("answers.md")
pytestmark = [pytest.mark.usefixtures("hasty_disk"), pytest.mark.requirement("ADM-1", "CFG-2")]


@dataclass(frozen=True)
class Row:
    situation: str
    command: str
    code: int
    answer: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.situation}: {self.command}"


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text().splitlines()[2:]:
        situation, command, code, answer = (it.strip() for it in line.strip("|").split("|"))
        parts = tuple(part for it in answer.split("…") if (part := it.strip()))
        found.append(Row(situation, command.strip("`"), int(code), parts))
    return found


ROWS = rows()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`orders` (3 partitions, five records in the first), `clicks` and `my.events`."""
    path = tmp_path_factory.mktemp("template") / "data"
    with open_desk([str(path)], DISK, FixedClock(NOW_MS)) as desk:
        desk.create_topic("orders", 3, {"cleanup.policy": "compact,delete"})
        desk.create_topic("clicks")
        desk.create_topic("my.events", 1, {"cleanup.policy": "compact"})
        log = desk.service.store.get(TopicPartition("orders", 0))
        for record in records("abcab"):
            log.append_records([record])
    return path


def _placed(text: str, data: Path) -> str:
    return re.sub(r"\bDATA\b", str(data), text)


Lay = Callable[[Path, Path], None]


def _topics(template: Path, data: Path) -> None:
    shutil.copytree(template, data)


def _kafka(_: Path, data: Path) -> None:
    for number in range(2):
        write_log(data / f"orders-{number}", [[records("ab")]])


def _damaged(template: Path, data: Path) -> None:
    _topics(template, data)
    path = data / "stratalog-topics"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def _lost(template: Path, data: Path) -> None:
    _topics(template, data)
    shutil.rmtree(data / "orders-1")


def _paused(template: Path, data: Path) -> None:
    _topics(template, data)
    write_note(DISK, str(data / "orders-0"), Note(paused=True))


def _failing(template: Path, data: Path) -> None:
    _topics(template, data)
    failure = Failure("no luck", 1, NOW_MS, NOW_MS + 5)
    write_note(DISK, str(data / "orders-0"), Note(failure=failure))


def _alone(_: Path, data: Path) -> None:
    """`orders`, of which offsets 0 to 2 are only in a ledger."""
    with open_desk([str(data)], DISK, FixedClock(NOW_MS)) as desk:
        key = TopicPartition("orders", 0)
        desk.create_topic(key.topic, 1, {"compaction.mode": "ledger"})
        log = desk.service.store.get(key)
        for record in records("abcab"):
            log.append_records([record])
        desk.service.compact(key)
        desk.service.store.delete_records(key, 3)


SITUATIONS: dict[str, Lay] = {
    "topics": _topics,
    "locked": _topics,
    "nowhere": _topics,
    "kafka": _kafka,
    "empty": lambda _, data: data.mkdir(),
    "missing": lambda _, data: None,
    "damaged": _damaged,
    "lost": _lost,
    "paused": _paused,
    "failing": _failing,
    "alone": _alone,
}


class Place:
    """A directory in a situation, and what the row's command does there."""

    def __init__(self, tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch):
        self.data, self._template, self._patch = tmp_path / "data", template, monkeypatch
        self.offsets = tmp_path / "offsets.json"
        self.offsets.write_text(
            '{"partitions": [{"topic": "orders", "partition": 0, "offset": 2}], "version": 1}'
        )

    def run(self, row: Row, shell: Shell, *more: str) -> tuple[int, str, str]:
        SITUATIONS[row.situation](self._template, self.data)
        self._patch.setenv("STRATALOG_DATA", str(self.data))
        if row.situation == "nowhere":
            self._patch.delenv("STRATALOG_DATA")
        before = tree(self.data.parent)
        command = _placed(row.command, self.data).replace("OFFSETS", str(self.offsets))
        with ExitStack() as stack:
            if row.situation == "locked":
                stack.enter_context(held_by_another_process(self.data))
            done = shell(*shlex.split(command), *more)
        if row.code or "--dry-run" in row.command:
            assert _told(tree(self.data.parent)) == _told(before)
        shutil.rmtree(self.data, ignore_errors=True)
        return done.code, done.out, done.err


def _told(found: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """But for what opening and closing logs writes anew."""
    kept = (".log", "stratalog-topics", "cleaner-note", "-checkpoint")
    return {path: it for path, it in found.items() if path.endswith(kept)}


@pytest.fixture
def place(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, template, monkeypatch)


def assert_answers(row: Row, printed: str, data: Path) -> None:
    text = " ".join(printed.split())
    for part in row.answer:
        wanted = " ".join(_placed(part, data).split())
        assert wanted in text, f"{wanted!r} is not in {text!r}"
        text = text[text.index(wanted) + len(wanted) :]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_command_answers_as_the_table_says(row: Row, place: Place, shell: Shell) -> None:
    code, out, err = place.run(row, shell)
    assert code == row.code, (out, err)
    assert_answers(row, out + err, place.data)
    assert "Traceback" not in err
    if row.code == 1 and not out:
        assert re.fullmatch(r"error: [^\n]+\n", err), err

    code, out, _ = place.run(row, shell, "--format", "json")
    assert code == row.code
    found = json.loads(out)
    assert isinstance(found, dict)
    assert ("error" in found or not found["ok"]) == (row.code != 0)


def firsts(found: Sequence[Row]) -> list[Row]:
    """Of each command and exit code the first row."""
    kept: dict[tuple[str, ...], Row] = {}
    for row in found:
        kept.setdefault((*row.command.split()[:2], str(row.code)), row)
    return list(kept.values())


LISTS = firsts([row for row in ROWS if row.situation == "topics" and row.code == 0])


@pytest.mark.parametrize("row", LISTS, ids=str)
def test_lines_of_tabs_have_no_head_and_end_with_error_and_message(
    row: Row, place: Place, shell: Shell
) -> None:
    code, out, _ = place.run(row, shell, "--format", "tsv")
    assert code == 0
    lines = [line.split("\t") for line in out.splitlines()]
    assert all(line[-2:] == ["-", "-"] for line in lines)
    assert len({len(line) for line in lines}) <= 1


def test_the_table_names_every_command_and_situation() -> None:
    commands = {tuple(row.command.split()[:2]) for row in ROWS}
    assert commands == {
        *(("topic", it) for it in ("list", "create", "describe", "alter", "delete")),
        ("topic", "describe-storage"),
        *(("config", it) for it in ("describe", "alter")),
        *(("records", it) for it in ("delete", "trim-prefix")),
        ("log-dirs", "describe"),
        *(("compaction", it) for it in ("run", "cancel", "status", "explain", "history")),
        *(("compaction", it) for it in ("pause", "resume")),
        *(("cleaner", it) for it in ("status", "retry")),
    }
    assert {row.situation for row in ROWS} == SITUATIONS.keys()
