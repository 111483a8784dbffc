"""Compaction as documents: status, explanations, history, the cleaner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stratalog.admin.cleaning import LookedAt
from stratalog.admin.desk.looking import Looker, as_ours, settled
from stratalog.admin.desk.protocol import Document, error_document, shown
from stratalog.admin.directories import PartitionPlace
from stratalog.base.errors import StratalogError, UsageError
from stratalog.clean.cleaner import Activity
from stratalog.clean.facts import Sections
from stratalog.clean.history import Entry
from stratalog.clean.note import UNKNOWN
from stratalog.clean.select import Explanation
from stratalog.config.settings import Settings
from stratalog.ledger.manifest import read_manifest
from stratalog.ledger.status import RunState, RunStatus, read_status
from stratalog.segment.names import TopicPartition

_RESULTS = {"cleaned": "succeeded", "nothing": "succeeded"}
"""Of a round, as a state; the others are called the same: `failed`, `aborted`."""
_LEDGER_STATES = {
    RunState.NEVER: "never",
    RunState.RUNNING: "running",
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
}


def named(place: PartitionPlace) -> Document:
    """An item's first two fields."""
    return {"topic": place.topic_partition.topic, "partition": place.topic_partition.partition}


def compaction_status(looker: Looker, places: Sequence[PartitionPlace]) -> Document:
    """See `Desk.compaction_status`."""
    found = [settled(looker, place, status_item) for place in places]
    rows = [row for row in found if row is not None]
    return {
        "ok": all(row["error"] is None for row in rows),
        "now_ms": looker.now_ms(),
        "partitions": rows,
    }


def status_item(looker: Looker, place: PartitionPlace) -> Document:
    """One partition's; with an error the other fields are None."""
    settings = looker.settings(place.topic_partition.topic)
    row = {**named(place), "directory": place.path, **dict.fromkeys(_FIELDS)}
    row |= {"mode": _mode(settings), "state": "never", "error": None}
    try:
        found = looker.look(place)
        row |= _looked(found) | _last_run(found.last)
        if row["mode"] == "ledger":
            row |= _ledger(looker, place, found.last)
        row |= _now(looker, place.topic_partition)
        row["threshold_bytes"] = settings.values.get("compaction.threshold")
    except (StratalogError, FileNotFoundError) as error:
        row["error"] = error_document(as_ours(error))
    return row


_FIELDS = (
    *("mode", "state", "phase", "done_bytes", "total_bytes", "eta_ms", "started_ms", "ended_ms"),
    *("trigger", "cause", "is_compacted", "checkpoint", "first_dirty", "first_uncleanable"),
    *("bytes", "dirty_ratio", "min_dirty_ratio", "next_expiry_ms", "paused", "failure"),
    *("quarantine", "backlog_bytes", "threshold_bytes", "ledger", "last_run", "error"),
)


def _mode(settings: Settings) -> str:
    mode = settings.values.get("compaction.mode")
    return mode if isinstance(mode, str) else "inplace"


def _looked(found: LookedAt) -> Document:
    facts, note, sections = found.facts, found.note, found.sections
    return {
        "is_compacted": facts.is_compacted,
        "checkpoint": found.checkpoint,
        "first_dirty": facts.first_dirty,
        "first_uncleanable": facts.first_uncleanable,
        "bytes": _bytes(sections),
        "dirty_ratio": facts.dirty_ratio,
        "min_dirty_ratio": facts.min_dirty_ratio,
        "next_expiry_ms": None if facts.next_expiry_ms == UNKNOWN else facts.next_expiry_ms,
        "paused": note.paused,
        "failure": None if note.failure is None else asdict(note.failure),
        "quarantine": found.quarantine,
        "backlog_bytes": (
            facts.backlog_bytes if facts.uses_ledger else sections.total - sections.clean
        ),
        "last_run": None if found.last is None else found.last.as_json(),
    }


def _bytes(sections: Sections) -> Document:
    return {**asdict(sections), "total": sections.total}


def _last_run(last: Entry | None) -> Document:
    if last is None:
        return {}
    return {
        "state": _RESULTS.get(last.result, last.result),
        "started_ms": last.started_ms,
        "ended_ms": last.started_ms + last.duration_ms,
        "trigger": last.trigger,
        "cause": last.cause or None,
    }


def _ledger(looker: Looker, place: PartitionPlace, last: Entry | None) -> Document:
    """Of a topic with ledgers: their own status, and the one that is read."""
    manifest = read_manifest(looker.filesystem, place.path)
    status = read_status(looker.filesystem, place.path)
    running = {item.topic_partition for item in looker.activities()}
    if place.topic_partition not in running:
        status = status.after_restart(manifest)
    current, found = manifest.current, _of_ledger_run(status)
    if last is not None and last.started_ms >= (found.get("started_ms") or 0):
        found = _last_run(last)  # a later one may have ended before it came to write its status
    if current is not None:
        found["ledger"] = {
            "number": current.number,
            "horizon": current.horizon,
            "start_offset": current.start_offset,
            "records": current.records,
            "keys": current.distinct_keys,
            "size_bytes": current.size_bytes,
            "created_ms": current.created_ms,
        }
    return found


