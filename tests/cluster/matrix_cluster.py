"""Makes the cluster of the matrix of permissions: four controllers of which one was removed from the
voters, two brokers, and three listeners on each node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cluster_kit
from cluster_kit import configure, until_true
from matrix_callers import (
    CLIENTS,
    INTERNAL,
    LISTENERS,
    MINE,
    SUPER_USERS,
    THEIRS,
    TOKENS,
    Nodes,
    callers,
    entries,
)
from matrix_facts import MY_TOPIC, THEIR_TOPIC, Facts
from matrix_pki import Authorities, tokens_of
from matrix_rpcs import Method
from matrix_world import Reach, World
from token_issuer import AUDIENCE, ISSUER, Issuer

from raftlog.local.cluster import HOST, LocalCluster, free_ports
from raftlog.wire.controller.v1 import controller_pb2 as controller

CONTROLLERS = 4
WRITES = "raftlog.wire.controller.v1.Controller"
RULES = {
    "node.principal.rule": "CN=node-{id}",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": ",".join(SUPER_USERS),
    "grpc.reflection.enable": True,
    # So that the cluster comes to rest soon.
    "progress.interval.ms": 50,
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "sasl.oauthbearer.expected.audience": AUDIENCE,
}


def _configure(
    cluster: LocalCluster, authorities: Authorities, jwks: Path
) -> dict[tuple[str, str], int]:
    """Write the configurations; which port is whose."""
    free = iter(free_ports(2 * len(cluster.nodes)))
    ports: dict[tuple[str, str], int] = {}
    for node in cluster.nodes:
        ports[node.name, INTERNAL.name] = node.port
        ports[node.name, CLIENTS.name], ports[node.name, TOKENS.name] = next(free), next(free)
        inside = authorities.files(node, of_nodes=True)
        outside = authorities.files(node, of_nodes=False)
        keys: dict[str, Any] = {
            "listeners": [f"{one.name}://{HOST}:{ports[node.name, one.name]}" for one in LISTENERS],
            "listener.security.protocol.map": ",".join(f"{one.name}:SSL" for one in LISTENERS),
            "controller.listener.names": INTERNAL.name,
            **inside,
            **{f"listener.name.clients.{key}": value for key, value in outside.items()},
            **{f"listener.name.tokens.{key}": value for key, value in outside.items()},
            "listener.name.tokens.ssl.client.auth": "none",
            "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
            **RULES,
        }
        if node.role == "broker":
            keys["inter.broker.listener.name"] = INTERNAL.name
        configure(cluster, node, keys)
    return ports


@contextmanager
def running(directory: Path) -> Iterator[World]:
    """The world, as long as it is wanted."""
    authorities, issuer = Authorities(directory / "pki"), Issuer()
    jwks = directory / "jwks.json"
    jwks.write_bytes(issuer.jwks())
    cluster = LocalCluster(directory / "c", controllers=CONTROLLERS, brokers=2)
    cluster.generate()
    reach = Reach(cluster, authorities, _configure(cluster, authorities, jwks))
    with cluster_kit.running(cluster):
        yield asyncio.run(_furnished(reach, issuer))


async def _furnished(reach: Reach, issuer: Issuer) -> World:
    leader_id, directories = await _without_one_voter(reach)
    leader = f"controller-{leader_id}"
    left = [one for one in range(1, CONTROLLERS + 1) if one != leader_id]
    first, second = (node.node_id for node in reach.cluster.brokers)
    nodes = Nodes(first, second, left[0], left[1], removed=left[2])
    assignment = controller.CreatableReplicaAssignment(broker_ids=[first, second])
    topics = [
        controller.CreatableTopic(name=name, assignments=[assignment])
        for name in (MY_TOPIC, THEIR_TOPIC)
    ]
    made = await _write(
        reach, leader, "CreateTopics", controller.CreateTopicsRequest(topics=topics)
    )
    hosts = [
        controller.HostnameAlteration(hostname=f"{one}host", broker_id=first)
        for one in (MINE, THEIRS)
    ]
    await _write(
        reach, leader, "AlterHostnames", controller.AlterHostnamesRequest(alterations=hosts)
    )
    cursors = [
        controller.ExportCursorAlteration(name=f"{one}cursor", end_offset=1)
        for one in (MINE, THEIRS)
    ]
    await _write(
        reach, leader, "AlterExportCursors",
        controller.AlterExportCursorsRequest(alterations=cursors),
    )  # fmt: skip
    keys = [controller.KeyValueAlteration(key=f"{one}key", value=b"v") for one in (MINE, THEIRS)]
    await _write(
        reach, leader, "AlterKeyValues", controller.AlterKeyValuesRequest(alterations=keys)
    )
    found = entries()
    creations = [controller.AccessControlEntry(**one._asdict()) for one in found]
    await _write(reach, leader, "CreateAcls", controller.CreateAclsRequest(creations=creations))
    described = await _write(reach, leader, "DescribeBrokers", controller.DescribeBrokersRequest())
    now = await reach.describe_quorum(leader)
    facts = Facts(
        cluster_id=reach.cluster.cluster_id,
        epoch=now.leader_epoch,
        nodes=nodes,
        leader_id=leader_id,
        topics={one.topic_id: one.name for one in made.topics},
        directories=directories,
        broker_epochs={one.broker_id: one.broker_epoch for one in described.brokers},
        entries=found,
    )
    tokens = tokens_of(issuer, {one.subject for one in callers(nodes)})
    world = World(reach.cluster, reach.authorities, reach.ports, tokens, facts)
    await world.settled()
    return world


async def _write(reach: Reach, leader: str, name: str, request: Any) -> Any:
    response = await reach.ask(leader, Method(WRITES, name, streams=False), request)
    for field, value in response.ListFields():
        if field.is_repeated and field.message_type is not None:
            wrong = [one.error for one in value if hasattr(one, "error") and one.error.error_code]
            assert not wrong, wrong
    return response


async def _without_one_voter(reach: Reach) -> tuple[int, dict[int, str]]:
    """Remove a controller from the voters, for good: its process ends, its certificate stays.

    The leader, and the directories of all that were voters.
    """

    async def named() -> Any:
        """The leader's description, once the log names the voters."""
        for node in reach.cluster.controllers:
            one = await reach.describe_quorum(node.name)
            if one.leader_id == one.node_id and one.voters_offset >= 0:
                return one
        return None

    found: list[Any] = []

    async def is_named() -> bool:
        found[:] = [await named()]
        return found[0] is not None

    await until_true(is_named, "the log names the voters")
    directories = {one.replica_id: one.replica_directory_id for one in found[0].voters}
    leader_id = found[0].leader_id
    removed = max(set(directories) - {leader_id})
    reach.cluster.stop([f"controller-{removed}"])
    await reach.ask(
        f"controller-{leader_id}", Method(WRITES, "RemoveRaftVoter", streams=False),
        controller.RemoveRaftVoterRequest(
            voter_id=removed, voter_directory_id=directories[removed]
        ),
    )  # fmt: skip
    return leader_id, directories
