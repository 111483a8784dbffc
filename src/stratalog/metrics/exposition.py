"""Samples -> the text that Prometheus scrapes, by prometheus-client.

The library's own registry is not used: what is counted lies in the floors below, as plain numbers,
so that they need no library and several services in a process do not mix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from stratalog.base.errors import MissingExtraError
from stratalog.metrics.samples import Buckets, Sample
from stratalog.metrics.table import TABLE, Kind, Metric

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `exposition` answers, as HTTP says it."""


def exposition(samples: Iterable[Sample]) -> str:
    """The samples as Prometheus' text format 0.0.4, in the order of the table.

    Raises `MissingExtraError` without prometheus-client.
    """
    try:
        from prometheus_client.exposition import generate_latest
    except ImportError as error:
        raise MissingExtraError(
            f"Prometheus' format is not installed ({error}); pip install 'stratalog[metrics]'"
        ) from error
    return generate_latest(_Families(list(samples))).decode("utf-8")


class _Families:
    """What the library calls a collector."""

    def __init__(self, samples: Sequence[Sample]):
        self._by_metric: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_metric.setdefault(sample.metric.name, []).append(sample)

    def collect(self) -> Iterator[Family]:
        for metric in TABLE:
            found = self._by_metric.get(metric.name)
            if found:
                yield _family(metric, found)


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert isinstance(sample.value, Buckets)
            family.add_metric(sample.labels, _cumulative(sample.value), sample.value.total)
        return family
    of_kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    plain = of_kind(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        assert not isinstance(sample.value, Buckets)
        plain.add_metric(sample.labels, sample.value)
    return plain


def _cumulative(value: Buckets) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in value.bounds), "+Inf"]
    return list(zip(bounds, accumulate(map(float, value.counts)), strict=True))
