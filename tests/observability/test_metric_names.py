"""Every metric of a node has the form that Prometheus asks for: the rules of ``promtool check
metrics``, and promtool itself where it is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from reference_pages.metrics import of_a_broker, of_a_controller

ABBREVIATED = ("s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d")
"""Units as promtool does not want them."""


def faults(family: Metric) -> Iterator[str]:
    """What promtool would say, in its words."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    if not family.documentation:
        yield f"{name} no help text"
    if re.search(r"[a-z][A-Z]", name):
        yield f"{name} metric names should be written in 'snake_case'"
    if any(part in ABBREVIATED for part in name.split("_")):
        yield f"{name} metric names should not contain abbreviated units"
    if family.type not in {"histogram", "summary"} and name.endswith(("_count", "_sum", "_bucket")):
        yield f"{name} non-histogram and non-summary metrics should not have such a suffix"
    if family.type != "counter" and name.endswith("_total"):
        yield f"{name} non-counter metrics should not have '_total' suffix"
    if family.type in name.split("_"):
        yield f"{name} metric name should not include type"


def test_names_and_units_are_those_of_prometheus() -> None:
    families = [*of_a_controller(), *of_a_broker()]
    assert len(families) > 80
    assert [fault for family in families for fault in faults(family)] == []


def test_the_rules_can_fail() -> None:
    for name in ("a_count", "a_ms", "aBc", "a_total", "a_gauge"):
        assert list(faults(Metric(name, "A.", "gauge"))), name
    assert list(faults(Metric("a_seconds", "", "gauge")))
    assert not list(faults(Metric("a_seconds", "A.", "histogram")))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("families", [of_a_controller, of_a_broker])
def test_promtool_finds_nothing(families: object) -> None:
    class Page:
        def collect(self) -> Iterator[Metric]:
            assert callable(families)
            yield from families()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page())
    ran = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")
