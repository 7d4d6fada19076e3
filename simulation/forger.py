"""A client that poses as nodes in every conversation; all must be refused for that reason."""

import asyncio
from collections.abc import Sequence
from typing import Any

from raftlog.client.requests import controller_request
from raftlog.transport.api import Conversation, Link, LinkClosedError
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.quorum.v1 import quorum_pb2
from simulation.hosts import CLUSTER_ID
from simulation.swarm.identities import FORGER
from simulation.world import Actors, World

EVERY_S = 1.0
WAITS_S = 0.3


class Forger(Actors):
    """The forger of a world; without an authorizer it does nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, *[FORGER] * bool(world.config.authorizer and world.members))
        self._rng = world.rng(FORGER)

    async def _live(self) -> None:
        transport = self._world.network.transport_for(FORGER)
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / EVERY_S))
            address, conversation, message = self._drawn()
            dialer = transport.dial(address, conversation, SendsOne(message))
            await asyncio.sleep(WAITS_S)
            dialer.close()

    def _drawn(self) -> tuple[str, Conversation, Any]:
        world, rng = self._world, self._rng
        controller, broker = rng.choice(world.controllers), rng.choice(world.members)
        service = world.active()
        epoch = service.node.controller_epoch if service is not None else 1
        registered = service.image.brokers.get(broker.id) if service is not None else None
        node_request = controller_request(
            self._of_broker(broker.id, registered.epoch if registered is not None else 1)
        )
        choices: list[tuple[str, Conversation, Any]] = [
            (controller.endpoint, Conversation.CONTROLLER, node_request),
            (
                rng.choice(world.members).endpoint,
                Conversation.BROKER,
                broker_pb2.BrokerRequest(correlation_id=1, write=node_request),
            ),
            (controller.endpoint, Conversation.QUORUM, self._vote(controller, epoch)),
            (controller.endpoint, Conversation.REPLICATION, self._fetch(controller, epoch)),
            (
                controller.endpoint,
                Conversation.OBSERVER,
                pb.MetadataFetchRequest(
                    cluster_id=CLUSTER_ID,
                    replica_id=broker.id,
                    broker_epoch=registered.epoch if registered is not None else 1,
                    controller_epoch=epoch,
                    applied_offset=1000,
                    max_bytes=1000,
                    high_watermark=-1,
                ),
            ),
        ]
        if world.config.data_per_s:
            state = data_pb2.ReplicaState(replica_id=rng.choice(world.members).id)
            request = data_pb2.ReplicaFetchRequest(
                correlation_id=1, cluster_id=CLUSTER_ID, replica_state=state, leader_id=broker.id
            )
            choices.append((broker.endpoint, Conversation.REPLICA_FETCH, request))
        return rng.choice(choices)

    def _of_broker(self, broker_id: int, epoch: int) -> Any:
        voter = self._rng.choice(self._world.controllers)
        bodies: tuple[Any, ...] = (
            pb.BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, want_shut_down=True),
            pb.AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch),
            pb.RegisterBrokerRequest(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                incarnation_id="00000000-0000-4000-8000-000000000000",
            ),
            pb.UpdateRaftVoterRequest(
                voter_id=voter.id, voter_directory_id=f"dir-{voter.id}", endpoint=f"{FORGER}:1"
            ),
        )
        return self._rng.choice(bodies)

    def _other(self, controller: Any) -> int:
        others = [host.id for host in self._world.controllers if host is not controller]
        return self._rng.choice(others) if others else int(controller.id)

    def _vote(self, controller: Any, epoch: int) -> quorum_pb2.QuorumMessage:
        other = self._other(controller)
        vote = quorum_pb2.VoteRequest(
            cluster_id=CLUSTER_ID,
            voter_id=controller.id,
            replica_epoch=epoch,
            replica_id=other,
            replica_directory_id=f"dir-{other}",
            voter_directory_id=f"dir-{controller.id}",
            last_offset_epoch=epoch,
            last_offset=1_000_000,
            pre_vote=True,
        )
        return quorum_pb2.QuorumMessage(correlation_id=1, vote_request=vote)

    def _fetch(self, controller: Any, epoch: int) -> quorum_pb2.FetchRequest:
        other = self._other(controller)
        return quorum_pb2.FetchRequest(
            cluster_id=CLUSTER_ID,
            replica_id=other,
            replica_directory_id=f"dir-{other}",
            current_leader_epoch=epoch,
            max_bytes=1000,
            correlation_id=1,
            high_watermark=-1,
        )


class SendsOne:
    """Handler that sends one message on each link that opens, and reads nothing."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def opened(self, link: Link) -> None:
        try:
            link.send(self._message)
        except LinkClosedError:
            return

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """``checks/shown.py`` has seen what was sent."""

    def closed(self, link: Link, reason: str) -> None:
        """The dialer makes another one."""
