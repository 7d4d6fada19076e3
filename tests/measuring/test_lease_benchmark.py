import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import peers
from benchmarks.leases import ours as measured
from benchmarks.nodes import Quorum
from benchmarks.page.figures import ENTRIES, dig

TIMES = {"p50": 1.0, "p99": 2.0}
CPU = {"servers": 3.0, "client": 4.0}
KEPT = {
    "cpu_us_per_keep_alive": CPU,
    "least_left_s": 7.5,
    "grants_per_s": 1000,
    "revocations_per_s": 2000,
}
STEPS = {
    "one client": KEPT,
    "many clients": KEPT,
    "lock": {"acquire_ms": TIMES, "release_ms": TIMES, "cpu_us_per_lock": CPU},
    "hand-over": {"hand_over_ms": TIMES, "cpu_us_per_lock": CPU},
    "election": {"dead_until_led_ms": TIMES},
}


def test_every_benchmark_figure_exists_for_raftlog_and_its_peer() -> None:
    figures = ENTRIES["leases"].figures
    assert len(figures) == 20
    for figure in figures:
        assert dig([STEPS], figure.ours) is not None, figure.label
        assert dig(STEPS, figure.theirs) == dig([STEPS], figure.ours), figure.label
    assert set(peers.ratios("leases", [STEPS], STEPS).values()) == {1.0}


@pytest.mark.nightly
def test_benchmark_steps_measure_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, float] = {
        "LEASES": 20,
        "CLIENTS": 3,
        "TTL_S": 2.0,
        "KEPT_EVERY_S": 0.5,
        "SETTLE_S": 0.5,
    }
    small |= {"CONTENDERS": 4, "CONTENDING_CLIENTS": 2, "DEATHS": 1}
    for name, value in small.items():
        monkeypatch.setattr(measured, name, value)
    with Quorum(tmp_path / "q", nodes=1, brokers=1) as quorum:
        found = measured.leases(quorum, 0.2)
    for figure in ENTRIES["leases"].figures:
        seen = dig([found], figure.ours)
        assert seen is not None, figure.label
        assert seen >= 0.0, figure.label
    assert [found[step]["lost"] for step in ("one client", "many clients")] == [0, 0]
    # Kept alive each 0.5 s of 2: no lease can have had more than 2 s, or be without any.
    assert 0.0 < found["one client"]["least_left_s"] <= 2.0
    # A leader that is silent is gone at most its time later, and not at once.
    assert 500.0 < found["election"]["dead_until_led_ms"]["max"] < 10_000.0
