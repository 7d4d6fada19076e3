"""Queries to single nodes about themselves, which need no leader."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from raftlog.client.security import ClientSecurity
from raftlog.errors import ErrorCode
from raftlog.transport.api import TransportLimits
from raftlog.transport.grpc_link import failure_text
from raftlog.transport.grpc_transport import NoTokenError, authorization, open_channel
from raftlog.transport.statuses import error_of
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

import grpc  # isort: skip
import grpc.aio  # isort: skip

_PLAINTEXT = ClientSecurity()


class Asked(Protocol):
    """The answer from one address. ``description``: None if it has not answered."""

    @property
    def endpoint(self) -> str:
        """The address."""

    @property
    def description(self) -> Any:
        """A DescribeQuorumResponse, or an object with its fields."""


A = TypeVar("A", bound=Asked)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer from one address: a description, or why there is none.

    ``other_cluster``: the node's cluster id, if it differs from the other nodes'.
    """

    endpoint: str
    description: pb.DescribeQuorumResponse | None
    failure: str = ""
    other_cluster: str = ""

    @property
    def said(self) -> str:
        """Why there is no description, as a sentence."""
        verb = "belongs to another cluster" if self.other_cluster else "does not answer"
        return f"{self.endpoint} {verb}: {self.failure}"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The answers from one cluster, by address: the leader's cluster, or that of most nodes."""

    answers: tuple[Answer, ...]

    @property
    def descriptions(self) -> list[pb.DescribeQuorumResponse]:
        """The descriptions from the nodes that answered."""
        return [answer.description for answer in self.answers if answer.description is not None]

    @property
    def leader(self) -> pb.DescribeQuorumResponse | None:
        """The node that claims to lead; if several do, the one in the highest epoch."""
        leaders = [one for one in self.descriptions if one.role == "leader"]
        return max(leaders, key=lambda one: one.leader_epoch, default=None)


async def ask_quorum(
    addresses: Sequence[str], timeout_s: float, security: ClientSecurity = _PLAINTEXT
) -> Quorum:
    """Query these addresses and the voters that they name, concurrently, each within
    ``timeout_s``.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    asked: dict[str, Answer] = {}
    ask = list(dict.fromkeys(addresses))
    # Twice: a voter may be named only by a node that was itself named by another.
    while ask and len(asked) < 1000:
        left_s = max(0.01, deadline - loop.time())
        answers = await asyncio.gather(*(ask_node(address, left_s, security) for address in ask))
        asked |= {answer.endpoint: answer for answer in answers}
        ask = [address for address in _named(asked) if address and address not in asked]
    answers = [one for _, one in once_a_node(asked.values())]
    there = [one.description for one in answers if one.description is not None]
    cluster_id = cluster_of(there) or (there[0].cluster_id if there else "")
    return Quorum(tuple(_of_cluster(one, cluster_id) for one in answers))


def cluster_of(descriptions: Sequence[pb.DescribeQuorumResponse]) -> str:
    """Return the leader's cluster id, or else that of most nodes that answered; "" if it is
    unknown.
    """
    leads = next((one.cluster_id for one in descriptions if one.role == "leader"), "")
    counts = Counter(one.cluster_id for one in descriptions).most_common(2)
    if leads or not counts:
        return leads
    return "" if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


def _of_cluster(answer: Answer, cluster_id: str) -> Answer:
    one = answer.description
    if one is None or one.cluster_id == cluster_id:
        return answer
    failure = f"node {one.node_id} of cluster {one.cluster_id} answers"
    return Answer(answer.endpoint, None, failure, other_cluster=one.cluster_id)


async def ask_node(address: str, timeout_s: float, security: ClientSecurity = _PLAINTEXT) -> Answer:
    """Query one node. Never raises for a failure of the node or the network."""
    (called,) = await call_all(address, [DESCRIBE_QUORUM], timeout_s, security)
    return Answer(address, called.response, called.failure)


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call.

    ``status``: gRPC's; None if there was no call, or it succeeded. ``error_code``: raftlog's, or
    NONE if the node sent none.
    """

    response: Any
    failure: str = ""
    status: grpc.StatusCode | None = None
    error_code: int = ErrorCode.NONE


class Call(NamedTuple):
    """One unary call."""

    method: str
    request: Message
    response_type: type[Message]


DESCRIBE_QUORUM = Call(
    "/raftlog.wire.quorum.v1.Quorum/DescribeQuorum",
    pb.DescribeQuorumRequest(),
    pb.DescribeQuorumResponse,
)


async def call_all(
    address: str, calls: Sequence[Call], timeout_s: float, security: ClientSecurity = _PLAINTEXT
) -> list[Called]:
    """Send unary calls concurrently, on one new connection. Never raises for a failure."""
    credentials = None if security.tls is None else security.tls.channel_credentials()
    channel = open_channel(address, credentials, TransportLimits())
    try:
        metadata = await authorization(security.token, timeout_s)
        return list(
            await asyncio.gather(*(_called(channel, one, timeout_s, metadata) for one in calls))
        )
    except NoTokenError as error:
        return [Called(None, str(error))] * len(calls)
    finally:
        await channel.close()


async def _called(channel: Any, one: Call, timeout_s: float, metadata: Any) -> Called:
    try:
        bound = channel.unary_unary(
            one.method,
            request_serializer=type(one.request).SerializeToString,
            response_deserializer=one.response_type.FromString,
        )
        return Called(await bound(one.request, timeout=timeout_s, metadata=metadata))
    except grpc.aio.AioRpcError as error:
        code = error_of(error.trailing_metadata() or ()).error_code
        return Called(None, failure_text(error), error.code(), code)
    except (grpc.RpcError, grpc.aio.BaseError) as error:
        return Called(None, failure_text(error))


def _named(asked: dict[str, Answer]) -> dict[str, None]:
    """Return the addresses of the voters that the nodes know."""
    described = (answer.description for answer in asked.values() if answer.description is not None)
    return {voter.endpoint: None for one in described for voter in one.voters}


def once_a_node(answers: Iterable[A]) -> list[tuple[int, A]]:
    """Return each node once with its id (-1 if no node names it), under the address by which the
    others know it; sorted by id, then by address.
    """
    seen = list(answers)
    described = [one.description for one in seen if one.description is not None]
    ids = {
        one.endpoint: one.replica_id for each in described for one in each.voters if one.endpoint
    }
    found: dict[object, tuple[int, A]] = {}
    for answer in sorted(seen, key=lambda one: (one.endpoint not in ids, one.endpoint)):
        one = answer.description
        node_id = ids.get(answer.endpoint, -1) if one is None else one.node_id
        key: object = node_id if node_id >= 0 else answer.endpoint
        known = found[key][1].description if key in found else None
        if known is not None:
            if one is None or one.cluster_id == known.cluster_id:
                continue
            key = answer.endpoint
        found[key] = node_id, answer
    return sorted(found.values(), key=lambda one: (one[0] < 0, one[0], one[1].endpoint))
