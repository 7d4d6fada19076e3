"""One node's metrics, read at each scrape, so that hot paths pay only for :meth:`Latency.observe`.

Names are Kafka's (its MBean's type, then the metric, in snake case), so that dashboards can be
reused; metrics that Kafka does not have begin with ``raftlog_``. Where Prometheus has a rule, that
takes precedence: times are in seconds, and Kafka's ``…Count`` is a plural, because only a histogram
has a ``…_count``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from raftlog.files import BackgroundLook
from raftlog.node.observability.figures import Latency

Sample = tuple[Sequence[str], float]
"""Label values and a value."""


class _Collected(Collector):
    """An adapter for a function that creates metric families at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        yield from self._collect()

    def describe(self) -> list[Metric]:
        """Return no families, as describing would collect before the node is up."""
        return []


class MetricsRegistry:
    """The metrics of one node; a process may contain several.

    Not thread-safe: scrapes run on the node's event loop. If a callable raises, the whole scrape
    fails: that is a defect in the node, and half a page would hide it.
    """

    def __init__(self, *, process: bool = True) -> None:
        """``process``: True to add the process's own metrics (CPU, memory, file descriptors,
        garbage collection).
        """
        self.registry = CollectorRegistry(auto_describe=False)
        self._looks: list[BackgroundLook[Any]] = []
        if process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)

    def collect(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add a function that creates metric families at each scrape, e.g. several from one
        reading.
        """
        self.registry.register(_Collected(collect))

    def look(self, look: BackgroundLook[Any]) -> None:
        """Add a file system query that runs before each scrape; metrics read its ``latest``
        result.
        """
        self._looks.append(look)

    async def refresh(self) -> None:
        """Query the file systems, and wait briefly for the results."""
        await asyncio.gather(*(look.now() for look in self._looks))

    def gauge(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """Add a value that can go up and down."""
        self.collect(lambda: [gauge(name, doc, read())])

    def gauges(
        self, name: str, doc: str, labels: Sequence[str], read: Callable[[], Iterable[Sample]]
    ) -> None:
        """Add values that can go up and down, one per set of label values."""
        self.collect(lambda: [gauge(name, doc, *read(), labels=labels)])

    def counter(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """Add a value that only grows."""
        self.collect(lambda: [CounterMetricFamily(name, doc, value=read())])

    def latency(self, name: str, doc: str, latency: Latency | None = None) -> Latency:
        """Add a histogram of seconds, and return the object that observes; by convention ``name``
        ends in ``_seconds``.
        """
        kept = latency if latency is not None else Latency()
        self.collect(
            lambda: [
                HistogramMetricFamily(name, doc, buckets=kept.buckets(), sum_value=kept.total_s)
            ]
        )
        return kept


def gauge(name: str, doc: str, *values: Any, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """Return a gauge family: one value without labels, or samples with them."""
    if not labels:
        return GaugeMetricFamily(name, doc, value=values[0])
    family = GaugeMetricFamily(name, doc, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
