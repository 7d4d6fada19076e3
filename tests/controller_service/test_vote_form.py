"""A controller overwrites its vote in place only while the level says that every program can read
it.
"""

from __future__ import annotations

import pytest
from quorum_world import QuorumWorld
from simulated import simulated

from raftlog.metadata.versions import METADATA_VERSION
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.twins.disk import SimLogStore

TOLD: dict[SimLogStore, list[bool]] = {}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    monkeypatch.setattr(
        SimLogStore,
        "keep_vote_in_place",
        lambda store, in_place: TOLD.setdefault(store, []).append(in_place),
    )


def level(to: int, upgrade_type: int) -> pb.UpdateFeaturesRequest:
    update = pb.FeatureUpdate(
        name=METADATA_VERSION, max_version_level=to, upgrade_type=upgrade_type
    )
    return pb.UpdateFeaturesRequest(updates=[update])


@simulated
async def test_each_node_is_told_when_the_level_changes_leader_or_not() -> None:
    world = QuorumWorld(voters=3)
    await world.active()

    def each(*expected: bool) -> bool:
        return [TOLD.get(node.store) for node in world.up()] == [list(expected)] * 3

    await world.until(lambda: each(True))
    await world.ask(level(7, 2))
    await world.until(lambda: each(True, False))
    await world.write("nothing changes by this")
    await world.ask(level(8, 1))
    await world.until(lambda: each(True, False, True))
    node = next(one for one in world.up() if one.service.node.decider is None)
    node.kill()
    node.start()
    await world.until(lambda: TOLD.get(node.store) == [True])
