"""What /metrics answers of a service."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.admin.service import Service
from stratalog.base.clock import Clock
from stratalog.metrics import collect, exposition


def metrics_of(service: Service, clock: Clock) -> Callable[[bool], str]:
    """Prometheus' text of the moment at which it is asked for, with what each partition has, or
    without."""

    def scrape(per_partition: bool) -> str:
        parts = (service.store, service.manager, service.cleaner)
        return exposition(collect(*parts, clock, per_partition=per_partition))

    return scrape
