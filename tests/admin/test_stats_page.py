"""The page of `stats --html`: its figures are those of the other commands, and foreign bytes in it
are text."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stratalog.admin.cleaning import status
from stratalog.admin.directories import find_partitions
from stratalog.admin.page import bars, content, words
from stratalog.admin.page.content import content_of
from stratalog.admin.page.figures import Figures, Section, SegmentFigures, Unread, Wanted, gather
from stratalog.admin.page.render import page_of
from stratalog.admin.report import Mode
from stratalog.admin.retention import plan_retention
from stratalog.admin.stats import partition_stats
from stratalog.base.clock import FixedClock
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import resolve
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, records, run, tree, write_log

HOSTILE = (
    b"</script><img src=x onerror=alert(1)>",
    b"'\"><svg/onload=alert(2)>",
    b"</style></title><script>alert(3)</script>",
    b"{{ 7*7 }}{% raw %}{# x #}",
    b"javascript:alert(4)",
    b"\xff\xfe\x00\x01",
    b"]]>&amp;&#60;",
    "\u202eright to left\u202c".encode(),
    b"long" * 1000,
    b"",
)
VOID = {"meta"}


def figures_of(*targets: Path, top: int = 10, **config: str) -> Figures:
    settings = resolve(
        {name.replace("_", "."): text for name, text in config.items()},
        {"cleanup.policy": ("compact",)},
    )
    wanted = Wanted(lambda _: settings, top, lambda disk: LocalEngine(disk, threads=2))
    paths = [str(target) for target in targets]
    return gather(paths, wanted, DISK, FixedClock(NOW_MS), lambda _: None)


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hot and hostile keys, compressed, cleaned before, without keys, empty."""
    root = tmp_path_factory.mktemp("page") / "data"
    hostile = [NewRecord(key, b"value", NOW_MS) for key in HOSTILE for _ in range(3)]
    write_log(root / "hostile-0", [[hostile], [records("ab")], [records("a")]])
    write_log(
        root / "packed-0",
        [[records(f"k{n % 7}" for n in range(500))], [records("xyz", None)]],
        codec=Codec.ZSTD,
    )
    done = write_log(
        root / "cleaned-0", [[records("abcab", at_ms=NOW_MS - 50 * HOUR_MS)], [records("cd")]]
    )
    run([done], Mode.IN_PLACE)
    keyless = [NewRecord(None, b"x" * 50, NOW_MS)] * 20
    write_log(root / "keyless-0", [[keyless], [keyless]], policy=("delete",))
    write_log(root / "empty-0", [[]])
    return root


