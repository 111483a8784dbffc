"""What a running store and its cleaner say of themselves, for Prometheus (ADM-3).

    TABLE      the one list: every metric's name, kind, labels, help, source
    collect    what lower floors count -> samples; reads memory, and one header of each dirty log
    exposition samples -> Prometheus' text (the extra `metrics`)

docs/METRICS.md and the dashboard are made from the same list. Names that Kafka has are Kafka's, as
its JMX exporter writes them, so that dashboards and rules go on working.
"""

from __future__ import annotations

from stratalog.metrics.collect import collect
from stratalog.metrics.exposition import CONTENT_TYPE, exposition
from stratalog.metrics.samples import Buckets, Sample
from stratalog.metrics.table import TABLE, Kind, Metric

__all__ = [
    "CONTENT_TYPE",
    "TABLE",
    "Buckets",
    "Kind",
    "Metric",
    "Sample",
    "collect",
    "exposition",
]
