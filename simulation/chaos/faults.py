"""Faults of the real cluster: each begins, holds for a while, and is undone by :func:`heal`."""

import signal
from collections.abc import Callable
from functools import partial

from simulation.chaos import replaced
from simulation.chaos.nodes import ChaosCluster, ChaosNode
from simulation.chaos.scene import Scene

Fault = Callable[[Scene], None]


def _of(choose: Callable[[Scene], list[ChaosNode]], act: Callable[[ChaosNode], None]) -> Fault:
    def fault(scene: Scene) -> None:
        for node in choose(scene):
            act(node)

    return fault


def _pause(node: ChaosNode) -> None:
    node.signal(signal.SIGSTOP)


def _split(one: Callable[[Scene], list[ChaosNode]], from_: str) -> Fault:
    """Return a fault that cuts nodes off, both ways, from the others of a group."""

    def fault(scene: Scene) -> None:
        nodes = one(scene)
        others = [node for node in getattr(scene.cluster, from_) if node not in nodes]
        scene.cluster.network.split([node.id for node in nodes], [node.id for node in others])

    return fault


def _deafen(scene: Scene, *, leader_hears: bool) -> None:
    """Cut the leader off from all other nodes, in one direction."""
    leader = scene.leading
    for node in scene.cluster.nodes:
        if node is not leader:
            ends = (leader.id, node.id) if leader_hears else (node.id, leader.id)
            scene.cluster.network.cut(*ends)


def _cut_followers_apart(scene: Scene) -> None:
    ids = [node.id for node in scene.cluster.controllers if node.id != scene.leading.id]
    scene.cluster.network.split(ids[:1], ids[1:])


def _cut_any_pair_one_way(scene: Scene) -> None:
    one, other = scene.rng.sample([node.id for node in scene.cluster.nodes], 2)
    scene.cluster.network.cut(one, other)


FAULTS: dict[str, Fault] = {
    "kill_leader": _of(lambda scene: [scene.leading], ChaosNode.kill),
    "kill_follower": _of(lambda scene: [scene.following], ChaosNode.kill),
    "kill_broker": _of(lambda scene: [scene.broker], ChaosNode.kill),
    "kill_controllers": _of(lambda scene: scene.cluster.controllers, ChaosNode.kill),
    "kill_all": _of(lambda scene: scene.cluster.nodes, ChaosNode.kill),
    "stop_leader": _of(lambda scene: [scene.leading], ChaosNode.stop),
    "stop_broker": _of(lambda scene: [scene.broker], ChaosNode.stop),
    "pause_leader": _of(lambda scene: [scene.leading], _pause),
    "pause_follower": _of(lambda scene: [scene.following], _pause),
    "pause_broker": _of(lambda scene: [scene.broker], _pause),
    "power_cut_leader": _of(lambda scene: [scene.leading], ChaosNode.lose_power),
    "power_cut_follower": _of(lambda scene: [scene.following], ChaosNode.lose_power),
    "power_cut_broker": _of(lambda scene: [scene.broker], ChaosNode.lose_power),
    "power_cut_brokers": _of(lambda scene: scene.cluster.brokers, ChaosNode.lose_power),
    "power_cut_controllers": _of(lambda scene: scene.cluster.controllers, ChaosNode.lose_power),
    "power_cut_all": _of(lambda scene: scene.cluster.nodes, ChaosNode.lose_power),
    "cut_leader_off": _split(lambda scene: [scene.leading], "controllers"),
    "leader_is_not_heard": partial(_deafen, leader_hears=True),
    "leader_does_not_hear": partial(_deafen, leader_hears=False),
    "cut_followers_apart": _cut_followers_apart,
    "cut_brokers_from_leader": _split(lambda scene: [scene.leading], "brokers"),
    "cut_broker_off": _split(lambda scene: [scene.broker], "nodes"),
    "cut_brokers_apart": _split(lambda scene: scene.cluster.brokers[:1], "brokers"),
    "cut_any_pair_one_way": _cut_any_pair_one_way,
    "isolate": lambda scene: scene.cluster.network.isolate(scene.node.id),
    "isolate_leader": lambda scene: scene.cluster.network.isolate(scene.leading.id),
    "transfer_leader": replaced.transfer_leader,
}
ALONE: dict[str, Fault] = {
    "move_controllers": replaced.move_controllers,
    "clock_ahead": replaced.clock_ahead,
    "foreign_controller": replaced.foreign_controller,
    "copied_follower": replaced.copied_follower,
    "set_back_follower": replaced.set_back_follower,
    "restore_twice": replaced.restore_twice,
}
"""Faults that are injected alone, as their promises need the rest of the quorum."""
EVERY = FAULTS | ALONE


def heal(cluster: ChaosCluster) -> None:
    """Undo every fault: links, pauses, power; whatever does not run is started. Blocks."""
    cluster.network.heal()
    while cluster.undo:
        cluster.undo.pop()()
    for node in cluster.nodes:
        node.signal(signal.SIGCONT)
    for node in cluster.nodes:
        if not node.has_power:
            node.restore_power()
    cluster.start_all()
