"""Dashboards query metrics that nodes expose."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from expressions import faults_of, metrics
from typer.testing import CliRunner

from raftlog.cli.built_in import COMMANDS
from raftlog.cli.deploy import monitoring as app
from raftlog.monitoring import DASHBOARDS, RULES

FILES = sorted(DASHBOARDS.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_query_uses_exposed_metrics(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["uid"] == path.stem
    queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    assert len(queries) >= 10
    for query in queries:
        assert faults_of(query) == [], query
        assert 'cluster_id="$cluster"' in query, "one cluster of several"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_legend_uses_labels_that_the_query_leaves(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for one in panel["targets"]:
            used = set(re.findall(r"\{\{(\w+)\}\}", one["legendFormat"]))
            named = set(re.findall(r"[\w:]+", one["expr"]))
            has = {label for name in named & metrics().keys() for label in metrics()[name]}
            assert used <= has, panel["title"]
            if found := re.match(r"(?:sum|max) by \(([^)]*)\)", one["expr"]):
                assert used <= set(found[1].split(", ")), panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_have_titles_and_do_not_overlap(path: Path) -> None:
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert not [pair for pair in combinations(panels, 2) if _overlap(*pair)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panel_that_is_empty_when_healthy_shows_none(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        if any(one["expr"].endswith("> 0") for one in panel["targets"]):
            assert panel["fieldConfig"]["defaults"]["noValue"] in ("none", "nobody"), panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panel_describes_its_bad_state_and_the_remedy(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    commands = {one.name for one in COMMANDS}
    groups = {one.name.partition(" ")[0] for one in COMMANDS}
    for panel in board["panels"]:
        said = re.fullmatch(r"([A-Z0-9].+\.) Bad: (.+\.) Do: (.+\.)", panel.get("description", ""))
        assert said is not None, panel["title"]
        assert min(map(len, said.groups())) >= 4, panel["title"]
        for command in re.findall(r"\braftlog ([a-z]+)", said[0]):
            assert command in commands | groups, (panel["title"], command)


def _overlap(one: Any, other: Any) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return bool(
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


def test_command_prints_and_writes_the_dashboards(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["dashboards"]).stdout.split()
    assert listed == [path.stem for path in FILES]
    printed = runner.invoke(app, ["dashboards", listed[0]]).stdout
    assert json.loads(printed) == json.loads(FILES[0].read_text(encoding="utf-8"))
    assert runner.invoke(app, ["dashboards", "--output", str(tmp_path / "new")]).exit_code == 0
    written = sorted((tmp_path / "new").iterdir())
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in FILES]
    assert runner.invoke(app, ["dashboards", "no-such"]).exit_code != 0


def test_command_prints_the_rules_with_links_to_the_documentation() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["rules"]).stdout == RULES.read_text(encoding="utf-8")
    linked = runner.invoke(app, ["rules", "--docs", "https://docs.example.org/"]).stdout
    assert "runbook_url: https://docs.example.org/monitoring.md#raftlognoleader" in linked
