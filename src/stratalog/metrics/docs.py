"""docs/METRICS.md and a Grafana dashboard, made from the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from stratalog.metrics.rules import RULES
from stratalog.metrics.table import TABLE, Kind, Metric

_HEAD = """\
# Metrics

Made by `tools/metrics_docs.py` from the one list of metrics (`src/stratalog/metrics/table.py`),
which the text that Prometheus scrapes is made from, too.

```python
from stratalog.metrics import collect, exposition

text = exposition(collect(store, manager, cleaner, clock, per_partition=True))
```

`exposition` needs the extra `metrics` (prometheus-client); `collect` answers plain values and needs
nothing. Names that Kafka has are Kafka's, as its JMX exporter writes them in lower case, with two
of Kafka's faults left out: the values of `logDirectory` carry no quotes, and the buffer's
utilization has fractions instead of being 0 or 100. Counters begin at 0 with the process.

Metrics marked *each partition* have a sample for each partition, or each compacted one, and are
left out with `per_partition=False`; with 10,000 partitions they are over 100,000 samples. Those of
the cleaner are there without them, and the rules below need them in one case only.

How many records of a log are live, superseded or tombstones is not among them: that takes a scan
of the whole log. `stratalog log stats` counts them, and a dry run of a clean says what would go.

`examples/monitoring/rules.yml` holds the alert rules below, `examples/monitoring/dashboard.json` a
Grafana dashboard with a panel for each metric.
"""


def markdown() -> str:
    """docs/METRICS.md."""
    kafka = [metric for metric in TABLE if metric.name.startswith("kafka_")]
    ours = [metric for metric in TABLE if not metric.name.startswith("kafka_")]
    parts = [
        _HEAD,
        *_section("Kafka's names", kafka),
        *_section("Names of our own", ours),
        "## Alert rules\n",
        *_rules(),
    ]
    return "\n".join(parts) + "\n"


def _section(title: str, metrics: Sequence[Metric]) -> Iterator[str]:
    yield f"## {title}\n"
    for metric in metrics:
        each = ", *each partition*" if metric.per_partition else ""
        yield f"### {metric.name}\n"
        yield metric.help + "\n"
        yield f"- kind: {metric.kind.value}{each}"
        if metric.labels:
            yield f"- labels: {', '.join(f'`{label}`' for label in metric.labels)}"
        yield f"- source: {metric.source}\n"


def _rules() -> Iterator[str]:
    yield "| alert | fires when | for | severity | meaning |"
    yield "|---|---|---|---|---|"
    for rule in RULES:
        each = " *Needs the metrics of each partition.*" if rule.per_partition else ""
        yield (
            f"| {rule.name} | `{rule.expression}` | {rule.holds} | {rule.severity} "
            f"| {rule.why}{each} |"
        )


# -- the dashboard --------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_UNITS = {
    "_bytes": "bytes",
    "_bytes_total": "Bps",
    "_seconds_total": "s",
    "_duration_seconds": "s",
    "_timestamp_seconds": "dateTimeAsIso",
    "_secs": "s",
    "_ms": "ms",
    "_percent": "percent",
    "_ratio": "percentunit",
    "_log_size": "bytes",
}


def dashboard() -> str:
    """examples/monitoring/dashboard.json, for Grafana 9 and later."""
    content = {
        "title": "stratalog",
        "uid": "stratalog",
        "schemaVersion": 37,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, metric) for number, metric in enumerate(TABLE)],
    }
    return json.dumps(content, indent=1) + "\n"


def _panel(number: int, metric: Metric) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": metric.name,
        "description": metric.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {
            "x": column * _WIDTH,
            "y": row * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": _unit(metric)}, "overrides": []},
        "targets": [
            {"refId": "A", "expr": _expression(metric), "legendFormat": _legend(metric.labels)}
        ],
    }


def _expression(metric: Metric) -> str:
    """Counters as rates; a histogram as what 95 of 100 take at most; of the partitions the ten
    largest."""
    if metric.kind is Kind.COUNTER:
        return f"rate({metric.name}[5m])"
    if metric.kind is Kind.HISTOGRAM:
        by = ", ".join((*metric.labels, "le"))
        return f"histogram_quantile(0.95, sum by ({by}) (rate({metric.name}_bucket[30m])))"
    if metric.per_partition:
        lowest = metric.name.endswith("_timestamp_seconds")
        text = f"{'bottomk' if lowest else 'topk'}(10, {metric.name})"
        return f"{text} * 1000" if lowest else text
    return metric.name


def _unit(metric: Metric) -> str:
    endings = sorted((end for end in _UNITS if metric.name.endswith(end)), key=len)
    return _UNITS[endings[-1]] if endings else "short"


def _legend(labels: Sequence[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in ("instance", *labels))
