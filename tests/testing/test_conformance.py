import asyncio
import re
from collections.abc import Callable
from functools import cache, partial
from inspect import getmembers, iscoroutinefunction
from typing import Any

import pytest
from conformance import CASES, Case, Cluster

import raftlog
from controller.decisions.clients import key_values
from controller.settings import ControllerSettings
from controller.state.leases import LeaseTracker
from raftlog.testing import RealCluster, Run, SeedFailedError, SimulatedCluster, simulated
from raftlog.testing.story import NAMESPACES
from simulation import hosts, world
from simulation.hosts import BrokerHost


async def run_case(cluster: Cluster, *, run: Case) -> list[Any]:
    async with cluster.connect_async() as client:
        return await run(client, cluster)


def in_simulation(name: str) -> Run[list[Any]]:
    main: Callable[[SimulatedCluster], Any] = partial(run_case, run=CASES[name])
    return simulated(main, faults={}, limit_s=120)


whole = cache(in_simulation)
"""The run of a case in a simulation that nothing has broken."""


def in_processes(name: str, cluster: RealCluster) -> list[Any]:
    return asyncio.run(run_case(cluster, run=CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_simulated_cluster_responds_as_real_ones(name: str, raftlog_cluster: RealCluster) -> None:
    real = in_processes(name, raftlog_cluster)
    assert real
    assert whole(name).result == real


def test_cases_make_almost_every_call_of_the_client() -> None:
    """The suite shows nothing about a call that it does not make."""
    called: set[str] = set()
    for name in CASES:
        called.update(re.findall(r"([a-z_]+\.[a-z_]+)\(", whole(name).story))
    client = raftlog.AsyncClient("127.0.0.1:1")
    calls = {
        f"{name}.{call}"
        for name in NAMESPACES
        for call, _ in getmembers(type(getattr(client, name)), iscoroutinefunction)
        if call[0] != "_"
    }
    assert len(calls) > 40
    assert calls - called == {"quorum.add_voter", "quorum.remove_voter", "quorum.transfer"}


def trust_conditions(patch: pytest.MonkeyPatch) -> None:
    """Let conditions on keys always hold."""
    patch.setattr(key_values, "_compare", lambda *_: None)


def keep_leases(patch: pytest.MonkeyPatch) -> None:
    """Let leases that are not kept alive not end."""
    patch.setattr(LeaseTracker, "expired", lambda *_: None)


def grant_short_leases(patch: pytest.MonkeyPatch) -> None:
    """Let controllers have another limit than by default."""
    settings = ControllerSettings(lease_ttl_min_ms=10)
    patch.setattr(world, "settings_of_controllers", lambda _: settings)


def forget_features(patch: pytest.MonkeyPatch) -> None:
    """Let brokers be of another build."""
    patch.setattr(hosts, "SUPPORTED_FEATURES", (("metadata.version", 1, 8),))


def lose_records(patch: pytest.MonkeyPatch) -> None:
    """Let brokers keep no partitions."""
    patch.setattr(BrokerHost, "disk", property(lambda _: None, lambda *_: None), raising=False)


BROKEN = {
    "keys": trust_conditions,
    "recipes": trust_conditions,
    "leases": keep_leases,
    "leases, too": grant_short_leases,
    "cluster_calls": forget_features,
    "records": lose_records,
}


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(name, marks=[] if name in ("keys", "leases, too") else pytest.mark.nightly)
        for name in BROKEN
    ],
)
def test_broken_simulation_does_not_conform(
    broken: str, raftlog_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = broken.partition(",")[0]
    real = in_processes(name, raftlog_cluster)
    BROKEN[broken](monkeypatch)
    try:
        shown = in_simulation(name).result
    except SeedFailedError as error:
        shown = [str(error)]
    assert shown != real
