"""The double roll with processes: heartbeats out of force and in again, a broker killed meanwhile,
and timeouts that do not fit.
"""

import signal
import time
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, cluster_of, describe, raftlog, says, succeed, until

from raftlog.local.cluster import LocalCluster

SESSION_S = 2.0
SETTINGS = {
    "broker.session.timeout.ms": int(SESSION_S * 1000),
    "broker.heartbeat.interval.ms": 300,
    "broker.fencing.timeout.ms": 3_000,
}


cluster = cluster_of(controllers=1, brokers=2, scope="function", settings=SETTINGS)


def levels(cluster: LocalCluster, way: str, level: int) -> Any:
    names = (f"broker.heartbeat.version={level}", f"lao.version={level}")
    return raftlog("cluster features", way, *names, controllers=cluster)


def states(cluster: LocalCluster) -> dict[int, str]:
    return {one["id"]: one["state"] for one in describe(cluster)["brokers"]}


@pytest.mark.nightly
def test_heartbeats_end_and_come_into_force_again_without_a_restart(cluster: LocalCluster) -> None:
    assert levels(cluster, "downgrade", 0).code == 0
    assert cluster.kill("broker-3", signal.SIGKILL)
    # Longer than both timeouts: nobody is fenced, and nobody fences himself.
    time.sleep(2 * SESSION_S)
    seen = describe(cluster)
    assert {one["id"]: one["state"] for one in seen["brokers"]} == {2: "active", 3: "active"}
    says(
        seen["unknown_reason"], r"broker.heartbeat.version is 0: brokers \[2, 3\] do not heartbeat"
    )
    quiet = next(one for one in seen["brokers"] if one["id"] == 2)
    assert cluster.ready("broker-2")[0]
    succeed("topics list --read latest", brokers=cluster.node("broker-2").endpoint)
    # It stops in order all the same, and is back at once.
    assert cluster.stop(["broker-2"], PATIENCE_S) == []
    assert states(cluster)[2] == "inactive"
    cluster.start("broker-2")
    cluster.wait_ready(["broker-2"], PATIENCE_S)
    back = next(one for one in describe(cluster)["brokers"] if one["id"] == 2)
    assert back["reason"] == "active without heartbeats"
    assert back["epoch"] > quiet["epoch"]
    # Raised: the dead one has its session to say something, and is fenced; the living one needs no
    # restart.
    assert levels(cluster, "upgrade", 1).code == 0
    until(lambda: states(cluster) == {2: "active", 3: "inactive"}, "the dead broker is fenced")
    until(lambda: describe(cluster)["lowest_acknowledged_offset"] is not None, "LAO is known again")
    after = next(one for one in describe(cluster)["brokers"] if one["id"] == 2)
    assert after["epoch"] == back["epoch"]


@pytest.mark.nightly
def test_broker_whose_timeouts_do_not_fit_the_controllers_says_so(cluster: LocalCluster) -> None:
    assert cluster.stop(["broker-3"], PATIENCE_S) == []
    config = cluster.config_path("broker-3")
    text = config.read_text()
    for key, value in (("broker.session.timeout.ms", 1_000), ("broker.fencing.timeout.ms", 1_500)):
        text = text.replace(f"{SETTINGS[key]}", f"{value}")
    config.write_text(text)
    cluster.start("broker-3")
    cluster.wait_ready(["broker-3"], PATIENCE_S)
    says(
        cluster.log_path("broker-3"),
        r"broker.fencing.timeout.ms \(1500\) is not above the controllers'"
        r" broker.session.timeout.ms \(2000\)",
    )
