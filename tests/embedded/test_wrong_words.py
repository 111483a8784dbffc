"""Whatever a program hands in that cannot be: one error of the tree, in one line; never a crash."""

from __future__ import annotations

import ast
import datetime as dt
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.base import errors
from stratalog.embedded import words
from tests.embedded.driving import opened

pytestmark = pytest.mark.usefixtures("hasty_disk")

HALF = "\ud800"
"""Half a surrogate: a text of Python's, and none of UTF-8's."""
HUGE = 10**5000
"""A number that Python does not write."""
RELEASED = memoryview(b"x")
RELEASED.release()
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


class Lines:
    """Has a text of several lines, as arrays and tables have."""

    def __repr__(self) -> str:
        return "first\nsecond" * 50


@dataclass(frozen=True)
class Open:
    """What the calls are made on. Any: they are wrong on purpose."""

    at: Path
    store: Any
    topic: Any
    consumer: Any


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Open]:
    with opened(tmp_path / "data") as store:
        topic = store.create_topic("t", partitions=2)
        topic.append("a", "1", partition=0)
        consumer = store.consumer("t", group="g", auto_offset_reset="earliest")
        yield Open(tmp_path, store, topic, consumer)
        assert store.topics() == ["t"]
        assert topic.config == {}
        assert sum(1 for _ in topic.read()) == 1
        assert len(consumer.poll()) == 1


