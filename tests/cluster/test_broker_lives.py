"""Broker processes that stop, crash, sleep, return, and share an id."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE_S,
    cluster_of,
    controllers_of,
    crash,
    describe,
    on_files,
    one_message,
    raftlog,
    running,
    says,
    setting,
    succeed,
    until,
    until_true,
)

from raftlog.local.cluster import LocalCluster, free_ports
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

# So long that a broker which comes back sooner cannot have waited for its old session to end.
LONG_SESSION = {"broker.session.timeout.ms": 60_000, "broker.fencing.timeout.ms": 90_000}
SHORT_SESSION = {
    "broker.session.timeout.ms": 5_000,
    "broker.heartbeat.interval.ms": 300,
    "broker.fencing.timeout.ms": 7_000,
}
BACK_WITHIN_S = 30.0


cluster = cluster_of(1, 2, "topics create t -p 4 -r 2", settings=LONG_SESSION)


def broker(cluster: LocalCluster, broker_id: int) -> dict[str, Any]:
    """Return the controller's description of a broker."""
    (found,) = (one for one in describe(cluster)["brokers"] if one["id"] == broker_id)
    return dict(found)


def is_back_at_once(cluster: LocalCluster, before: dict[str, Any]) -> None:
    cluster.start("broker-2")
    cluster.wait_ready(["broker-2"], BACK_WITHIN_S)
    back = broker(cluster, 2)
    assert back["state"] == "active"
    assert back["epoch"] > before["epoch"]


@pytest.mark.nightly
def test_stopped_broker_leaves_in_order_and_is_back_at_once(cluster: LocalCluster) -> None:
    before = broker(cluster, 2)
    assert cluster.stop(["broker-2"], PATIENCE_S) == []
    gone = broker(cluster, 2)
    assert (gone["state"], gone["leader_count"]) == ("inactive", 0)
    says(gone["reason"], "controlled shutdown")
    last = cluster.log_path("broker-2").read_text().splitlines()[-1]
    says(last, "broker stopped", "controlled shutdown")
    assert broker(cluster, 3)["leader_count"] == 4
    is_back_at_once(cluster, before)


@pytest.mark.nightly
def test_killed_broker_is_back_at_once_by_its_process_proof(cluster: LocalCluster) -> None:
    before = broker(cluster, 2)
    crash(cluster, "broker-2")
    # Its session is long, and goes on whether it is fenced or not.
    assert broker(cluster, 2)["last_contact_age_ms"] is not None
    is_back_at_once(cluster, before)


@pytest.mark.nightly
def test_second_broker_with_a_live_id_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    before = broker(cluster, 2)
    port, http_port = free_ports(2)
    flags = [
        f"--set=log.dirs={tmp_path}/data",
        f"--set=listeners=127.0.0.1:{port}",
        f"--set=http.listener=127.0.0.1:{http_port}",
        "--set=initial.broker.registration.timeout.ms=1500",
        "--set=log.format=console",
    ]
    config = ("-c", cluster.config_path("broker-2"))
    on_files("storage format", *config, flags[0])
    ran = raftlog("broker run", *config, *flags).refused(1)
    says(
        ran.err,
        r"(?m)^.*warning.*DUPLICATE_BROKER_REGISTRATION: broker 2 is registered by another process,"
        r" incarnation \S+ at " + cluster.node("broker-2").endpoint,
        r"(?m)^.*critical.*could not register within 1.5 s",
    )
    # The same directory is refused before it says a word to anybody.
    ran = raftlog("broker run", *config, *flags[1:])
    says(one_message(ran), f"in use by pid {cluster.pid('broker-2')}")
    assert ran.code == 2
    after = broker(cluster, 2)
    assert (after["epoch"], after["state"]) == (before["epoch"], "active")
    assert cluster.ready("broker-2", PATIENCE_S)[0]


