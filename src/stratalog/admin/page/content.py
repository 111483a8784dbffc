"""Figures -> what the page shows: sentences, bars, rows. Pure; texts are escaped by the template.

Invariants
- I1  Every partition is on the page: plots show the largest and sum up the rest, the table has all.
- I2  Foreign text is printable, and keys are of bounded length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from stratalog.admin.page import bars
from stratalog.admin.page.bars import Bar
from stratalog.admin.page.figures import Figures, PartitionFigures, Section, SegmentFigures
from stratalog.admin.page.words import day, moment, percent, printable, shortened, size
from stratalog.clean.job import Drops

CARDS = 12
"""Partitions whose insides are drawn."""
ROWS = 24
"""Partitions that a chart has rows for."""
_DAY_MS = 86_400_000

_REASONS = {
    "superseded": ("older records", "of keys that were written again later"),
    "tombstone_expired": ("tombstones", "that are past delete.retention.ms"),
    "aborted": ("aborted records", "of transactions that were given up"),
    "no_key": ("records without a key", "which a compacted topic does not keep"),
    "control_expired": ("transaction markers", "that nothing needs any more"),
}
_AGES = (
    ("under an hour", 3_600_000),
    ("an hour to a day", _DAY_MS),
    ("a day to a week", 7 * _DAY_MS),
    ("a week to 30 days", 30 * _DAY_MS),
    ("30 days to a year", 365 * _DAY_MS),
    ("over a year", None),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a chart and of the table beside it. `note` is small print below `name`, `remark`
    below the bar."""

    name: str
    bar: Bar
    cells: tuple[str, ...]
    note: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A partition drawn: its segments from the oldest on, and below them where the cleaner is."""

    name: str
    saved: str
    whole: str
    share: str
    drawing: Bar
    sections: Bar
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """One number and what it is."""

    value: str
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """All of the page. Of `keys`, `cells` are partition, records and bytes."""

    made_at: str
    directories: tuple[str, ...]
    saved: str
    whole: str
    share: str
    why: tuple[str, ...]
    overall: Bar
    tiles: tuple[Tile, ...]
    reasons: tuple[Row, ...]
    cards: tuple[Card, ...]
    cards_rest: str
    dirty: tuple[Row, ...]
    legend: tuple[tuple[str, str], ...]
    keys: tuple[Row, ...]
    ages: tuple[Row, ...]
    retention: tuple[str, ...]
    heads: tuple[str, ...]
    partitions: tuple[Row, ...]
    unread: tuple[tuple[str, str], ...]


def content_of(figures: Figures, top: int) -> Content:
    """The page's content. `top`: how many keys to name in all."""
    saved, whole = figures.saved_bytes, figures.bytes_before
    several = len({item.look.place.log_dir for item in figures.partitions}) > 1
    return Content(
        made_at=moment(figures.now_ms),
        directories=tuple(map(printable, figures.directories)),
        saved=size(saved) if saved > 0 else "",
        whole=size(whole),
        share=percent(saved, whole),
        why=why(figures),
        overall=bars.split(whole, saved),
        tiles=_tiles(figures),
        reasons=_reasons(figures),
        cards=tuple(map(_card, figures.partitions[:CARDS])),
        cards_rest=_cards_rest(figures.partitions[CARDS:]),
        dirty=_dirty(figures.partitions),
        legend=tuple((section.value, text) for section, text in bars.SECTIONS.items()),
        keys=_keys(figures, top),
        ages=_ages(figures),
        retention=_retention(figures),
        heads=_HEADS,
        partitions=tuple(_line(item, figures, several=several) for item in figures.partitions),
        unread=tuple(
            (item.partition, printable(item.error or item.directory)) for item in figures.unread
        ),
    )


# ------------------------------------------------------------------ words


def why(figures: Figures) -> tuple[str, ...]:
    """The headline's reason in one sentence, and another if few partitions make up most of it."""
    counts = figures.counts
    dropped, saved = counts.dropped, figures.saved_bytes
    if not figures.partitions:
        return ()
    if dropped.total == 0:
        return (_why_nothing(figures),)
    reason = max(_REASONS, key=lambda name: getattr(dropped, name))
    noun, detail = _REASONS[reason]
    records = sum(item.stats.records + item.stats.markers for item in figures.partitions)
    most = getattr(dropped, reason)
    share = "all" if most == dropped.total else percent(most, dropped.total)
    sentences = [
        f"{dropped.total:,} of {records:,} records would go; {share} of them are {noun} {detail}."
    ]
    return (*sentences, *_concentration(figures.partitions, saved))


