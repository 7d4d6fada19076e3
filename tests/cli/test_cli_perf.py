"""``raftlog cluster perf``: what it judges, and that it leaves nothing behind."""

from __future__ import annotations

import pytest
from command_lines import Raftlog

from raftlog.cli.perf import RESOURCE, Measured, lines, report
from raftlog.local.cluster import LocalCluster


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (Measured([0.01] * 500, [], 10.0), ""),
        (Measured([0.01] * 400, [], 10.0), "less than 90%"),
        (Measured([0.01] * 490 + [0.3] * 10, [], 10.0), "p99 is above"),
        (Measured([0.01] * 499 + [1.5], [], 10.0), "slowest write"),
        (Measured([0.01] * 500, ["NOT_CONTROLLER"], 10.0), "1 errors, the first: NOT_CONTROLLER"),
        (Measured([], ["x"], 0.0), "0 writes a second"),
    ],
)
def test_verdicts(measured: Measured, why: str) -> None:
    document = report(measured, 50, 10, 5, 2.5)
    said = "\n".join(lines(document))
    assert (why in said and "FAIL" in said) if why else (document.failed == [] and "PASS" in said)


def test_a_cluster_is_measured_and_left_as_it_was(raftlog: Raftlog, cluster: LocalCluster) -> None:
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    ran = raftlog("cluster", "perf", "--seconds", 1, "--json", *at)
    assert ran.code in (0, 3), "a busy machine may be slow"
    assert ran.json["writes"] == 50
    assert ran.json["majority_sync_ms"] > 0
    image = raftlog("log", "image", "--json", *at).json
    assert not [one for one in image["configs"] if one["resource_name"].startswith(RESOURCE)]