async def lao_of(client: Any) -> pb.DescribeBrokersResponse:
    response = await client.call(pb.DescribeBrokersRequest(), timeout_s=PATIENCE_S)
    return response.describe_brokers


async def sleep_and_wake(cluster: LocalCluster, sleeper: int) -> None:
    async with controllers_of(cluster) as client:
        highest = -1
        stopping = False

        async def watch() -> None:
            """LAO never goes back, asleep or awake."""
            nonlocal highest
            while not stopping:
                lao = (await lao_of(client)).lowest_acknowledged_offset
                assert lao >= highest
                highest = lao
                await asyncio.sleep(0.01)

        async def write(key: str, acks: common_pb2.Acks = common_pb2.ACKS_COMMITTED) -> Any:
            return (await client.call(setting(key, "x"), acks=acks, timeout_s=PATIENCE_S)).write

        async def state_is(state: int) -> bool:
            found = (await lao_of(client)).brokers
            return next(one.state for one in found if one.broker_id == sleeper) == state

        watching = asyncio.create_task(watch())
        assert cluster.kill(f"broker-{sleeper}", signal.SIGSTOP)
        await write("held")
        # LAO waits for the sleeper as long as it counts, and goes on without it once it is fenced.
        acknowledged = await write("asleep", common_pb2.ACKS_VISIBLE)
        assert acknowledged.reached == common_pb2.ACKS_VISIBLE
        assert await state_is(pb.INACTIVE)
        assert (await lao_of(client)).lowest_acknowledged_offset >= acknowledged.token.offset
        asleep = await asyncio.to_thread(broker, cluster, sleeper)
        says(asleep["reason"], "session")
        assert cluster.kill(f"broker-{sleeper}", signal.SIGCONT)
        await until_true(lambda: state_is(pb.ACTIVE), "the sleeper is unfenced again")
        awake = await asyncio.to_thread(broker, cluster, sleeper)
        # It is the same process: the same registration, not a new one.
        assert awake["epoch"] == asleep["epoch"]
        assert (await write("awake", common_pb2.ACKS_VISIBLE)).reached == common_pb2.ACKS_VISIBLE
        stopping = True
        await watching


async def die(cluster: LocalCluster, victim: int) -> float:
    """Kill a broker; return how long the next write takes to be visible everywhere."""
    async with controllers_of(cluster) as client:
        loop = asyncio.get_running_loop()
        assert cluster.kill(f"broker-{victim}", signal.SIGKILL)
        begun = loop.time()
        write = (
            await client.call(setting("k", "x"), acks=common_pb2.ACKS_VISIBLE, timeout_s=PATIENCE_S)
        ).write
        assert write.reached == common_pb2.ACKS_VISIBLE
        return loop.time() - begun


@pytest.mark.nightly
def test_sleeping_broker_is_fenced_and_returns_and_a_dead_one_delays_no_lao(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=2, settings=SHORT_SESSION)
    with running(cluster):
        begun = time.monotonic()
        asyncio.run(sleep_and_wake(cluster, 3))
        until(lambda: cluster.ready("broker-3")[0], "broker-3 serves")
        assert (
            value_on(cluster, "broker-2", "awake") == value_on(cluster, "broker-3", "awake") == "x"
        )
        # A controller that has led for less than a session waits for leases that it does not know.
        until(lambda: time.monotonic() - begun > 5.5, "the controller knows all leases")
        took_s = asyncio.run(die(cluster, 2))
        says(broker(cluster, 2)["reason"], "process gone: its listener refuses connections")
        assert took_s < 3.0
        cluster.start("broker-2")
        cluster.wait_ready(["broker-2"], BACK_WITHIN_S)
        assert broker(cluster, 2)["state"] == "active"


def value_on(cluster: LocalCluster, name: str, key: str) -> str:
    """Return the value that a plain read on one broker shows."""
    command = f"configs describe client-metrics {key} --key match --json"
    ran = succeed(command, brokers=cluster.node(name).endpoint)
    return str(ran.json["items"][0]["value"])