class _Reader(HTMLParser):
    """What a browser would make of the page: elements, attributes, texts."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


# ---------------------------------------------------------------- figures


@pytest.mark.requirement("CLN-10")
def test_figures_are_those_of_the_other_commands(log_dir: Path) -> None:
    before = tree(log_dir)
    figures = figures_of(log_dir)
    assert tree(log_dir) == before
    assert figures.is_ok
    settings = resolve({}, {"cleanup.policy": ("compact",)})
    clock = FixedClock(NOW_MS)
    looks = status([str(log_dir)], lambda _: settings, DISK, clock)
    dry = {item.partition: item for item in run([log_dir], Mode.DRY_RUN, top=10).partitions}
    kept = {
        item.partition: item
        for item in plan_retention([str(log_dir)], settings, DISK, clock).partitions
    }
    assert len(figures.partitions) == len(dry) == 5
    for place, look in zip(find_partitions([str(log_dir)], DISK), looks.found, strict=True):
        found = next(item for item in figures.partitions if item.name == place.name)
        assert found.stats == partition_stats(place, settings, DISK, clock, lambda _: None)
        assert found.dry_run == dry[place.name]
        assert found.retention == kept[place.name]
        assert found.look == look
        sections = bars.by_section(found.segments)
        assert tuple(sections.values()) == (
            look.sections.clean,
            look.sections.cleanable,
            look.sections.uncleanable,
            look.sections.active,
        )
        assert sum(sections.values()) == found.bytes_before
        kept_bytes = sum(segment.bytes_after for segment in found.segments)
        assert found.bytes_before - kept_bytes == found.saved_bytes
    saved = [item.saved_bytes for item in figures.partitions]
    assert saved == sorted(saved, reverse=True)
    assert figures.saved_bytes == sum(saved) > 0
    by_name = {item.name: item for item in figures.partitions}
    assert by_name["packed-0"].duplicates == 493
    assert (by_name["keyless-0"].duplicates, by_name["empty-0"].duplicates) == (0, 0)


def test_damage_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    write_log(tmp_path / "a-0", [[records("aab")], []])
    damaged = write_log(tmp_path / "b-0", [[records("aab")], []]) / f"{0:020d}.log"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    figures = figures_of(tmp_path)
    assert [item.name for item in figures.partitions] == ["a-0"]
    (unread,) = figures.unread
    assert (unread.partition, "CRC-32C" in unread.error) == ("b-0", True)
    page = page_of(figures, 10)
    assert "1 partition could not be read" in page
    assert unread.error in page
    only = page_of(figures_of(tmp_path / "b-0"), 10)
    assert "Nothing could be read" in only
    ET.fromstring(only.partition("\n")[2])


# ---------------------------------------------------------------- the page


def test_foreign_bytes_are_text_and_nothing_else(log_dir: Path) -> None:
    figures = figures_of(log_dir, top=50)
    evil = "/tmp/<img src=x onerror=alert(5)>" + os.fsdecode(b"\xff") + "\u202e\n"
    figures = replace(
        figures,
        directories=(evil,),
        unread=(Unread("x-0", evil, f"{evil}: <script>alert(6)</script>"),),
    )
    page = page_of(figures, 50)
    page.encode()
    read = _Reader(page)
    assert read.open == []
    assert read.tags == {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section"),
        *("h1", "h2", "h3", "p", "strong", "span", "code", "bdi", "div", "dl", "dt", "dd"),
        *("ul", "li", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
        *("svg", "rect"),
    }
    assert read.attributes == {
        *("lang", "charset", "name", "content", "http-equiv", "id", "class", "role", "open"),
        *("aria-label", "aria-labelledby", "aria-hidden", "tabindex", "scope", "colspan"),
        *("data-head", "x", "y", "width", "height"),
    }
    texts = set(read.texts)
    for key in HOSTILE[:5]:
        assert key.decode() in texts
    assert "hex:fffe0001" in texts
    assert "]]>&amp;&#60;" in texts
    assert f"hex:{HOSTILE[7].hex()}" in texts
    assert f"{'long' * 20}… and 3,920 characters more" in texts
    assert "the empty key" in texts
    assert any("\\udcff\\u202e\\n" in text for text in texts)
    assert not any(letter in page for letter in "\u202e\x00")


@pytest.mark.parametrize("top", [0, 10])
def test_the_page_is_whole_and_needs_nothing(log_dir: Path, top: int) -> None:
    page = page_of(figures_of(log_dir, top=top), top)
    doctype, _, rest = page.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    root = ET.fromstring(rest)  # well-formed, too
    for word in ("http://", "https://", "url(", "@import", "<script", "<link"):
        assert word not in page
    assert "prefers-color-scheme: dark" in page
    (style,) = root.iter("style")
    digest = base64.b64encode(hashlib.sha256((style.text or "").encode()).digest()).decode()
    (policy,) = [meta.get("content", "") for meta in root.iter("meta") if meta.get("http-equiv")]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    plots = [svg for svg in root.iter("svg") if svg.get("aria-hidden") != "true"]
    assert len(plots) > 15
    for svg in plots:
        assert svg.get("role") == "img"
        assert svg.get("aria-label")
        for rect in svg.iter("rect"):
            start, width, top_, height = (
                float((rect.get(name) or "").removesuffix("%"))
                for name in ("x", "width", "y", "height")
            )
            assert 0 <= start <= start + width <= 100.01
            assert 0 <= top_ <= top_ + height <= 100.01
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for section in root.iter("section"):
        assert section.get("aria-labelledby") in ids
    assert ("keys" in ids) == (top > 0)
    assert ("It names keys" in page) == (top > 0)


def test_every_partition_of_many_is_there(log_dir: Path) -> None:
    one = figures_of(log_dir)
    packed = next(item for item in one.partitions if item.name == "packed-0")
    many = [replace(packed, stats=replace(packed.stats, partition=f"t-{n}")) for n in range(200)]
    figures = replace(one, partitions=tuple(many))
    found = content_of(figures, 10)
    assert len(found.cards) == content.CARDS
    rest = 200 - content.CARDS
    saved = words.size(rest * packed.saved_bytes)
    assert found.cards_rest.startswith(f"{rest} more partitions would save {saved} of")
    assert len(found.dirty) == content.ROWS
    assert found.dirty[-1].name == f"{200 - content.ROWS + 1} more partitions"
    dirty = sum(s.bytes_before for s in packed.segments if s.section is Section.CLEANABLE)
    assert found.dirty[-1].cells[1] == words.size((200 - content.ROWS + 1) * dirty)
    assert {row.name for row in found.partitions} == {f"t-{n}" for n in range(200)}
    assert len(page_of(figures, 10)) < 400_000
    assert found.why[0].endswith("records of keys that were written again later.")
    assert len(found.why) == 1  # all have the same share


def test_sentences(log_dir: Path, tmp_path: Path) -> None:
    found = content_of(figures_of(log_dir), 10)
    assert found.saved
    (sentence,) = found.why  # no few partitions make up most of it
    assert sentence == (
        "554 of 580 records would go; 93\N{NO-BREAK SPACE}% of them are older records of keys that "
        "were written again later."
    )
    few = figures_of(log_dir / "hostile-0", log_dir / "cleaned-0", log_dir / "empty-0")
    assert content_of(few, 10).why[1] == (
        "hostile-0 alone has 100\N{NO-BREAK SPACE}% of the saving."
    )
    empty = content_of(figures_of(log_dir / "empty-0"), 10)
    assert (empty.saved, empty.whole, empty.why) == (
        "",
        "0",
        ("Nothing would go: the log is empty.",),
    )
    write_log(tmp_path / "x-0", [[records("abc")]])
    distinct = content_of(figures_of(tmp_path), 10)
    assert distinct.why == ("Nothing would go: every record is the newest of its key.",)
    assert "nothing of" in page_of(figures_of(tmp_path), 10)
    assert "no cleanup.policy contains delete" in found.retention[0]
    both = figures_of(log_dir, cleanup_policy="compact,delete", retention_bytes="1")
    going = [item.retention.freed_bytes for item in both.partitions if item.retention.freed_bytes]
    freed = words.size(sum(going))
    assert len(going) == 3
    assert content_of(both, 10).retention[0] == (
        f"Retention would delete {freed} now, in 3 of the 5 partitions whose cleanup.policy has "
        "delete."
    )


def test_a_key_count_that_is_not_known_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "x-0", [[records(f"k{n}" for n in range(3000))]])
    monkeypatch.setattr("stratalog.admin.stats._MAP_BYTES", 24 * 512)
    figures = figures_of(tmp_path)
    assert figures.partitions[0].duplicates is None
    found = content_of(figures, 10)
    assert found.partitions[0].cells[4:6] == ("too many", "-")
    assert "too many to tell" in page_of(figures, 10)


# ---------------------------------------------------------------- bars and words


def test_drawings_of_any_log_add_up(count_cases: Callable[[str, int], None]) -> None:
    rng = random.Random(7)
    for _ in range(300):
        segments = []
        for n in range(rng.choice([0, 1, 2, 47, 48, 49, 400])):
            before = rng.choice([0, 1, 1000, rng.randrange(1, 1 << 30)])
            after = rng.choice([0, before, rng.randrange(before + 1), before + 5])
            section = rng.choice(list(Section))
            segments.append(SegmentFigures(n, section, before, after, NOW_MS))
        parts = bars.drawing(segments, "x").parts
        whole = sum(segment.bytes_before for segment in segments)
        assert bool(parts) == (whole > 0)
        if whole == 0:
            continue
        area = sum(part.width * part.height for part in parts) / 10_000
        assert area == pytest.approx(1, abs=0.01)
        assert len({part.start for part in parts}) <= 2 * 48 + 1
        assert sum(p.width for p in bars.sections(segments, "x").parts) == pytest.approx(
            100, abs=0.01
        )
    count_cases("drawings of logs", 300)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0 %"),
        (0, 7, "0 %"),
        (1, 1000, "under 1 %"),
        (35, 100, "35 %"),
        (999, 1000, "over 99 %"),
        (7, 7, "100 %"),
    ],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert words.percent(part, whole).replace("\N{NO-BREAK SPACE}", " ") == text


def test_words() -> None:
    assert [words.size(n) for n in (0, 1, 1536, -2048)] == ["0", "1 Byte", "1.5 KiB", "-2.0 KiB"]
    assert words.moment(NOW_MS) == "2023-11-14 22:13 UTC"
    assert [words.moment(None), words.moment(-1), words.moment(1 << 62)] == [
        "-",
        "-",
        f"{1 << 62} ms",
    ]
