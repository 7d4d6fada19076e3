"""The doctor's screen and document, and its commands for a local cluster."""

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from clusters import broker, brokers, described, endpoint, quorum, voter
from msgspec.structs import replace
from test_node_findings import EXPIRED, OWN, behind_tls, clocks, disk, told

from raftlog.cli.main import build_for
from raftlog.node.config.sources import LOCAL_DIRECTORY
from raftlog.ops import node_findings, quorum_findings
from raftlog.ops.doctor import MOST_FINDINGS, diagnose, report, screen, with_local_commands
from raftlog.ops.evidence import AskedNode, BrokerState, Reach, Survey
from raftlog.ops.quorum_findings import Finding, Severity
from raftlog.text import to_json

REASON = "UNAVAILABLE: failed to connect: Connection refused (111) \x1b[2J"
SITUATIONS = {
    "healthy": quorum(3, brokers=brokers(broker(1), broker(2))),
    "no quorum": quorum(
        5,
        0,
        {1: Reach.REFUSES, 2: Reach.SILENT, 5: Reach.OTHER},
        voters={1: {"unreachable_ms": 90_000, "unreachable_reason": REASON}},
    ),
    "nobody": quorum(3, 0, dict.fromkeys((1, 2, 3), Reach.REFUSES)),
    "brokers": quorum(
        3,
        1,
        {3: Reach.SILENT},
        voters={3: {"last_fetch_age_ms": 99_999}},
        brokers=brokers(
            *(
                broker(one, state=BrokerState.INACTIVE, reason="its session has ended")
                for one in range(1, 20)
            ),
            partitions={"total": 100, "offline": 100},
        ),
    ),
    "election": quorum(3, 0),
    "leader's disk": quorum(
        3, 1, voters={1: {"low_on_space": True}}, brokers=brokers(broker(4), broker(5))
    ),
    "behind": quorum(3, 1, voters={2: {"log_end_offset": 9, "last_caught_up_age_ms": 700_000}}),
    "LAO": quorum(
        3,
        1,
        brokers=brokers(
            broker(4), lowest_acknowledged_offset=40, held_back_by=[4], held_back_ms=9_000
        ),
    ),
    "diverged": quorum(
        3,
        says={
            one: {"image_offset": 99, "image_epoch": 7, "state_hash": bytes([one == 3] * 16)}
            for one in (1, 2, 3)
        },
    ),
    "other cluster": replace(
        quorum(3),
        nodes=(
            *quorum(3).nodes[:2],
            AskedNode(
                endpoint(3),
                Reach.ANSWERS,
                described(3, "prospective", [voter(3)], cluster_id="f" * 36),
                node_id=3,
            ),
        ),
    ),
    "leader unseen": quorum(3, 1, {1: Reach.SILENT, 3: Reach.SILENT}, voters={1: {}}),
    "expired": behind_tls({3: EXPIRED}, 1),
    "own expired": behind_tls(dict.fromkeys((1, 2, 3), OWN), 0),
    "clocks": clocks(0, 61_000, 3),
    "nearly full": disk(1 << 30, 50 << 30),
    "builds": told(
        quorum(3),
        {one: {"version": f"0.{1 + one // 3}.0 (commit 58f7ecc1d2e3)"} for one in (1, 2, 3)},
    ),
}