Calls = dict[str, tuple[Callable[[Open], object], ...]]
REFUSED: Calls = {
    "give a directory to open": (
        lambda _: stratalog.open(None),  # type: ignore[arg-type]
        lambda _: stratalog.open(5),  # type: ignore[arg-type]
        lambda _: stratalog.open(b"data"),  # type: ignore[arg-type]
        lambda _: stratalog.open({"data": 1}),
    ),
    "a directory's name is text or a path": (
        lambda _: stratalog.open([None]),  # type: ignore[list-item]
        lambda _: stratalog.open([b"data"]),  # type: ignore[list-item]
    ),
    "cannot be the name of a directory": (
        lambda o: stratalog.open(f"{o.at}/a\0b"),
        lambda o: stratalog.open(f"{o.at}/{HALF}"),
    ),
    "": (  # other floors say it
        lambda o: stratalog.open(o.at / ("a" * 5000)),
        lambda o: o.topic.configure({"min.compaction.lag.ms": "9" * 5000}),
    ),
    "it must be True or False": (
        lambda o: stratalog.open(o.at / "b", background="no"),  # type: ignore[arg-type]
        lambda o: o.store.create_topic("u", if_not_exists="no"),
        lambda o: o.store.delete_topic("t", if_exists=1),
        lambda o: o.store.consumer("t", read_compacted="no"),
        lambda o: o.store.consumer("t", read_compacted=None),
        lambda o: o.topic.compact(wait="no"),
    ),
    "settings are a mapping of names": (
        lambda o: stratalog.open(o.at / "b", config=[("a", "b")]),  # type: ignore[arg-type]
        lambda o: o.topic.configure(5),
    ),
    "min.compaction.lag.ms": (
        lambda o: o.topic.configure({"min.compaction.lag.ms": None}),
        lambda o: o.topic.configure({"min.compaction.lag.ms": HUGE}),
        lambda o: o.topic.configure({"min.compaction.lag.ms": float("nan")}),
        lambda o: o.topic.configure({"min.compaction.lag.ms": NESTED}),
    ),
    "a setting cannot be": (
        lambda o: o.topic.configure({HUGE: 1}),
        lambda o: o.topic.configure({HALF: 1}),
        lambda o: o.topic.configure({"retention\nms": 1}),
        lambda o: o.store.create_topic("u", config={Lines(): 1}),
        lambda o: stratalog.open(o.at / "b", config={HALF: 1}),
    ),
    "retention.ms cannot be .*: it is one line": (
        lambda o: o.topic.configure({"retention.ms": "1\n2"}),
    ),
    "throttled.replicas cannot be": (
        lambda o: o.topic.configure({"leader.replication.throttled.replicas": HALF}),
        lambda o: o.topic.configure({"leader.replication.throttled.replicas": [HALF]}),
    ),
    "unset is a list of names": (
        lambda o: o.topic.configure(unset="retention.ms"),
        lambda o: o.topic.configure(unset=5),
        lambda o: o.topic.configure(unset=[HUGE]),
    ),
    "a topic's name is text": (
        lambda o: o.store.create_topic(5),
        lambda o: o.store.create_topic(None),
        lambda o: o.store.topic([]),
        lambda o: o.store.topic(Lines()),
        lambda o: o.store.delete_topic(HUGE),
        lambda o: o.store.consumer([5]),
        lambda o: o.consumer.assign([(["t"], 0)]),
        lambda o: o.consumer.seek(["t"], 0, 0),
        lambda o: o.consumer.committed([], 0),
        lambda o: o.consumer.position(None, 0),
    ),
    "give the name of a topic, or a list of them": (
        lambda o: o.store.consumer(5),
        lambda o: o.store.consumer(None),
        lambda o: o.store.consumer({"t": 1}),
        lambda o: o.consumer.subscribe(None),
        lambda o: o.consumer.subscribe(5),
        lambda o: o.consumer.subscribe(b"t"),
    ),
    "is no name of a group": (
        lambda o: o.store.consumer("t", group=5),
        lambda o: o.store.consumer("t", group=HALF),
        lambda o: o.store.consumer("t", group=HUGE),
        lambda o: o.store.consumer("t", group=Lines()),
    ),
    "a key is bytes, str or None": (lambda o: o.topic.append(HUGE, "v"),),
    "cannot be": (
        lambda o: o.topic.append(HALF, "v"),
        lambda o: o.topic.append("k", HALF),
        lambda o: o.topic.append("k", HALF * 10_000),
        lambda o: o.topic.append("k", RELEASED),
        lambda o: o.topic.append("k", "v", headers=[(HALF, "x")]),
        lambda o: o.topic.append("k", "v", headers=[("x", HALF)]),
        lambda o: o.topic.append_many([("k", HALF)]),
    ),
    "headers are a list": (
        lambda o: o.topic.append("k", "v", headers=None),
        lambda o: o.topic.append("k", "v", headers={"x": "y"}),
        lambda o: o.topic.append("k", "v", headers="ab"),
        lambda o: o.topic.append("k", "v", headers=5),
        lambda o: o.topic.append("k", "v", headers=0),
        lambda o: o.topic.append("k", "v", headers=b""),
        lambda o: o.topic.append_many([("k", "v", None, None)]),
    ),
    r"a header is \(name, value\)": (
        lambda o: o.topic.append("k", "v", headers=[("x",)]),
        lambda o: o.topic.append("k", "v", headers=["ab"]),
        lambda o: o.topic.append("k", "v", headers=[None]),
        lambda o: o.topic.append("k", "v", headers=[Lines()]),
    ),
    "is no time that a record can have": (
        lambda o: o.topic.append("k", "v", timestamp=HUGE),
        lambda o: o.topic.append("k", "v", timestamp=dt.datetime.max),
    ),
    "ms since 1970 or a datetime": (lambda o: o.topic.append("k", "v", timestamp=Lines()),),
    r"records are a list of \(key, value\)": (
        lambda o: o.topic.append_many(None),
        lambda o: o.topic.append_many(5),
        lambda o: o.topic.append_many("ab"),
        lambda o: o.topic.append_many({"a": "b"}),
    ),
    r"a record is \(key, value": (
        lambda o: o.topic.append_many([None]),
        lambda o: o.topic.append_many([Lines()]),
        lambda o: o.topic.append_many(("k", "v")),
    ),
    "has partitions 0 to 1, not": (
        lambda o: o.topic.append("k", "v", partition=HUGE),
        lambda o: o.topic.read(partitions=[Lines()]),
        lambda o: o.topic.status(partition=Lines()),
        lambda o: o.consumer.assign([("t", [])]),
    ),
    "partitions are numbers": (
        lambda o: o.topic.read(partitions=[[0]]),
        lambda o: o.topic.read(partitions={0: 1}),
        lambda o: o.topic.read(partitions=1.5),
    ),
    "^(view|isolation|auto_offset_reset) is .*; it must be": (
        lambda o: o.topic.read(["raw"]),
        lambda o: o.topic.read(Lines()),
        lambda o: o.topic.read(isolation=""),
        lambda o: o.topic.read(isolation=0),
        lambda o: o.store.consumer("t", auto_offset_reset=None),
    ),
    "^start": (
        lambda o: o.topic.read(start=HUGE),
        lambda o: o.topic.read(start=[0]),
        lambda o: o.topic.read(start={True: 0}),
        lambda o: o.topic.read(start={0: "0"}),
    ),
    "^as_?[oO]f": (
        lambda o: o.topic.read(as_of=HUGE),
        lambda o: o.topic.read(as_of=3.5),
        lambda o: o.topic.read(as_of="\0"),
        lambda o: o.topic.read(as_of="9" * 5000),
        lambda o: o.topic.read(as_of=NESTED),
        lambda o: o.topic.read(as_of=Lines()),
        lambda o: o.store.consumer("t", as_of=HUGE),
    ),
    "columns must be a list of names": (
        lambda o: o.topic.read_arrow(columns=5),
        lambda o: o.topic.read_arrow(columns=[5]),
        lambda o: o.topic.read_arrow(columns=[HUGE]),
        lambda o: o.topic.read_arrow(columns="key"),
        lambda o: o.topic.read_arrow(columns=[]),
    ),
    "^limit is": (
        lambda o: o.topic.history(limit=-1),
        lambda o: o.topic.history(limit=0),
        lambda o: o.topic.history(limit="x"),
        lambda o: o.topic.history(limit=True),
        lambda o: o.topic.history(limit=HUGE),
    ),
    r"partitions are a list of \(topic, number\)": (
        lambda o: o.consumer.assign(None),
        lambda o: o.consumer.assign("t"),
        lambda o: o.consumer.assign({"t": 0}),
    ),
    r"a partition is \(topic, number\)": (
        lambda o: o.consumer.assign([Lines()]),
        lambda o: o.consumer.commit({"t": 1}),
    ),
    "^x y*-0 is not assigned": (
        lambda o: o.consumer.seek("x\ny", 0, 0),
        lambda o: o.consumer.seek("x\n" + "y" * 5000, 0, 0),
    ),
    "^there is no topic 'a": (lambda o: o.store.topic("a" * 5000),),
    "offsets are a mapping": (
        lambda o: o.consumer.commit([1]),
        lambda o: o.consumer.commit(5),
    ),
    "^(partition|offset|max_records|timeout) is .*; it must be": (
        lambda o: o.consumer.seek("t", [0], 0),
        lambda o: o.consumer.seek("t", 0, HUGE),
        lambda o: o.consumer.commit({("t", 0): None}),
        lambda o: o.consumer.committed("t", HUGE),
        lambda o: o.consumer.poll(HUGE),
        lambda o: o.consumer.poll(timeout=True),
        lambda o: o.consumer.poll(timeout=float("nan")),
        lambda o: o.consumer.poll(timeout=HUGE),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(reason: str, there: Open) -> None:
    for number, call in enumerate(REFUSED[reason]):
        with pytest.raises(stratalog.StratalogError) as refusal:
            call(there)
        told = str(refusal.value)
        assert re.search(reason, told), (number, told)
        assert len(told.splitlines()) == 1, (number, told)
        assert len(told) < 300 or not reason, (number, told)
        assert isinstance(refusal.value, stratalog.UsageError) or not reason, (number, told)


def test_what_is_not_a_list_but_like_one_is_taken(there: Open, tmp_path: Path) -> None:
    with opened(tmp_path / "more") as store:
        topic = store.create_topic("t", partitions=2)
        headers = (pair for pair in (["h", "1"],))
        topic.append("k", "v", headers=headers)  # type: ignore[arg-type]
        topic.append_many((key, "v") for key in "ab")
        found = list(topic.read(partitions={0, 1}))
        assert sorted(record.key or b"" for record in found) == [b"a", b"b", b"k"]
        assert [record.headers for record in found if record.headers] == [(("h", b"1"),)]
        assert store.consumer([]).assignment() == []
        assert store.consumer(iter(["t"])).assignment() == [("t", 0), ("t", 1)]
        assert len(topic.history(limit=1)["partitions"]) == 2
    assert words.short(Lines()) == "first secondfirst secondfirst secondfirst secondfirst sec..."


def test_settings_without_effect_are_told_where_the_store_is_opened(tmp_path: Path) -> None:
    given = {"log.retention.mss": 1, "compaction.mode": "ledger", "log.retention.ms": 7}
    with (
        pytest.warns(UserWarning, match="have no effect") as told,
        stratalog.open(tmp_path, background=False, config=given) as store,
    ):
        assert store.create_topic("t").settings()["retention.ms"] == "7"
    [warning] = told
    assert str(warning.message) == (
        "of config these have no effect here: "
        "compaction.mode (log.cleaner.compaction.mode), log.retention.mss"
    )
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with stratalog.open(tmp_path, background=False, config={"log.retention.ms": 7}) as store:
            assert store.topics() == ["t"]


def test_every_error_can_be_caught_by_its_name() -> None:
    tree = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.StratalogError)
    }
    given = {name: getattr(stratalog, name) for name in dir(stratalog) if name.endswith("Error")}
    assert given == tree
    package = Path(stratalog.__file__).parent
    said = ast.parse((package / "__init__.pyi").read_text(encoding="utf-8"))
    [listed] = [node.value for node in said.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(listed) == dir(stratalog)
    named = {
        name
        for path in (package / "embedded").glob("*.py")
        for name in re.findall(r"`([A-Z]\w+Error)`", path.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= given.keys()
