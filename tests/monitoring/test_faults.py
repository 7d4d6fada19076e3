"""Alerts by fault: shipped nodes on simulated disks and networks, scraped on virtual time. Nightly
promtool evaluates the same samples, and must raise the same alerts.
"""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from command_runs import run_text
from fault_world import RESERVE_BYTES, World
from rule_runs import Firing, promtool_file
from tiers import nightly

from simulation.twins.loop import run

CALM_S = 60
"""Before a fault."""


def page(name: str, cluster_id: str = "a") -> Firing:
    return Firing(name, "critical", cluster_id)


async def all_down(world: World) -> None:
    for host in world.a.hosts:
        host.kill()
    await world.run(120)


async def controllers_down(world: World) -> None:
    for host in world.a.controllers:
        host.kill()
    await world.run(120)


async def minority_down(world: World) -> None:
    next(one for one in world.a.controllers if one.service.node.decider is not None).kill()
    await world.run(120)


async def majority_down(world: World) -> None:
    for host in world.a.controllers[:2]:
        host.kill()
    await world.run(120)


async def slow_disk_of_a_follower(world: World) -> None:
    follower = next(one for one in world.a.controllers if one.service.node.decider is None)
    follower.disk.latency_factor = 400
    await world.run(480)


async def slow_disks_of_a_majority(world: World) -> None:
    for host in world.a.controllers[:2]:
        host.disk.latency_factor = 600
    await world.run(600)


async def hanging_disk_of_the_leader(world: World) -> None:
    next(one for one in world.a.controllers if one.service.node.decider is not None).disk.hang()
    await world.run(120)


async def full_disk_of_a_controller(world: World) -> None:
    world.a.controllers[0].disk.capacity_bytes = RESERVE_BYTES // 2
    await world.run(120)


async def full_disks_of_a_majority(world: World) -> None:
    for host in world.a.controllers[:2]:
        host.disk.capacity_bytes = RESERVE_BYTES // 2
    await world.run(120)


async def full_disk_of_a_broker(world: World) -> None:
    next(iter(world.a.brokers.values())).disk.capacity_bytes = RESERVE_BYTES // 2
    await world.run(120)


async def paused_broker(world: World) -> None:
    world.a.network.pause(next(iter(world.a.brokers.values())).name)
    await world.run(600)


async def two_brokers_down(world: World) -> None:
    for host in list(world.a.brokers.values())[:2]:
        host.kill()
    await world.run(120)


async def all_brokers_down(world: World) -> None:
    for host in world.a.brokers.values():
        host.kill()
    await world.run(120)


async def load(world: World) -> None:
    world.write_always(every_s=0.2, writers=8)
    await world.run(90)


async def nothing(world: World) -> None:
    await world.run(900)


async def rolling_restart(world: World) -> None:
    for host in world.a.hosts:
        host.kill()
        await world.run(15)
        host.start()
        await world.run(45)


class Case(NamedTuple):
    """A fault and the alerts that it must cause."""

    fault: Callable[[World], Awaitable[None]]
    pages: set[Firing]
    tickets: set[str]
    clusters: tuple[str, ...] = ("a",)
    gate: bool = False


DOWN = "RaftlogNodeDown"
CASES = [
    Case(nothing, set(), set()),
    Case(load, set(), set()),
    Case(all_down, {page("RaftlogNoLeader")}, {DOWN}),
    Case(all_down, {page("RaftlogNoLeader")}, {DOWN}, clusters=("a", "b"), gate=True),
    Case(controllers_down, {page("RaftlogNoLeader")}, {DOWN, "RaftlogBrokerSelfFenced"}),
    Case(majority_down, {page("RaftlogNoLeader")}, {DOWN, "RaftlogBrokerSelfFenced"}),
    Case(minority_down, set(), {DOWN}),
    Case(slow_disk_of_a_follower, set(), {"RaftlogDiskSlow"}),
    Case(
        slow_disks_of_a_majority,
        {page("RaftlogCommitsSlow")},
        {"RaftlogDiskSlow", "RaftlogLeaderChanges"},
    ),
    Case(hanging_disk_of_the_leader, set(), {"RaftlogDiskHangs"}, gate=True),
    Case(full_disk_of_a_controller, set(), {"RaftlogControllerDiskFull"}),
    Case(
        full_disks_of_a_majority,
        {page("RaftlogWritesRefused")},
        {"RaftlogControllerDiskFull"},
        gate=True,
    ),
    Case(full_disk_of_a_broker, {page("RaftlogBrokerDiskFull")}, set()),
    Case(paused_broker, set(), {DOWN, "RaftlogPartitionsUnderReplicated"}),
    Case(two_brokers_down, {page("RaftlogPartitionsNotWritable")}, {DOWN}, gate=True),
    Case(all_brokers_down, {page("RaftlogAllBrokersFenced")}, {DOWN}),
    Case(rolling_restart, set(), set()),
]


def lived(case: Case) -> World:
    """Run the case to its end."""

    async def main() -> World:
        world = World(*case.clusters)
        await world.start()
        world.write_always()
        await world.run(CALM_S)
        assert world.fired[world.at] == set()
        await case.fault(world)
        world.close()
        return world

    return run(main())


def named(case: Case) -> str:
    return f"{case.fault.__name__}-{len(case.clusters)}"


@pytest.mark.parametrize(
    "case", [case if case.gate else nightly(case) for case in CASES], ids=named
)
def test_fault_fires_exactly_its_alerts(case: Case) -> None:
    world = lived(case)
    assert (world.pages(), world.tickets()) == (case.pages, case.tickets)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("case", CASES, ids=named)
def test_promtool_fires_the_same_alerts(case: Case, tmp_path: Path) -> None:
    world = lived(case)
    whole = {at: firing for at, firing in world.fired.items() if at % 60 == 0 or at == world.at}
    file = tmp_path / "test.yml"
    file.write_text(promtool_file(world.storage, world.at, whole))
    ran = run_text(["promtool", "test", "rules", str(file)], timeout=100)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
