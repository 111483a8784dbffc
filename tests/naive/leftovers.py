"""What Kafka's loader makes of a partition's files, as a function from files to files.

Written from the description of LogLoader in the reference ("Load"), not from the product:

 1  `.deleted` files go. Of the `.cleaned` files the lowest offset counts: every `.swap` at or above
    it goes, and all `.cleaned`. The old suffix `.clean` is treated as `.cleaned` once was: it goes.
 2  Of the `.log.swap` files that are left: the lowest base, the highest next offset.
 3  Every file that is no `.swap` and whose offset lies in between goes.
 4  Every `.swap` loses its suffix, over whatever has that name.
 5  An index without a log goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.naive.records import parse_log

KINDS = ("log", "index", "timeindex", "txnindex")


def kafka_loads(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that are left. All names are those of segment files."""
    left = {name: data for name, data in files.items() if not _has(name, "deleted", "clean")}
    cleaned = [_offset(name) for name in left if _has(name, "cleaned")]
    if cleaned:
        left = {
            name: data
            for name, data in left.items()
            if not _has(name, "cleaned")
            and not (_has(name, "swap") and _offset(name) >= min(cleaned))
        }
    ends = {
        _offset(name): _next_offset(data, _offset(name))
        for name, data in left.items()
        if name.endswith(".log.swap")
    }
    if ends:
        covered = range(min(ends), max(ends.values()))
        left = {
            name: data
            for name, data in left.items()
            if _has(name, "swap") or _offset(name) not in covered
        }
    plain = {name: data for name, data in left.items() if not _has(name, "swap")}
    for name, data in left.items():
        if _has(name, "swap"):
            plain[name.removesuffix(".swap")] = data
    logs = {_offset(name) for name in plain if name.endswith(".log")}
    return {name: data for name, data in plain.items() if _offset(name) in logs}


def _has(name: str, *suffixes: str) -> bool:
    return name.rsplit(".", 1)[1] in suffixes


def _offset(name: str) -> int:
    return int(name.split(".", maxsplit=1)[0])


def _next_offset(data: bytes, base: int) -> int:
    batches = parse_log(data)
    return batches[-1].last_offset + 1 if batches else base