def _concentration(partitions: Sequence[PartitionFigures], saved: int) -> list[str]:
    """How many partitions make up 90 % of what is saved, if those are few."""
    total, count = 0, 0
    while total < 0.9 * saved and count < len(partitions):
        total += partitions[count].saved_bytes
        count += 1
    if count == 0 or 2 * count > len(partitions):
        return []
    share = percent(min(total, saved), saved)
    if count == 1:
        return [f"{partitions[0].name} alone has {share} of the saving."]
    return [f"{count:,} of {len(partitions):,} partitions have {share} of the saving."]


def _why_nothing(figures: Figures) -> str:
    if figures.saved_bytes > 0:
        return "No record would go; what is saved are batches that are empty, and their headers."
    reasons = Counter(
        item.dry_run.skipped or "every record is the newest of its key"
        for item in figures.partitions
    )
    reason, count = reasons.most_common(1)[0]
    if count == len(figures.partitions) == 1:
        return f"Nothing would go: {reason}."
    return f"No record would go. Of {count:,} of {len(figures.partitions):,} partitions: {reason}."


# ------------------------------------------------------------------ numbers


def _tiles(figures: Figures) -> tuple[Tile, ...]:
    stats = [item.stats for item in figures.partitions]
    known = [item.keys for item in stats if item.keys is not None]
    duplicates = [item.duplicates for item in figures.partitions if item.duplicates is not None]
    unknown = len(stats) - len(known)
    note = f"and more: in {unknown:,} partitions there are too many to tell" if unknown else ""
    records, keyless = sum(item.records for item in stats), sum(item.keyless for item in stats)
    times = [item.oldest_timestamp for item in stats if item.oldest_timestamp is not None]
    newest = [item.newest_timestamp for item in stats if item.newest_timestamp is not None]
    batches = sum(item.batches for item in stats)
    more = f"{keyless:,} without a key" if keyless else f"batches: {batches:,}"
    return (
        Tile(f"{len(stats):,}", "partitions", f"segments: {sum(s.segments for s in stats):,}"),
        Tile(f"{records:,}", "records", more),
        Tile(f"{sum(known):,}", "distinct keys", note),
        Tile(f"{sum(duplicates):,}", "duplicates", note or "whose key has a newer record"),
        Tile(f"{sum(s.tombstones for s in stats):,}", "tombstones", "which delete their key"),
        Tile(
            day(min(times, default=None)),
            "oldest record",
            f"the newest: {day(max(newest, default=None))}",
        ),
    )


def _reasons(figures: Figures) -> tuple[Row, ...]:
    counts = figures.counts
    names = [field.name for field in fields(Drops) if getattr(counts.dropped, field.name)]
    most = max((getattr(counts.dropped, name) for name in names), default=0)
    rows = []
    for name in sorted(names, key=lambda name: -getattr(counts.dropped, name)):
        noun, detail = _REASONS[name]
        records, taken = getattr(counts.dropped, name), getattr(counts.dropped_bytes, name)
        bar = bars.alone(records, most, "going", f"{noun}: {records:,} records, {size(taken)}")
        rows.append(Row(noun, bar, (f"{records:,}", size(taken)), detail))
    return tuple(rows)


# ------------------------------------------------------------------ partitions


def _card(item: PartitionFigures) -> Card:
    duplicates, keys = item.duplicates, item.stats.keys
    lines = [f"{item.stats.records:,} records"]
    if keys is not None:
        lines += [f"{keys:,} keys", f"{duplicates:,} duplicates"]
    return Card(
        name=item.name,
        saved=size(item.saved_bytes),
        whole=size(item.bytes_before),
        share=percent(item.saved_bytes, item.bytes_before),
        drawing=bars.drawing(item.segments, item.name),
        sections=bars.sections(item.segments, item.name),
        lines=tuple(lines),
    )


def _cards_rest(rest: Sequence[PartitionFigures]) -> str:
    if not rest:
        return ""
    saved, whole = sum(i.saved_bytes for i in rest), sum(i.bytes_before for i in rest)
    noun = "partition" if len(rest) == 1 else "partitions"
    return (
        f"{len(rest):,} more {noun} would save {size(saved)} of {size(whole)} together; "
        "the table at the end has them all."
    )


def _dirty(partitions: Sequence[PartitionFigures]) -> tuple[Row, ...]:
    """The dirtiest bytes first; all that have no row of their own are summed up in the last."""
    ranked = sorted(
        partitions, key=lambda item: (-bars.by_section(item.segments)[Section.CLEANABLE], item.name)
    )
    count = ROWS if len(ranked) <= ROWS else ROWS - 1
    rows = [_dirty_row(item.name, item.segments, item.sentence) for item in ranked[:count]]
    rest = ranked[count:]
    if rest:
        segments = [segment for item in rest for segment in item.segments]
        rows.append(_dirty_row(f"{len(rest):,} more partitions", segments, ""))
    return tuple(rows)


