"""Alert rules for Prometheus, as a list: examples/monitoring/rules.yml is made from it.

Invariants
- I1  A rule needs no samples of single partitions unless it says so (`per_partition`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.metrics import table as t


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert: it fires when `expression` has held for `holds`. `why`: what it means."""

    name: str
    expression: str
    holds: str
    severity: str
    why: str
    per_partition: bool = False


RULES: tuple[Rule, ...] = (
    Rule(
        "StratalogCleanerThreadDead",
        f"{t.DEAD_THREADS.name} > 0",
        "1m",
        "critical",
        "A cleaner thread has ended. Errors do not end one: this is a fault of the program.",
    ),
    Rule(
        "StratalogPartitionsUncleanable",
        f"{t.UNCLEANABLE_PARTITIONS.name} > 0",
        "5m",
        "warning",
        "Cleaning partitions has failed; they are tried again. The cleaner's status says which and "
        "why.",
    ),
    Rule(
        "StratalogCleanerNotRunning",
        f"{t.SINCE_LAST_RUN.name} > 600000 "
        f'unless on (instance) {t.THREADS.name}{{state="busy"}} > 0',
        "1m",
        "critical",
        "No cleaner thread has looked for work for ten minutes, and none is at work.",
    ),
    Rule(
        "StratalogCleaningFallsBehind",
        f'sum by (instance) ({t.BYTES.name}{{section="cleanable"}}) '
        f"/ sum by (instance) ({t.BYTES.name}) > 0.8",
        "1h",
        "warning",
        "Most of what compacted logs hold waits to be cleaned: more threads or a higher throttle.",
    ),
    Rule(
        "StratalogPartitionFallsBehind",
        f'sum without (section) ({t.PARTITION_BYTES.name}{{section="cleanable"}}) '
        f"/ sum without (section) ({t.PARTITION_BYTES.name}) > 0.8",
        "1h",
        "warning",
        "Most of a partition waits to be cleaned: paused, failing, or behind others in the queue.",
        per_partition=True,
    ),
    Rule(
        "StratalogLogDirectoryOffline",
        f"{t.OFFLINE_DIRS.name} > 0",
        "0m",
        "critical",
        "The disk of a log directory failed. Its logs take no writes until the service is started "
        "again.",
    ),
    Rule(
        "StratalogLogDirectoryNearlyFull",
        f"{t.DIR_USABLE.name} / {t.DIR_TOTAL.name} < 0.1",
        "15m",
        "warning",
        "Less than a tenth of the disk is left. Cleaning needs room for what it writes anew.",
    ),
)


def rules_yaml() -> str:
    """examples/monitoring/rules.yml."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Alert rules for Prometheus. Made by tools/metrics_docs.py; docs/METRICS.md says more."
    yield "groups:"
    yield "  - name: stratalog"
    yield "    rules:"
    for rule in RULES:
        if rule.per_partition:
            yield "      # Needs the metrics of each partition."
        yield f"      - alert: {rule.name}"
        # A JSON string is a YAML string.
        yield f"        expr: {json.dumps(rule.expression)}"
        yield f"        for: {rule.holds}"
        yield "        labels:"
        yield f"          severity: {rule.severity}"
        yield "        annotations:"
        yield f"          summary: {json.dumps(rule.why)}"
