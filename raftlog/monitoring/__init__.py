"""Prometheus alerts and Grafana dashboards, printed by ``raftlog deploy monitoring``."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
RULES = _HERE / "rules.yml"
DASHBOARDS = _HERE / "dashboards"
