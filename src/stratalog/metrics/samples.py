"""What `collect` answers and `exposition` writes: values of metrics at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.metrics.table import Kind, Metric


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's value: `counts[i]` durations of at most `bounds[i]` and above the bound before
    (the last count: above all bounds), and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def __post_init__(self) -> None:
        assert len(self.counts) == len(self.bounds) + 1, (self.counts, self.bounds)


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric's value; `labels` are values in the order of the metric's labels."""

    metric: Metric
    value: float | Buckets
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.labels) == len(self.metric.labels), (self.metric.name, self.labels)
        assert isinstance(self.value, Buckets) == (self.metric.kind is Kind.HISTOGRAM)

    @property
    def named_labels(self) -> dict[str, str]:
        """The labels with their names."""
        return dict(zip(self.metric.labels, self.labels, strict=True))
