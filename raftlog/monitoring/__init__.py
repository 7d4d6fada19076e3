"""Alerts for Prometheus and dashboards for Grafana: ``raftlog deploy monitoring`` prints them."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
RULES = _HERE / "rules.yml"
DASHBOARDS = _HERE / "dashboards"
