"""The table of settings as text for people and as JSON: docs/SETTINGS.md, `stratalog settings`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from stratalog.config.kinds import INT_MAX, LONG_MAX, Kind, Value, written
from stratalog.config.row import Setting, Synonym
from stratalog.config.table import SECTIONS

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_FACTORS = {60_000: "minutes", 3_600_000: "hours"}


def fields(row: Setting) -> dict[str, Any]:
    """A row as JSON has it; sizes and times in the units of the names."""
    default = row.default
    return {
        "name": row.name,
        "type": row.kind.value,
        "default": None if default is None else written(default),
        "rule": row.rule.text,
        "doc": row.doc,
        "effect": row.effect.value,
        "levels": ["topic", "namespace", "broker"] if row.is_topics else ["broker"],
        "synonyms": [synonym.name for synonym in row.synonyms],
        "dynamic_broker_name": row.dynamic_name,
        "has_effect": not row.is_idle,
        "ours": row.is_ours,
    }


def default_of(row: Setting) -> str:
    """The default as text, with what a large number means."""
    value = row.default
    if value is None:
        return "not set"
    if value in ("", ()):
        return "empty"
    meaning = _meaning(row, value)
    return written(value) + (f" ({meaning})" if meaning else "")


def _meaning(row: Setting, value: Value) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if value in (LONG_MAX, INT_MAX) or value == math.inf:
        return "no bound"
    words = {word for name in row.anywhere for word in name.name.split(".")}
    if "ms" in words and value > 0:
        for unit_ms, unit in _UNITS:
            if value % unit_ms == 0:
                return f"{int(value) // unit_ms} {unit}"
    if words & {"bytes", "size"} and row.kind is not Kind.DOUBLE and value >= 1024:
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value % (1 << power) == 0:
                return f"{int(value) >> power} {unit}"
    return ""


def type_of(row: Setting) -> str:
    """Type and rule: `INT, at least 1`."""
    return row.kind.value.lower() + (f", {row.rule.text}" if row.rule.text else "")


def synonyms_of(row: Setting) -> str:
    """The broker's names, the stronger first, with their units."""
    return ", ".join(_synonym(synonym) for synonym in row.synonyms)


def _synonym(synonym: Synonym) -> str:
    return synonym.name + (f" (in {_FACTORS[synonym.factor]})" if synonym.factor != 1 else "")


def run_time_of(row: Setting) -> str:
    """Where it can be changed while a broker runs."""
    if row.is_topics:
        name = row.dynamic_name
        return "at a topic or a namespace" + (f"; at the broker as {name}" if name else "")
    return "at the broker" if row.is_dynamic else "no"


def markdown() -> str:
    """docs/SETTINGS.md."""
    return "\n".join(_markdown()) + "\n"


_HEAD = """\
# Settings

Made by `tools/settings_docs.py` from the one table of settings (`src/stratalog/config/table.py`);
`stratalog settings [NAME]` prints the same. Names, defaults, rules and precedence are Kafka's; what
is marked *ours* does not exist there.

What counts, from the strongest:

1. `--config NAME=VALUE` on the command line, under any of a setting's names;
2. a topic, under the topic's name;
3. namespaces, prefixes of topic names, under the topic's names: all prefixes that a name starts
   with count, a longer one over a shorter one;
4. a broker at run time, under the first of the broker's names;
5. a broker's `server.properties`, under any of the broker's names, the first one given winning;
6. the default.

A `server.properties` is taken as it is: properties of parts that do not exist here are accepted,
and what has no effect is said. At topics and namespaces an unknown name is refused. A file for
topics and namespaces has sections, in the same format:

```
[prefix audit.]
retention.ms=-1

[topic orders]
cleanup.policy=compact
min.compaction.lag.ms=60000
```

Rules between settings: min.compaction.lag.ms is at most max.compaction.lag.ms;
`compaction.strategy=header` needs compaction.strategy.header; remote.storage.enable goes with the
policy `delete` or none, and then local.retention.ms and .bytes are at most retention.ms and .bytes;
cleaner.retry.backoff.ms is at most cleaner.retry.backoff.max.ms; a broker has more than 1 MiB of
log.cleaner.dedupe.buffer.size for each of log.cleaner.threads. At run time log.cleaner.threads and
num.recovery.threads.per.data.dir go to half or to double of what they are at most.
"""


def _markdown() -> Iterator[str]:
    yield _HEAD
    for title, rows in SECTIONS.items():
        yield f"## {title}\n"
        for row in rows:
            yield f"### {row.name}\n"
            yield row.doc + (" *Ours.*" if row.is_ours else "") + "\n"
            yield f"- type: {type_of(row)}"
            yield f"- default: {default_of(row)}"
            if row.synonyms:
                label = "broker's names" if row.is_topics else "older names"
                yield f"- {label}: {synonyms_of(row)}"
            yield f"- changed at run time: {run_time_of(row)}"
            yield f"- takes effect: {row.effect.value}\n"
