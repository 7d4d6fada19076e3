"""What a node itself wants of the voter set: its new endpoint told, or to become a voter
(auto-join, KIP-853).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from controller.service.node import ControllerNode
from raftlog.client.controller_client import ControllerClient, checked
from raftlog.client.requests import controller_request
from raftlog.endpoint import endpoint_on, parse_endpoints
from raftlog.errors import ApiError
from raftlog.metadata.versions import supports_voter_listeners
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.description import QuorumDescription
from raftlog.transport.unary_link import Caller, UnaryLink
from raftlog.wire.controller.v1 import controller_pb2 as rpc

if TYPE_CHECKING:
    from raftlog.transport.api import Transport

log = structlog.get_logger(__name__)

ASK_TIMEOUT_S = 5.0

Wish = rpc.AddRaftVoterRequest | rpc.RemoveRaftVoterRequest | rpc.UpdateRaftVoterRequest


def wish(
    seen: QuorumDescription, quorum: QuorumConfig, *, auto_join: bool, several: bool = True
) -> Wish | None:
    """What this node is to ask of the active controller now, going by its own log; None: nothing.

    A disk that was replaced is another replica: the voter it was before is removed first. Only who
    is caught up asks to vote. ``several``: the voter set may name several listeners of a voter;
    below that level it has the one that others know, or else the first.
    """
    if seen.voters_offset < 0 or not quorum.endpoint:
        return None
    endpoint = quorum.endpoint if several else endpoint_on(quorum.endpoint, "")
    me = next((voter for voter in seen.voter_set if voter.node_id == quorum.node_id), None)
    if me is not None and me.directory_id == quorum.directory_id:
        if me.endpoint == endpoint or (not several and me.endpoint in _addresses(quorum)):
            return None
        return rpc.UpdateRaftVoterRequest(
            voter_id=me.node_id, voter_directory_id=me.directory_id, endpoint=endpoint
        )
    caught_up = 0 <= seen.high_watermark <= seen.log_end_offset
    if not auto_join or not caught_up or seen.role != "observer" or seen.leader_id < 0:
        return None
    if me is not None:
        return rpc.RemoveRaftVoterRequest(voter_id=me.node_id, voter_directory_id=me.directory_id)
    return rpc.AddRaftVoterRequest(
        voter_id=quorum.node_id,
        voter_directory_id=quorum.directory_id,
        endpoint=endpoint,
        # Its own acknowledgement may be needed for the commit: it must not wait for that.
        ack_when_appended=True,
    )


def _addresses(quorum: QuorumConfig) -> set[str]:
    return {one.address for one in parse_endpoints(quorum.endpoint)}


class Joining:
    """Looks now and then, and asks: one question at a time, again after twice the fetch timeout (as
    Kafka does).

    ``receive``: takes requests on a link, for a node that is the active controller itself.
    """

    def __init__(
        self,
        node: ControllerNode,
        receive: Callable[[Any, list[Any]], None],
        transport: Transport,
        rng: random.Random,
        *,
        auto_join: bool,
    ) -> None:
        self._node = node
        self._receive = receive
        self._transport = transport
        self._rng = rng
        self._auto_join = auto_join
        self._interval_s = 2 * node.quorum.fetch_timeout_ms / 1000
        self._next_look = 0.0
        self._task: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Ask, if it is time and there is something to ask for."""
        if now < self._next_look or self._task is not None:
            return
        self._next_look = now + self._interval_s
        node = self._node
        seen = node.replica.describe(now)
        several = supports_voter_listeners(node.image.features)
        wanted = wish(seen, node.quorum, auto_join=self._auto_join, several=several)
        if wanted is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._ask(wanted, seen), name="joining"
            )
            self._task.add_done_callback(self._done)

    def _done(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _ask(self, wanted: Wish, seen: QuorumDescription) -> None:
        kind = type(wanted).__name__.removesuffix("Request")
        try:
            await (
                self._ask_here(wanted)
                if self._node.decider is not None
                else self._ask_leader(wanted, seen)
            )
        except ApiError as error:
            log.info("the voter set stays as it is for now", asked=kind, why=str(error))
        else:
            log.info("the voter set was changed", asked=kind, node=wanted.voter_id)

    async def _ask_here(self, wanted: Wish) -> None:
        link = UnaryLink(Caller("this node"))
        request = controller_request(wanted, cluster_id=self._node.cluster_id)
        request.client.node_id = self._node.quorum.node_id
        self._receive(link, [request])
        async with asyncio.timeout(ASK_TIMEOUT_S):
            response = await link.response
        checked(response)

    async def _ask_leader(self, wanted: Wish, seen: QuorumDescription) -> None:
        own = self._node.quorum
        voters = (*seen.voter_set, *own.configured_voters)
        known = [voter.endpoint for voter in voters if voter.endpoint != own.endpoint]
        addresses = list(dict.fromkeys((*known, *own.bootstrap_servers)))
        if not addresses:
            return
        client = ControllerClient(
            self._transport, addresses, rng=self._rng, cluster_id=own.cluster_id
        )
        try:
            # Without a principal: a leader that asks for certificates writes down whose it is.
            request = controller_request(wanted, cluster_id=own.cluster_id)
            request.client.node_id = own.node_id
            await client.call(request, timeout_s=ASK_TIMEOUT_S)
        finally:
            client.close()

    def close(self) -> None:
        """Stop for good."""
        self._next_look = float("inf")
        if self._task is not None:
            self._task.cancel()
