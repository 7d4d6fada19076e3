"""How nodes are reached in the matrix of permissions, and all that a request could have changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cluster_kit import PATIENCE_S, until_true
from matrix_callers import (
    CLIENTS,
    LISTENERS,
    Caller,
    Certificate,
    Listener,
    Token,
)
from matrix_facts import Facts
from matrix_pki import Authorities
from matrix_rpcs import Method, types_of

from raftlog.local.cluster import HOST, LocalCluster
from raftlog.node.security.authority import Issued
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

import grpc  # isort: skip
import grpc.aio  # isort: skip

ROOT = Caller("root", Certificate.GOOD, "admin")
QUIET_S = 0.5
DESCRIBE_QUORUM = Method("raftlog.wire.quorum.v1.Quorum", "DescribeQuorum", streams=False)
DESCRIBE_BROKER = Method("raftlog.wire.broker.v1.Broker", "DescribeBroker", streams=False)
LIST_OFFSETS = Method("raftlog.wire.broker.v1.Broker", "ListOffsets", streams=False)


@dataclass(frozen=True)
class Reach:
    """How nodes are reached. ``ports``: by node and listener."""

    cluster: LocalCluster
    authorities: Authorities
    ports: Mapping[tuple[str, str], int]

    def channel_to(self, caller: Caller, listener: Listener, node: str) -> Any:
        """A connection of its own."""
        address = f"{HOST}:{self.ports[node, listener.name]}"
        shown: Issued | None = None
        if caller.certificate is not Certificate.NONE:
            foreign = caller.certificate is Certificate.FOREIGN
            shown = self.authorities.issue(
                caller.common_name, of_nodes=listener.of_nodes is not foreign,
                expired=caller.certificate is Certificate.EXPIRED,
            )  # fmt: skip
        credentials = grpc.ssl_channel_credentials(
            self.authorities.ca(of_nodes=listener.of_nodes),
            None if shown is None else shown.key,
            None if shown is None else shown.certificate,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def describe_quorum(self, node: str) -> Any:
        return await self.ask(node, DESCRIBE_QUORUM, quorum.DescribeQuorumRequest())

    async def ask(self, node: str, method: Method, request: Any) -> Any:
        """As the administrator."""
        path = f"/{method.service}/{method.name}"
        response_type = types_of(method)[1]
        async with self.channel_to(ROOT, CLIENTS, node) as channel:
            call = channel.unary_unary(path)
            data = await call(request.SerializeToString(), timeout=PATIENCE_S, wait_for_ready=True)
        return response_type.FromString(data)


class Tip(NamedTuple):
    """Who leads in which epoch, and where its log and its image are."""

    leader_id: int
    epoch: int
    log_end_offset: int
    state_hash: str


@dataclass(frozen=True)
class World(Reach):
    """With what requests name."""

    tokens: Mapping[tuple[Token, str], str]
    facts: Facts

    def metadata(self, caller: Caller) -> tuple[tuple[str, str], ...]:
        if caller.token is Token.NONE:
            return ()
        return (("authorization", f"Bearer {self.tokens[caller.token, caller.subject]}"),)

    def channel(self, caller: Caller, listener: Listener, role: str) -> Any:
        """To the active controller, or to the broker that leads all partitions."""
        node_id = self.facts.leader_id if role == "controller" else self.facts.nodes.broker
        return self.channel_to(caller, listener, f"{role}-{node_id}")

    async def state(self) -> Any:
        """All that a request could have changed, as every node that is left knows it.

        The state hash is that of the committed image, the log end that of the log.
        """
        controllers = []
        for node_id in (self.facts.leader_id, self.facts.nodes.controller,
                        self.facts.nodes.victim_controller):  # fmt: skip
            one = await self.describe_quorum(f"controller-{node_id}")
            voters = [(v.replica_id, v.replica_directory_id, v.endpoints) for v in one.voters]
            controllers.append((
                one.leader_id, one.leader_epoch, one.voted_id, voters, one.log_end_offset,
                one.image_offset, one.state_hash.hex(),
            ))  # fmt: skip
        brokers = []
        for node in self.cluster.brokers:
            described = await self.ask(node.name, DESCRIBE_BROKER, broker.DescribeBrokerRequest())
            brokers.append((
                described.broker_epoch, described.state, described.applied_offset,
                described.state_hash,
            ))  # fmt: skip
        wanted = [
            data.ListOffsetsPartition(topic_id=id_, current_leader_epoch=-1, timestamp=-1)
            for id_ in self.facts.topics
        ]
        leader = f"broker-{self.facts.nodes.broker}"
        ends = await self.ask(leader, LIST_OFFSETS, data.ListOffsetsRequest(partitions=wanted))
        return controllers, brokers, [(one.error_code, one.offset) for one in ends.partitions]

    async def tip(self) -> Tip:
        """As its leader says it."""
        one = await self.describe_quorum(f"controller-{self.facts.leader_id}")
        return Tip(one.leader_id, one.leader_epoch, one.log_end_offset, one.state_hash.hex())

    async def published(self) -> None:
        """Each voter has told the others all of its listeners: one at a time does so, and who has
        to wait asks again after a while.
        """
        leader = f"controller-{self.facts.leader_id}"

        async def all_are_known() -> bool:
            voters = (await self.describe_quorum(leader)).voters
            return all(one.endpoints.count("://") >= len(LISTENERS) for one in voters)

        await until_true(all_are_known, "each voter publishes its listeners")

    async def settled(self) -> Any:
        """The state, once everybody knows it and the record of that is in the log."""
        await self.published()
        last = await self.state()
        quiet_since = time.monotonic()
        deadline = quiet_since + PATIENCE_S
        while time.monotonic() - quiet_since < QUIET_S:
            await asyncio.sleep(0.1)
            now = await self.state()
            if now != last:
                last, quiet_since = now, time.monotonic()
            assert time.monotonic() < deadline, "the cluster does not come to rest"
        return last
