"""Tests of reading the results that the peer's scripts write."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import peers
from benchmarks.page.figures import ENTRIES, dig
from raftlog.errors import ConfigError

PUTS = {
    "puts_per_s": 1000.4,
    "lat_ms": {"p50": 0.8, "p99": 1.7},
    "cpu_us_per_put": 1300.0,
    "cpu_us_per_put_srv": 1100.0,
    "cpu_foreign_fraction": 0.02,
}
WRITTEN = {
    "w1": [PUTS],
    "w5": [{"watchers": n, "last_from_send_ms": {"p50": 1.5, "p99": 2.5}} for n in (3, 30, 100)],
    "w6": [{"kill_to_ack_ms": value} for value in (1270.0, 1069.0, 1825.0)],
    "w8": {"seconds": 60, "cpu_s_total": 1.5},
    "w9": [{"max_gap_ms": value} for value in (6.0, 3.7, 6.5)],
}


@pytest.mark.parametrize("workload", WRITTEN)
def test_every_figure_of_the_peer_is_found(workload: str) -> None:
    result = peers.in_our_words(workload, WRITTEN[workload])
    compared = [figure for figure in ENTRIES[workload].figures if figure.theirs]
    assert compared
    for figure in compared:
        assert dig(result, figure.theirs) is not None, figure.label


def test_middle_run_and_the_longest_gap_are_taken() -> None:
    assert peers.in_our_words("w6", WRITTEN["w6"])["gap_ms"] == {
        "p50": 1270.0,
        "max": 1825.0,
        "runs": 3,
    }
    runs = [PUTS | {"puts_per_s": value} for value in (3.0, 1.0, 2.0)]
    assert peers.in_our_words("w1", runs)["writes_per_s"] == 2
    assert peers.in_our_words("w1", [PUTS])["cpu_us_per_write"] == {
        "servers": 1100.0,
        "client": 200.0,
    }


def scripts(directory: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Path:
    """A peer whose run.py is this; the folder of what it writes."""
    (directory / "peers" / "etcd").mkdir(parents=True)
    (directory / "peers" / "etcd" / "run.py").write_text(program)
    (directory / "home" / "etcd" / "bin").mkdir(parents=True)
    (directory / "home" / "etcd" / "bin" / "etcd").touch()
    monkeypatch.setenv("BENCH_PEERS", str(directory / "peers"))
    monkeypatch.setenv("PEERS_HOME", str(directory / "home"))
    written = directory / "home" / "scripts" / "etcd" / "results"
    written.mkdir(parents=True)
    return written


def test_step_that_failed_does_not_show_an_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = scripts(tmp_path, monkeypatch, "")
    (written / "w8.json").write_text(json.dumps(WRITTEN["w8"]))
    with pytest.raises(RuntimeError, match="w8 of etcd's scripts has failed"):
        peers.etcd("w8", seconds=1, runs=1)


def test_step_is_run_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"open({str(tmp_path)!r} + '/home/scripts/etcd/results/w8.json', 'w').write({json.dumps(json.dumps(WRITTEN['w8']))})"
    scripts(tmp_path, monkeypatch, program)
    assert peers.etcd("w8", seconds=1, runs=1) == {"cpu_s_per_minute": 1.5}
    assert peers.etcd("k1", seconds=1, runs=1) is None


def test_peer_without_scripts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    with pytest.raises(ConfigError, match="BENCH_PEERS"):
        peers.etcd("w1", seconds=1, runs=1)
