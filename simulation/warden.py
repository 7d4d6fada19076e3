"""A client that grants and revokes the callers' permissions: few entries on few names."""

import asyncio
from typing import Any

from raftlog.client.controller_client import ControllerClient
from raftlog.metadata.acls import (
    OPERATIONS_OF,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.callers import LEVELS, NAMES
from simulation.swarm.identities import CALLERS, WARDEN
from simulation.world import Actors, World

MOST_ENTRIES = 30
FIRST_ENTRIES = 16
ANYBODY = "User:*"
PRINCIPALS = ("User:alice", "User:alice", "User:bob", "User:mallory", ANYBODY, ANYBODY)
PREFIXES = ("a", "alice", "alice-", "bob-", "com", "common-")
TYPES = {
    AclResourceType.TOPIC: 5,
    AclResourceType.GROUP: 7,
    AclResourceType.CLUSTER: 3,
    AclResourceType.CLIENT_SESSION: 4,
    AclResourceType.HOSTNAME: 1,
    AclResourceType.EXPORT_CURSOR: 1,
}
OTHER_NAMES = {
    AclResourceType.CLIENT_SESSION: tuple(CALLERS),
    AclResourceType.HOSTNAME: ("b1", "b2", "b"),
    AclResourceType.EXPORT_CURSOR: ("nightly", "weekly", "w"),
}


class Warden(Actors):
    """The warden of a world; without an authorizer it does nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, *[WARDEN] * bool(world.config.authorizer and world.members))
        self._rng = world.rng(WARDEN)

    async def _live(self) -> None:
        world = self._world
        client = world.controller_client(WARDEN)
        while True:
            await asyncio.sleep(self._rng.expovariate(world.config.entries_per_s))
            service = world.active()
            if service is None:
                continue
            given = [
                entry for entry in service.image.acls.values() if entry.principal in PRINCIPALS
            ]
            given.sort(key=lambda entry: entry.binding)
            if not given:
                await self._send(client, self._add(FIRST_ENTRIES))
                continue
            takes = self._rng.random() * MOST_ENTRIES < len(given)
            body = self._remove(given) if takes else self._add(self._rng.choice((1, 2, 4)))
            await self._send(client, body)

    def _add(self, number: int) -> pb.CreateAclsRequest:
        return pb.CreateAclsRequest(creations=[self._drawn() for _ in range(number)])

    def _drawn(self) -> pb.AccessControlEntry:
        rng = self._rng
        (type_,) = rng.choices(list(TYPES), list(TYPES.values()))
        principal = rng.choice(PRINCIPALS)
        denies = rng.random() < 0.2
        pattern, name = PatternType.LITERAL, "kafka-cluster"
        if type_ is AclResourceType.CLUSTER:
            # Whom it locked out, nobody would let in again.
            denies = denies and principal != ANYBODY
        elif rng.random() < 0.35:
            pattern, name = PatternType.PREFIXED, rng.choice(OTHER_NAMES.get(type_, PREFIXES))
        else:
            name = rng.choice((*OTHER_NAMES.get(type_, NAMES), "*", "*"))
        host = "*"
        if rng.random() < 0.25:
            host = rng.choice([site.address for site in CALLERS.values()])
        possible = (*sorted(OPERATIONS_OF[type_]), *(AclOperation.ALL,) * 4)
        return pb.AccessControlEntry(
            resource_type=type_,
            resource_name=name,
            pattern_type=pattern,
            principal=principal,
            host=host,
            operation=rng.choice(possible),
            permission_type=AclPermission.DENY if denies else AclPermission.ALLOW,
        )

    def _remove(self, given: list[Any]) -> pb.DeleteAclsRequest:
        entry = self._rng.choice(given)
        chosen = pb.AccessControlEntryFilter(
            resource_type=entry.resource_type,
            resource_name=entry.resource_name,
            pattern_type=entry.pattern_type,
            principal=entry.principal,
            operation=AclOperation.ANY,
            permission_type=AclPermission.ANY,
        )
        if self._rng.random() < 0.6:
            chosen.host = entry.host
            chosen.operation, chosen.permission_type = entry.operation, entry.permission_type
        return pb.DeleteAclsRequest(filters=[chosen])

    async def _send(self, client: ControllerClient, body: Any) -> None:
        acks = self._rng.choice(LEVELS)
        operation = self._world.operation(
            client=WARDEN, kind="access", key=type(body).__name__, acks=acks
        )
        timeout_s = self._world.config.timeout_s
        call = client.call(body, acks=acks, timeout_s=timeout_s, raise_refused=False)
        await self._world.carry_out(operation, call)
        self._world.answered(operation)
