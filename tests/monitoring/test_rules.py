"""Alerts: each uses exposed metrics, links to its remedy, and fires in its case."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_runs import run_text
from expressions import faults_of
from promql import STALE, Storage, labels
from rule_runs import Firing, RuleRun, each_rule, load_rules
from tiers import nightly

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).with_name("rules_test.yml")
ALERTS = [rule for rule in each_rule(load_rules()) if "alert" in rule]
CASES = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]
LONG_S = 1200
"""A case that lasts longer takes seconds to evaluate."""
EVERY_S = 15


@pytest.mark.parametrize(
    "rule", list(each_rule(load_rules())), ids=lambda rule: rule.get("alert", "recorded")
)
def test_rule_uses_exposed_metrics(rule: Any) -> None:
    assert faults_of(rule["expr"]) == []


def test_wrong_metric_name_or_label_is_detected() -> None:
    assert faults_of("raftlog_no_such_metric > 1") == ["no metric raftlog_no_such_metric"]
    assert faults_of('raftlog_low_on_space{brocker="4"}') == [
        "raftlog_low_on_space has no label brocker"
    ]
    assert faults_of("sum by (cluster) (up)") == ["nothing here has a label cluster"]
    assert faults_of("raftlog_disk_busy_seconds_bucket")
    assert faults_of("sum(")


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_links_to_the_remedy(rule: Any) -> None:
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    used = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    kept = used - {"cluster_id", "node_id", "role", "job", "instance"}
    if "raftlog:node:last_known and" not in rule["expr"]:  # It has them all.
        assert all(label in rule["expr"] for label in kept | (used & {"node_id", "role"}))
    page, _, anchor = notes["runbook_url"].partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert anchor == rule["alert"].lower()
    assert f"### {rule['alert']}\n" in text


def _samples(values: str) -> Iterator[float | object | None]:
    """Return the samples in promtool's notation."""
    for part in values.split():
        if part == "stale":
            yield STALE
        elif part.startswith("_"):
            yield from [None] * int(part[2:] or 1)
        elif "x" in part:
            found = re.fullmatch(r"(-?[\d.e]+?)(?:([+-])([\d.e]+))?x(\d+)", part)
            assert found is not None, part
            first, step = float(found[1]), float((found[2] or "+") + (found[3] or "0"))
            yield from (first + step * number for number in range(int(found[4]) + 1))
        else:
            yield float(part)


def _in_tiers(case: Any) -> Any:
    until = max(_seconds(one["eval_time"]) for one in case["promql_expr_test"])
    return nightly(case) if until > LONG_S else case


def _labels_of(series: str) -> Any:
    name, _, rest = series.rstrip("}").partition("{")
    return labels(name, **dict(re.findall(r'(\w+)="([^"]*)"', rest)))


def _fired(case: Any) -> dict[int, set[Firing]]:
    storage = Storage()
    read = [
        (_labels_of(one["series"]), list(_samples(one["values"]))) for one in case["input_series"]
    ]
    rules, fired = RuleRun(storage), {}
    until = max(_seconds(one["eval_time"]) for one in case["promql_expr_test"])
    for number in range(until // EVERY_S + 1):
        for key, values in read:
            if number < len(values) and values[number] is not None:
                storage.add(key, number * EVERY_S, values[number])
        fired[number * EVERY_S] = rules.evaluate(number * EVERY_S)
    return fired


def _seconds(text: str) -> int:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)([smhd])", text))


@pytest.mark.parametrize("case", [_in_tiers(case) for case in CASES], ids=lambda case: case["name"])
def test_each_case_fires_exactly_its_alerts(case: Any) -> None:
    fired = _fired(case)
    for one in case["promql_expr_test"]:
        wanted = {
            Firing(given["alertname"], given["severity"], given.get("cluster_id", ""))
            for sample in one.get("exp_samples", ())
            for given in [dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))]
        }
        assert fired[_seconds(one["eval_time"])] == wanted, one["eval_time"]


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    text = TESTS.read_text(encoding="utf-8")
    assert {rule["alert"] for rule in ALERTS} == set(re.findall(r'alertname="(\w+)"', text))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "words",
    [("check", "rules", "../../raftlog/monitoring/rules.yml"), ("test", "rules", TESTS.name)],
    ids=lambda words: words[0],
)
def test_promtool_accepts_the_rules_and_their_tests(words: tuple[str, ...]) -> None:
    ran = run_text(["promtool", *words], cwd=TESTS.parent, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
