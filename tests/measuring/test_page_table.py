"""The table of the benchmarks' page: medians, spreads, ratios, and what has failed."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import peers, scale
from benchmarks.limits import limits
from benchmarks.page import runner
from benchmarks.page.figures import ENTRIES, Entry, Figure, dig
from benchmarks.page.table import Measured, Side, cell, markdown, number, ratio, rows
from benchmarks.workloads import WORKLOADS


def load(writes_per_s: int, p50: float) -> list[dict]:
    return [{"writes_per_s": writes_per_s, "latency_ms": {"p50": p50}}]


def etcd(writes_per_s: int, p50: float) -> dict:
    return load(writes_per_s, p50)[0]


def test_cell_is_the_median_and_the_spread() -> None:
    assert cell([]) == ""
    assert cell([1039]) == "1,039"
    assert cell([3, 1, 2]) == "2.00 (1.00–3.00)"
    assert cell([10.0, 20.0, 30.0, 40.0]) == "25.0 (10.0–40.0)"


@pytest.mark.parametrize(
    ("value", "text"), [(0.934, "0.93"), (12.34, "12.3"), (99.96, "100.0"), (48867.4, "48,867")]
)
def test_number_has_about_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_ratio_above_one_means_better_in_either_direction() -> None:
    assert ratio([200, 300, 100], [100], "more") == "2.00"
    assert ratio([5.0], [10.0], "less") == "2.00"
    assert ratio([5.0], [10.0], "") == ""
    assert ratio([5.0], [], "less") == ""
    assert ratio([0.0], [10.0], "less") == ""


def test_table_has_both_sides_in_one_row_of_each_figure() -> None:
    measured = Measured(
        Side([load(100, 4.0), load(300, 2.0), load(200, 3.0)]), Side([etcd(100, 6.0)])
    )
    found = rows("w2", ENTRIES["w2"], measured)
    assert found == [
        ("w2", "64 in flight, one connection: writes/s", "200 (100–300)", "100", "2.00"),
        ("", "p50 ms", "3.00 (2.00–4.00)", "6.00", "2.00"),
    ]


def test_one_write_in_flight_is_shown_as_times_the_floor_of_its_minute() -> None:
    measured = Measured(
        Side([load(100, 1.0), load(100, 0.8)], floors=[0.4, 0.6]),
        Side([etcd(100, 1.5)], floors=[1.0]),
    )
    label = "p50, times the floor of 0.60 ms"
    assert rows("w1", ENTRIES["w1"], measured)[-1] == (
        "",
        label,
        "1.80 (1.60–2.00)",
        "1.50",
        "0.83",
    )
    # Results that were kept before there was a floor have no such row.
    measured.ours.floors = []
    assert [row[1] for row in rows("w1", ENTRIES["w1"], measured)][1:] == ["p50 ms"]


def test_limits_of_the_machine_have_the_floor(tmp_path: Path) -> None:
    """[a directory that was not there yet ended the first run]"""
    found = asyncio.run(limits(tmp_path / "bench"))
    assert 0 < found["tcp_pingpong_p50_ms"] < found["floor_ms"]
    assert found["floor_ms"] == pytest.approx(
        found["overwrite_p50_ms"] + 2 * found["tcp_pingpong_p50_ms"], abs=0.001
    )


def test_broker_that_is_not_unfenced_in_time_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """[The run waited for it without end, and the figures after it were never measured]"""
    monkeypatch.setattr(scale, "TIMEOUT_S", 0.1)
    nobody: Any = SimpleNamespace(cluster_id="c", endpoints=["127.0.0.1:1"])
    assert scale._start_broker(nobody) is None


def test_workload_that_failed_is_said_and_the_rest_stands() -> None:
    broken = Measured(Side([], ["RuntimeError: no | leader"]), Side([etcd(100, 6.0)]))
    sound = Measured(Side([load(1, 1.0)]), Side([etcd(2, 2.0)]))
    text = markdown({"w1": broken, "w2": sound}, 10, "etcd")
    assert "| w1 | one write in flight: writes/s | failed | 100 |  |" in text
    assert "|  | runs that failed | 1 of 1: RuntimeError: no \\| leader |  |  |" in text
    assert "| w2 | 64 in flight, one connection: writes/s | 1.00 | 2.00 | 0.50 |" in text


def test_table_counts_failed_runs() -> None:
    measured = Measured(Side([load(100, 4.0)], ["TimeoutError: late"]))
    assert rows("w1", ENTRIES["w1"], measured)[-1] == (
        "",
        "runs that failed",
        "1 of 2: TimeoutError: late",
        "",
        "",
    )


def test_workload_of_which_nothing_is_known_is_not_left_out() -> None:
    (row,) = rows("w8", ENTRIES["w8"], Measured())
    assert row == ("w8", "the idle quorum: nothing was measured", "", "", "")


def test_markdown_is_one_table_with_as_many_columns_in_each_line() -> None:
    measured = {name: Measured(Side([load(1, 1.0)])) for name in ENTRIES}
    for peer, columns in (("etcd", 5), (None, 3)):
        lines = markdown(measured, 10, peer).splitlines()
        table = [line for line in lines if line.startswith("|")]
        assert lines[-len(table) :] == table
        assert lines[-len(table) - 1] == ""
        assert {line.replace("\\|", "").count("|") for line in table} == {columns + 1}


def test_limits_of_the_machine_stand_above_it() -> None:
    measured = Measured(Side([load(1, 1.0)]), limits=[{"fdatasync_p50_ms": 0.1}] * 2)
    assert "fdatasync p50 ms 0.10 (0.10–0.10)." in markdown({"w1": measured}, 10, None)


def test_every_entry_is_a_workload_with_figures() -> None:
    for name, entry in ENTRIES.items():
        assert entry.workload in WORKLOADS, name
        assert entry.figures, name


def test_absent_figure_has_no_number() -> None:
    assert dig([{"a": {"b": 1}}], (0, "a", "b")) == 1.0
    assert dig([], (0, "a")) is None
    assert dig([{"a": "text"}], (0, "a")) is None
    assert dig([{"a": 1}], ()) is None


def test_both_sides_take_turns_and_run_as_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = []

    def ours(entry: Entry, seconds: float, directory: Path) -> dict:
        order.append("ours")
        if order.count("ours") == 2:
            raise RuntimeError("no leader")
        return {"ours": load(1, 1.0), "limits": {"floor_ms": 0.5}}

    def theirs(workload: str, *, seconds: float, runs: int) -> dict:
        order.append("theirs")
        assert runs == 1
        return etcd(1, 1.0)

    monkeypatch.setattr(runner, "ours", ours)
    monkeypatch.setattr(peers, "etcd", theirs)
    found = runner.measure_entry("w1", 1, 3, tmp_path, "etcd")
    assert order == ["ours", "theirs"] * 3
    assert (len(found.ours.results), len(found.theirs.results)) == (2, 3)
    assert found.ours.failures == ["no leader"]
    # Each has the floor of its own minute.
    assert found.ours.floors == [0.5] * 2
    assert len(found.theirs.floors) == 3


def test_run_beside_others_is_repeated_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shares = iter([20.0, 1.0, 30.0, 30.0, 30.0])

    def ours(entry: Entry, seconds: float, directory: Path) -> dict:
        return {"ours": [{"cpu_of_others_percent": next(shares)}], "limits": {"floor_ms": 0.5}}

    monkeypatch.setattr(runner, "ours", ours)
    found = runner.measure_entry("w1", 1, 2, tmp_path, None)
    shown = [rows[0]["cpu_of_others_percent"] for rows in found.ours.results]
    assert shown == [1.0, 30.0]
    assert next(shares, None) is None


def test_last_line_of_an_error_says_why() -> None:
    assert (
        runner.last_line("Traceback\n│ TimeoutError: no leader │\n\n") == "TimeoutError: no leader"
    )
    assert runner.last_line("") == ""


def test_figures_without_a_counterpart_leave_the_peer_empty() -> None:
    entry = Entry("x", "w1", (Figure("a", (0, "a")),))
    measured = Measured(Side([[{"a": 1}]]), Side([], ["RuntimeError: x"]))
    assert rows("x", entry, measured)[0] == ("x", "x: a", "1.00", "", "")
