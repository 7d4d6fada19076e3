"""Periods of time in options, and the history that commands print."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from command_lines import Raftlog

from raftlog.cli.values import FOR_EVER_MS, Period, export_time_ms, parse_span_ms, parse_when_ms
from raftlog.local.cluster import LocalCluster
from raftlog.ops import history as ops_history

NOW = round(datetime(2026, 1, 31, 12, 30, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("2.5s", 2_500)]
)
def test_valid_span_is_parsed(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "7", "d7", "7x", "1h 3m", "-1h", "9" * 400 + "s", "9" * 12 + "w", "\u00b2s"]
)
def test_invalid_span_is_refused(text: str) -> None:
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
def test_valid_time_is_parsed(text: str, wanted: str) -> None:
    found = datetime.fromtimestamp(parse_when_ms(text, lambda: NOW) / 1000, UTC)
    assert found.isoformat()[:19] == wanted


@pytest.mark.parametrize("text", ["soon", "25:00", "2026-13-01", "12", "\u00b2" * 9, "9" * 400])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_when_ms(text, lambda: NOW)


def test_period_longer_than_time_begins_with_time() -> None:
    assert Period("9999999w").at(lambda: NOW) == (0, FOR_EVER_MS)


def test_impossible_period_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="not both"):
        Period("1h", "12:00")
    with pytest.raises(typer.BadParameter, match="not a duration"):
        Period("yesterday")
    with pytest.raises(typer.BadParameter, match="must be later"):
        Period(begin="2026-01-31", end="2026-01-30").at(lambda: NOW)


def test_period_counts_from_its_start_time_to_the_end() -> None:
    assert Period("1h").at(lambda: NOW) == (NOW - 3_600_000, FOR_EVER_MS)
    assert Period(default="1m").at(lambda: NOW) == (NOW - 60_000, FOR_EVER_MS)
    assert Period("30m", end="12:00").at(lambda: NOW) == (NOW - 3_600_000, NOW - 1_800_000)


def test_period_reads_no_clock_when_no_bound_is_relative() -> None:
    def asked() -> int:
        raise AssertionError("the time was asked for")

    assert Period().at(asked) == (0, FOR_EVER_MS)
    assert Period(begin="2026-01-31T12:30").at(asked) == (NOW, FOR_EVER_MS)


@pytest.mark.parametrize("ahead_s", [-3_600, 7_200])
def test_cluster_time_is_used_when_the_local_clock_is_wrong(
    raftlog: Raftlog,
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: int,
    at: Raftlog,
) -> None:
    """[a topic that existed "is and was not there" for a machine two seconds behind]"""
    name = f"clock{ahead_s}"
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead_s * 1_000_000_000)
    raftlog.succeed(f"topics create {name} --bootstrap-server {cluster.bootstrap_servers}")
    for period in ((), ("--since", "10m"), ("--limit", "1")):
        found = at(f"history topic {name}", *period)
        assert "created: id " in found.out or "created: leader " in found.out, found
    file = tmp_path / "b.tar.gz"
    at.succeed("debug bundle", file, "--no-disk", "--since", "10m")
    bundle = ("--bundle", file)
    for how in (at, (*at, "--since", "1h"), bundle, (*bundle, "--since", "50m")):
        told = " ".join(raftlog("explain --all", *how).out.split())
        assert f"changed topic {name}: created" in told
        assert "controller-1 started for the first time" in told


def test_history_counts_omitted_changes_and_keys_displace_none(
    monkeypatch: pytest.MonkeyPatch, at: Raftlog, through: Raftlog
) -> None:
    through.succeed("topics create cut")
    through.succeed("kv put cut/a 1")
    monkeypatch.setattr(ops_history, "MAX_CHANGES", 2)
    told = " ".join(at("explain --since 1h").out.split())
    assert "only the newest 2 of" in told
    assert "changed topic cut: created" in told


def test_refusal_is_printed_without_an_empty_table(through: Raftlog) -> None:
    assert through("topics create once").out.startswith("once: created\n")
    again = through("topics create once twice")
    assert (again.code, again.out.splitlines()[0]) == (1, "twice: created")
    assert (again.out + again.err).count("topic 'once' already exists") == 1
    both = through("topics delete no1 no2")
    assert (both.code, both.out) == (1, "")
    assert [line.split("'")[1] for line in both.err.splitlines()] == ["no1", "no2"]
    nothing = through("topics describe nope")
    assert (nothing.code, nothing.out) == (1, "")
    assert "no such topic: nope" in nothing.err


def test_topic_history_is_the_same_in_a_cluster_and_its_export(
    raftlog: Raftlog, tmp_path: Path, at: Raftlog, through: Raftlog
) -> None:
    through.succeed("topics create told --partitions 2")
    for value in ("1000", "2000"):
        through.succeed(f"configs alter topic told --set retention.ms={value}")
    live = at.succeed("history topic told --since 1h")
    lines = live.out.splitlines()
    assert lines[0].split() == ["OFFSET", "TIME", "BY", "WHAT", "CHANGE"]
    assert "topic told" in lines[1]
    assert "created: id " in lines[1]
    assert "partition told-1" in lines[3]
    assert lines[-2].endswith("config topic:told:retention.ms  1000 → 2000")
    assert lines[-1].startswith("5 changes to topic told, up to offset ")
    at.succeed("export", tmp_path / "e")
    exported = raftlog("history topic told --export", tmp_path / "e")
    assert exported.out.splitlines()[:-1] == lines[:-1], "the same words"
    one = at("history config topic told --limit 1 --json")
    assert one.json["fields"] == [{"field": "value", "before": "1000", "after": "2000"}]
    assert one.json["before"] == "1000"
    all_ = at("history config topic told --json")
    assert (len(all_.out.splitlines()), all_.err) == (2, "")
    assert one.err.startswith("2 changes to config topic told, up to offset")
    assert "(the newest 1 shown" in one.err
    later = at("history topic told --from 2020-01-01 --to 2020-01-02")
    assert later.out.startswith("0 changes to topic told")
    assert raftlog("history topik").code == 2
    never = at("history topic never")
    assert (never.code, never.out) == (1, "")
    assert "topic never does not exist and never did" in never.err
    assert at("history config topic never").out.startswith("0 changes")
    assert raftlog("history topic told --since yesterday").code == 2


def test_empty_time_for_an_export_is_refused() -> None:
    """[an unset variable of a script would mean the end of the export]"""
    with pytest.raises(typer.BadParameter, match="is not a time like"):
        export_time_ms("", "no export")
    assert export_time_ms(None, "no export") is None
