"""Which engine would have been quicker, from what both were measured to cost."""

from __future__ import annotations

from typing import NamedTuple

from replay.request import LOCAL, SPARK


class Cost(NamedTuple):
    """Seconds to start, and microseconds of CPU a record, which the cores share."""

    start_s: float
    record_us: float

    def seconds(self, records: int, cores: int) -> float:
        """How long it takes."""
        return self.start_s + records * self.record_us / 1e6 / cores


_AUDIT = {SPARK: Cost(12, 3), LOCAL: Cost(1, 2.7)}
_FOLD = {SPARK: Cost(12, 10), LOCAL: Cost(1.5, 8)}
COSTS = {
    "audit": _AUDIT,
    "state": _FOLD,
    "diff": _FOLD,
    "history": _FOLD,
    "verify": {SPARK: Cost(12, 40), LOCAL: Cost(1.5, 27)},
    "lao": {SPARK: Cost(12, 3.5), LOCAL: Cost(1, 2.5)},
    "availability": {SPARK: Cost(12, 4.5), LOCAL: Cost(1, 3.5)},
    "churn": {SPARK: Cost(12, 10.5), LOCAL: Cost(1.5, 8)},
    "report": {SPARK: Cost(14, 17), LOCAL: Cost(2.5, 15)},
    "summary": {SPARK: Cost(12, 13.5), LOCAL: Cost(1.5, 11)},
}
"""Of the jobs that both have; ``benchmarks/run replay`` measures them."""


def hint(job: str, engine: str, records: int, cores: int) -> str:
    """That the other engine would have been quicker, on this machine; empty if it would not."""
    costs = COSTS.get(job)
    if costs is None:
        return ""
    other = LOCAL if engine == SPARK else SPARK
    took, would = (costs[one].seconds(records, cores) for one in (engine, other))
    if would >= took / 1.5:
        return ""
    return f"--engine {other} would have taken about {would:.0f} s instead of {took:.0f} s"
