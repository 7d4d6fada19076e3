"""Evaluates a rules file over samples as Prometheus does, and writes the same for promtool."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml
from promql import NAME, STALE, Evaluation, Labels, Storage, labels, without_name

from raftlog.monitoring import RULES

EVERY_S = 15
"""Between two scrapes, and two evaluations: as many run Prometheus."""


class Firing(NamedTuple):
    """A firing alert with its text."""

    name: str
    severity: str
    cluster_id: str


def load_rules(path: Path = RULES) -> Mapping[str, Any]:
    rules: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return rules


def each_rule(rules: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for group in rules["groups"]:
        yield from group["rules"]


@dataclass
class _Alert:
    rule: Mapping[str, Any]
    for_s: float
    since: dict[Labels, float] = field(default_factory=dict)


class RuleRun:
    """All rules, evaluated at each scrape in their order."""

    def __init__(self, storage: Storage, rules: Mapping[str, Any] | None = None) -> None:
        self.storage = storage
        self._rules = [
            (
                _Alert(rule, _seconds(rule["for"]) if "for" in rule else 0.0),
                promql_parser.parse(rule["expr"]),
            )
            for rule in each_rule(rules or load_rules())
        ]
        self._recorded: dict[str, set[Labels]] = {}

    def evaluate(self, at: float) -> set[Firing]:
        """Evaluate the rules at this moment; return the firing alerts."""
        firing: set[Firing] = set()
        for alert, expression in self._rules:
            found = Evaluation(self.storage, at).vector(expression)
            if "record" in alert.rule:
                self._record(
                    alert.rule["record"], {without_name(k): v for k, v in found.items()}, at
                )
            else:
                firing.update(_fire(alert, {without_name(key) for key in found}, at))
        return firing

    def _record(self, name: str, found: Mapping[Labels, float], at: float) -> None:
        made = {key | labels(name): value for key, value in found.items()}
        for key, value in made.items():
            self.storage.add(key, at, value)
        for gone in self._recorded.get(name, set()) - made.keys():
            self.storage.add(gone, at, STALE)
        self._recorded[name] = set(made)


def _fire(alert: _Alert, found: set[Labels], at: float) -> Iterator[Firing]:
    alert.since = {key: alert.since.get(key, at) for key in found}
    for key, since in alert.since.items():
        if at - since >= alert.for_s:
            given = {**dict(key), **alert.rule["labels"]}
            yield Firing(alert.rule["alert"], given["severity"], given.get("cluster_id", ""))


def _seconds(text: str) -> float:
    return float(promql_parser.parse_duration(text).total_seconds())


def promtool_file(storage: Storage, end: int, expected: Mapping[int, set[Firing]]) -> str:
    """Return a file for ``promtool test rules`` with the same samples and expected alerts."""
    series = []
    for key, (times, values) in storage.series.items():
        name = dict(key)[NAME]
        if ":" in name:
            continue  # Recorded by the rules.
        at = dict(zip(times, values, strict=True))
        written = [_written(at.get(moment)) for moment in range(0, end + 1, EVERY_S)]
        others = ",".join(f'{k}="{v}"' for k, v in sorted(without_name(key)))
        series.append({"series": f"{name}{{{others}}}", "values": " ".join(written)})
    tests = [
        {
            "expr": 'group by (alertname, severity, cluster_id) (ALERTS{alertstate="firing"})',
            "eval_time": f"{moment}s",
            "exp_samples": [
                {"labels": _promtool_labels(one), "value": 1} for one in sorted(firing)
            ],
        }
        for moment, firing in expected.items()
    ]
    interval = f"{EVERY_S}s"
    return yaml.safe_dump(
        {
            "rule_files": [str(RULES)],
            "evaluation_interval": interval,
            "tests": [{"interval": interval, "input_series": series, "promql_expr_test": tests}],
        }
    )


def _promtool_labels(one: Firing) -> str:
    given = {"alertname": one.name, "severity": one.severity}
    if one.cluster_id:
        given["cluster_id"] = one.cluster_id
    return "{" + ", ".join(f'{k}="{v}"' for k, v in sorted(given.items())) + "}"


def _written(value: Any) -> str:
    if value is None:
        return "_"
    return "stale" if value is STALE else repr(float(value))