def _of_ledger_run(status: RunStatus) -> Document:
    if status.state is RunState.NEVER:
        return {}
    return {
        "state": _LEDGER_STATES[status.state],
        "started_ms": status.started_ms,
        "ended_ms": status.ended_ms or None,
        "trigger": status.trigger,
        "cause": status.cause or None,
    }


def _now(looker: Looker, key: TopicPartition) -> Document:
    """What is done there now, over what was."""
    for activity in looker.activities():
        if activity.topic_partition == key:
            return {
                "state": "running",
                "started_ms": activity.started_ms,
                "ended_ms": None,
                "trigger": activity.trigger,
                "cause": None,
                **_progress(activity, looker.now_ms()),
            }
    return {"state": "waiting"} if key in looker.waiting() else {}


def _progress(activity: Activity, now_ms: int) -> Document:
    progress = activity.progress
    return {
        "phase": None if progress is None else progress.phase,
        "done_bytes": None if progress is None else progress.done_bytes,
        "total_bytes": None if progress is None else progress.total_bytes,
        "eta_ms": activity.eta_ms(now_ms),
    }


def explanations(looker: Looker, places: Sequence[PartitionPlace]) -> Document:
    """See `Desk.explain`."""
    rows = [
        _explained(place, found)
        for place, found in looker.explanations(places)
        if isinstance(found, Explanation) or not looker.is_going(place)
    ]
    return {
        "ok": all(row["error"] is None for row in rows),
        "now_ms": looker.now_ms(),
        "partitions": rows,
    }


def _explained(place: PartitionPlace, found: Explanation | StratalogError) -> Document:
    row: Document = {
        **named(place),
        **dict.fromkeys(("sentence", "reason", "obstacle", "place", "values", "error")),
    }
    if isinstance(found, StratalogError):
        return {**row, "error": error_document(found)}
    values = found.as_json()
    return {
        **row,
        "sentence": found.sentence,
        "reason": None if found.reason is None else found.reason.value,
        "obstacle": None if found.obstacle is None else found.obstacle.value,
        "place": found.place,
        "values": values,
    }


def histories(looker: Looker, places: Sequence[PartitionPlace], limit: int | None) -> Document:
    """See `Desk.history`. Raises `UsageError`."""
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {shown(limit)}: it is 1 or more")
    rows = []
    for place in places:
        row: dict[str, Any] = {**named(place), "history": [], "error": None}
        try:
            row["history"] = [entry.as_json() for entry in looker.history(place, limit)]
        except (StratalogError, FileNotFoundError) as error:
            if looker.is_going(place):
                continue
            row["error"] = error_document(as_ours(error))
        rows.append(row)
    return {"ok": all(row["error"] is None for row in rows), "partitions": rows}


def cleaner_status(looker: Looker, *, running: bool, threads: int) -> Document:
    """See `Desk.cleaner_status`."""
    found: list[LookedAt] = []
    errors: list[Document] = []
    places = looker.places()
    for place in places:
        try:
            found.append(looker.look(place))
        except (StratalogError, FileNotFoundError) as error:
            if not looker.is_going(place):
                errors.append({**named(place), "error": error_document(as_ours(error))})
    now_ms = looker.now_ms()
    failing = [item for item in found if item.is_failing]
    return {
        "ok": not errors,
        "now_ms": now_ms,
        "running": running,
        "threads": threads,
        "activities": [_activity(activity, now_ms) for activity in looker.activities()],
        "queue": _queue(looker, [item.place for item in found]),
        "uncleanable": [
            {
                **named(item.place),
                "failure": None if item.note.failure is None else asdict(item.note.failure),
                "quarantine": item.quarantine,
            }
            for item in failing
        ],
        "paused": [named(item.place) for item in found if item.note.paused],
        "errors": errors,
        "totals": {
            "partitions": len(places),
            "uncleanable_partitions": len(failing),
            "uncleanable_bytes": sum(item.sections.total for item in failing),
            "max_dirty_ratio": max((item.facts.dirty_ratio for item in found), default=0.0),
            "bytes": _bytes(_sum_of([item.sections for item in found])),
        },
    }


def _sum_of(parts: Sequence[Sections]) -> Sections:
    return Sections(
        sum(part.clean for part in parts),
        sum(part.cleanable for part in parts),
        sum(part.uncleanable for part in parts),
        sum(part.active for part in parts),
    )


def _activity(activity: Activity, now_ms: int) -> Document:
    key = activity.topic_partition
    return {
        "thread": activity.thread,
        "topic": key.topic,
        "partition": key.partition,
        "trigger": activity.trigger,
        "started_ms": activity.started_ms,
        **_progress(activity, now_ms),
    }


def _queue(looker: Looker, places: Sequence[PartitionPlace]) -> list[Document]:
    """What would be worked on next, in that order."""
    chosen = [
        (found.place, place, found)
        for place, found in looker.explanations(places)
        if isinstance(found, Explanation) and found.place is not None
    ]
    return [
        {
            **named(place),
            "reason": None if found.reason is None else found.reason.value,
            "place": rank,
            "dirty_ratio": found.facts.dirty_ratio,
            "sentence": found.sentence,
        }
        for rank, place, found in sorted(chosen, key=lambda item: item[0])
    ]
