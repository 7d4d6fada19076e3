"""The metric names that an expression uses, compared with those that nodes expose."""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as ast

sys.path.insert(0, str(Path(__file__).parents[1] / "observability"))

from reference_pages.metrics import of_a_broker, of_a_controller, of_a_damaged_controller
from rule_runs import each_rule, load_rules

TARGET = {"job", "instance"}
"""Labels that Prometheus adds."""
OTHERS = {
    "up": set(),
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
    "ALERTS": {"alertname", "alertstate", "severity", "cluster_id"},
}


@cache
def metrics() -> dict[str, set[str]]:
    """Return the labels of every series by its name."""
    found: dict[str, set[str]] = {name: labels | TARGET for name, labels in OTHERS.items()}

    def add(name: str, labels: set[str]) -> None:
        found[name] = found.get(name, set()) | labels | TARGET

    for family in (*of_a_controller(), *of_a_damaged_controller(), *of_a_broker()):
        own = set(getattr(family, "_labelnames", ()))
        if family.type == "histogram":
            add(f"{family.name}_bucket", own | {"le"})
            add(f"{family.name}_sum", own)
            add(f"{family.name}_count", own)
        elif family.type == "info":
            add(f"{family.name}_info", own | set(family.samples[0].labels))
        else:
            add(family.name + "_total" * (family.type == "counter"), own)
    for rule in each_rule(load_rules()):
        if "record" in rule:
            found[rule["record"]] = found["raftlog_node_info"]
    return found


def _parts(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        inner = getattr(node, name, None)
        if isinstance(inner, ast.Expr):
            yield from _parts(inner)
    for inner in getattr(node, "args", ()):
        yield from _parts(inner)


def _labels_asked(node: Any) -> set[str]:
    asked: set[str] = set()
    modifier = getattr(node, "modifier", None)
    if isinstance(modifier, ast.AggModifier):
        asked |= set(modifier.labels)
    elif isinstance(modifier, ast.BinModifier):
        asked |= set(modifier.group_labels or ())
        asked |= set(modifier.matching.labels) if modifier.matching is not None else set()
    return asked


def faults_of(expression: str) -> list[str]:
    """Return the faults of an expression: what Prometheus would reject, and what it would accept
    but never match.
    """
    # What Grafana puts in.
    plain = re.sub(r"\$__(rate_interval|interval|range)", "5m", expression)
    try:
        parsed = ast.parse(plain)
    except ValueError as error:
        return [str(error)]
    faults, there = [], set(TARGET)
    parts = list(_parts(parsed))
    for part in parts:
        if isinstance(part, ast.VectorSelector):
            if part.name not in metrics():
                faults.append(f"no metric {part.name}")
                continue
            there |= metrics()[part.name]
            wrong = {one.name for one in part.matchers.matchers} - metrics()[part.name]
            faults.extend(f"{part.name} has no label {label}" for label in sorted(wrong))
    for part in parts:
        missing = sorted(_labels_asked(part) - there)
        faults.extend(f"nothing here has a label {label}" for label in missing)
    return faults