def _dirty_row(name: str, segments: Sequence[SegmentFigures], remark: str) -> Row:
    found = bars.by_section(segments)
    cells = tuple(size(found[section]) for section in Section)
    return Row(name, bars.sections(segments, name), cells, remark=printable(remark))


_HEADS = (
    "partition",
    "would save",
    "of",
    "share",
    "records",
    "keys",
    "duplicates",
    "dirty",
    "segments",
    "newest record",
)


def _line(item: PartitionFigures, figures: Figures, *, several: bool) -> Row:
    """A partition in the table of all."""
    stats = item.stats
    most = max(other.bytes_before for other in figures.partitions)
    going = max(0, min(item.saved_bytes, item.bytes_before))
    bar = Bar(
        bars.stacked([("going", going, ""), ("kept", item.bytes_before - going, "")], most),
        f"{size(going)} of {size(item.bytes_before)}",
    )
    dirty = bars.by_section(item.segments)[Section.CLEANABLE]
    cells = (
        size(item.saved_bytes),
        size(item.bytes_before),
        percent(item.saved_bytes, item.bytes_before),
        f"{stats.records:,}",
        "too many" if stats.keys is None else f"{stats.keys:,}",
        "-" if item.duplicates is None else f"{item.duplicates:,}",
        percent(dirty, item.bytes_before),
        f"{stats.segments:,}",
        moment(stats.newest_timestamp),
    )
    notes = [f"in {printable(item.look.place.log_dir)}"] if several else []
    notes += [f"not cleaned: {printable(item.dry_run.skipped)}"] if item.dry_run.skipped else []
    notes += ["cleaning is paused"] if item.look.note.paused else []
    notes += [printable(item.look.quarantine)] if item.look.quarantine else []
    return Row(item.name, bar, cells, remark="; ".join(notes))


# ------------------------------------------------------------------ keys, age


def _keys(figures: Figures, top: int) -> tuple[Row, ...]:
    """The keys that lose most records, those of all partitions together."""
    found = [(item.name, key) for item in figures.partitions for key in item.dry_run.top_keys]
    found.sort(key=lambda pair: (-pair[1].records, -pair[1].bytes, pair[0], pair[1].key))
    chosen = found[:top]
    most = max((key.records for _, key in chosen), default=0)
    rows = []
    for name, key in chosen:
        summary = f"{key.records:,} older records, {size(key.bytes)}"
        bar = bars.alone(key.records, most, "going", summary)
        cells = name, f"{key.records:,}", size(key.bytes)
        note = "" if key.key else "the empty key"
        rows.append(Row(shortened(printable(key.key)), bar, cells, note))
    return tuple(rows)


def _ages(figures: Figures) -> tuple[Row, ...]:
    """The bytes of segments by the age of their newest record: what a retention.ms would take."""
    sums = [0] * len(_AGES)
    for item in figures.partitions:
        for segment in item.segments:
            age_ms = figures.now_ms - segment.newest_ms
            slot = next(
                place for place, (_, end) in enumerate(_AGES) if end is None or age_ms < end
            )
            sums[slot] += segment.bytes_before
    whole, most = sum(sums), max(sums)
    rows = []
    for place, (name, _) in enumerate(_AGES):
        older = sum(sums[place:])
        summary = f"{name}: {size(sums[place])}"
        bar = bars.alone(sums[place], most, "aged", summary)
        cells = size(sums[place]), percent(sums[place], whole), size(older)
        rows.append(Row(name, bar, cells))
    return tuple(rows)


def _retention(figures: Figures) -> tuple[str, ...]:
    """What retention would delete now, by the settings that were given."""
    deciding = [i.retention for i in figures.partitions if "delete" in i.retention.cleanup_policy]
    if not deciding:
        return (
            "By these settings no topic deletes by age or size: no cleanup.policy contains delete.",
        )
    freed = sum(item.freed_bytes for item in deciding)
    going = [item for item in deciding if item.freed_bytes]
    whom = f"{len(going):,} of the {len(deciding):,} partitions whose cleanup.policy has delete"
    lines = [f"Retention would delete {size(freed)} now, in {whom}."]
    lines += [f"{item.partition}: {item.error}" for item in deciding if item.error is not None]
    return tuple(printable(line) for line in lines)
