"""``raftlog history``, of a running cluster and of an export; and times as people type them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from command_lines import Raftlog

from raftlog.cli.local import LocalCluster
from raftlog.cli.times import parse_span_ms, parse_when_ms, period_ms

NOW = round(datetime(2026, 1, 31, 12, 30, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("2.5s", 2_500)]
)
def test_spans(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "7", "d7", "7x", "1h 3m", "-1h"])
def test_no_spans(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_span_ms(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00"),
        ("2026-01-31 12:00", "2026-01-31T12:00:00"),
        ("2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00"),
        ("12:00", "2026-01-31T12:00:00"),
        ("12:29:59.120Z", "2026-01-31T12:29:59"),
        ("12:31", "2026-01-30T12:31:00"),
        (str(NOW), "2026-01-31T12:30:00"),
    ],
)
def test_times(text: str, wanted: str) -> None:
    found = datetime.fromtimestamp(parse_when_ms(text, NOW) / 1000, UTC)
    assert found.isoformat()[:19] == wanted


@pytest.mark.parametrize("text", ["soon", "25:00", "2026-13-01", "12"])
def test_no_times(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_when_ms(text, NOW)


def test_a_period_that_cannot_be() -> None:
    with pytest.raises(typer.BadParameter, match="not both"):
        period_ms("1h", "12:00", "", 1)
    with pytest.raises(typer.BadParameter, match="ends before"):
        period_ms("", "2026-01-31", "2026-01-30", 1)


def test_a_topic_of_a_running_cluster_and_of_its_export(
    raftlog: Raftlog, cluster: LocalCluster, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    log = ("--bootstrap-controller", cluster.bootstrap_controllers)
    assert raftlog("topics", "create", "told", "--partitions", 2, *at).code == 0
    for value in ("1000", "2000"):
        altered = raftlog(
            "configs", "alter", "topic", "told", "--set", f"retention.ms={value}", *at
        )
        assert altered.code == 0
    live = raftlog("history", "topic", "told", "--since", "1h", *log)
    assert live.code == 0
    lines = live.out.splitlines()
    assert lines[0].split() == ["OFFSET", "TIME", "BY", "WHAT", "CHANGE"]
    assert "topic told" in lines[1]
    assert "created: id " in lines[1]
    assert "partition told-1" in lines[3]
    assert lines[-2].endswith("config topic:told:retention.ms  1000 → 2000")
    assert lines[-1].startswith("5 changes of topic told")
    assert raftlog("export", tmp_path / "e", *log).code == 0
    exported = raftlog("history", "topic", "told", "--export", tmp_path / "e")
    assert exported.out.splitlines()[:-1] == lines[:-1], "the same words"
    one = raftlog("history", "config", "topic", "told", "--limit", 1, "--json", *log)
    assert one.json["fields"] == [{"field": "value", "before": "1000", "after": "2000"}]
    assert one.json["before"] == "1000"
    later = raftlog("history", "topic", "told", "--from", "2020-01-01", "--to", "2020-01-02", *log)
    assert later.out.startswith("0 changes of topic told")
    assert raftlog("history", "topik").code == 2
    never = raftlog("history", "topic", "never", *log)
    assert (never.code, never.out) == (1, "")
    assert "there is and was no topic never" in never.err
    assert raftlog("history", "config", "topic", "never", *log).out.startswith("0 changes")
    assert raftlog("history", "topic", "told", "--since", "yesterday").code == 2