def shown(seen: Survey) -> str:
    return screen(seen, diagnose(seen))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_screen_is_80_columns_wide(situation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    seen = SITUATIONS[situation]
    text = shown(seen)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text, "a stranger's text does not repaint the terminal"
    assert (diagnose(seen) == []) is (situation == "healthy")
    for finding in diagnose(seen)[:MOST_FINDINGS]:
        assert finding.command in text, "a command is whole, and in one line"


def test_headline_summarizes_the_state() -> None:
    assert shown(SITUATIONS["healthy"]).startswith("HEALTHY: cluster 2c3f2edf")
    assert ", leader 1 in epoch 7" in shown(SITUATIONS["healthy"]).splitlines()[0]
    assert shown(SITUATIONS["no quorum"]).splitlines()[0].endswith("no leader")
    assert shown(SITUATIONS["nobody"]).startswith("DOWN: no controller answers")


def test_omitted_findings_are_counted() -> None:
    assert f"… and {21 - MOST_FINDINGS} more" in shown(SITUATIONS["brokers"])


def test_table_shows_which_nodes_a_node_does_not_reach() -> None:
    lines = shown(SITUATIONS["no quorum"]).splitlines()
    (fourth,) = (line for line in lines if line.startswith("4 "))
    assert fourth.endswith("all but 1")


def test_nodes_without_self_description_are_reported() -> None:
    """[The disk of a broker that had not answered in time seemed to be healthy.]"""
    both = quorum(3, brokers=brokers(broker(4), broker(5), broker(6, state=BrokerState.INACTIVE)))
    seen = told(both, {1: {}, 2: {}, 4: {}})
    assert seen.unreported == ["node 3", "broker 5"]
    assert report(seen, []).unreported == ["node 3", "broker 5"]
    line = " ".join(shown(seen).split("\n\n")[-1].split())
    assert line.startswith("Unknown for lack of an answer: disk, clock,")
    assert line.endswith("build of node 3 and broker 5.")
    assert "Unknown for lack" not in shown(told(quorum(3), {1: {}, 2: {}, 3: {}}))


def test_json_has_every_finding() -> None:
    seen = SITUATIONS["brokers"]
    findings = diagnose(seen)
    told = json.loads(json.dumps(to_json(report(seen, findings))))
    assert told["verdict"] == "down"
    assert [one["code"] for one in told["findings"]] == [one.code for one in findings]
    assert told["nodes"][2] == {
        "node_id": 3,
        "endpoint": "127.0.0.1:9093",
        "reach": "silent",
        "role": None,
        "failure": "the reason",
    }
    assert told["brokers"] == {"inactive": 19}


def commands(module: ModuleType) -> Iterator[str]:
    nodes = [*ast.walk(ast.parse(Path(module.__file__ or "").read_text()))]
    parts = {id(one) for node in nodes if isinstance(node, ast.JoinedStr) for one in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts:
            pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [str(one.value) if isinstance(one, ast.Constant) else "1" for one in pieces]
            if re.fullmatch(r"raftlog( [\w./=-]+)+( HOST:PORT)?", text := "".join(texts)):
                yield text


def test_each_suggested_command_runs_as_printed() -> None:
    """[`raftlog topics describe` required a topic name.]"""
    found = {*commands(quorum_findings), *commands(node_findings)}
    assert len(found) > 15
    for text in sorted(found):
        words = text.split()[1:]
        command: Any = typer.main.get_command(build_for(words))
        with contextlib.suppress(typer.Exit):  # --help
            context = command.make_context("raftlog", words)
            while hasattr(command, "commands"):
                rest = [*context._protected_args, *context.args]
                name, command, rest = command.resolve_command(context, rest)
                assert command is not None, text
                context = command.make_context(name, rest, parent=context)


ADDRESSES = ["127.0.0.1:9093", "127.0.0.1:9094"]
FOUND = [
    Finding("VOTER_DOWN", Severity.DEGRADED, "", "", "", "raftlog controller run -c FILE"),
    Finding("BROKER_FENCED", Severity.DEGRADED, "", "", "", "raftlog broker run -c FILE"),
    Finding("CLOCKS_DIFFER", Severity.NOTICE, "", "", "", "timedatectl"),
]


def cluster(directory: Path, port: int) -> Path:
    directory.mkdir()
    (directory / "cluster.json").write_text(f'{{"nodes": [{{"port": {port}, "name": "c"}}]}}')
    return directory


def test_doctor_names_local_start_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[An operator copied `raftlog controller run -c FILE`, and there was no FILE.]"""
    directory = cluster(tmp_path / "my cluster", 9094)
    monkeypatch.setenv(LOCAL_DIRECTORY, str(directory))
    assert [one.command for one in with_local_commands(FOUND, ADDRESSES)] == [
        f"raftlog local start --dir '{directory}'",
        f"raftlog local start --dir '{directory}'",
        "timedatectl",
    ]


def test_doctor_names_no_start_command_for_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_local_commands(FOUND, ADDRESSES) == FOUND
    monkeypatch.setenv(LOCAL_DIRECTORY, str(cluster(tmp_path / "other", 19_999)))
    assert with_local_commands(FOUND, ADDRESSES) == FOUND
    monkeypatch.setenv(LOCAL_DIRECTORY, str(tmp_path / "gone"))
    assert with_local_commands(FOUND, ADDRESSES) == FOUND
