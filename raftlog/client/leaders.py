"""The leaders of partitions, and links to those brokers, for producers and consumers.

Metadata is read from any broker that answers, newest image first, and never goes back, even across
brokers: each read carries the token of the last answer. It is read again when it proves stale, one
read at a time, and never more often than the back-off allows. A leader is also the first to know
its ISRs (KIP-24's BrokerMetadata).
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raftlog import tracing
from raftlog.client.broker_client import BrokerClient
from raftlog.client.endpoints import Endpoints
from raftlog.client.requests import broker_request, item_error, pause_after, require_success
from raftlog.clock import DeadlineTimer
from raftlog.endpoint import address_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Transport, TransportLimits
from raftlog.transport.links import Backoff
from raftlog.transport.rpc_client import RpcClient
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2

REFRESH_TIMEOUT_S = 2.0
ANSWER_MARGIN_S = 0.5
"""Extra seconds for an answer that the broker sends at the deadline."""
_PAUSES = TransportLimits(reconnect_backoff_min_ms=20, reconnect_backoff_max_ms=500)

PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """The last known leader of a partition. ``leader_id``: -1 if there is no leader."""

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """The last known state of a topic. A topic that is deleted and created again has another
    ``id``.
    """

    name: str
    id: bytes
    partition_count: int


def no_partition(topic: str, index: int | None, count: int) -> ApiError:
    """Return the error for a partition that a topic does not have."""
    message = f"topic {topic} has no partition {index}: its partitions are 0 to {count - 1}"
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message, field="partition")


class Leaders:
    """The metadata cache of producers and consumers.

    ``changed`` is called after each refresh, even a failed one: records may time out.
    """

    def __init__(
        self,
        transport: Transport,
        bootstrap: Endpoints,
        *,
        rng: random.Random,
        changed: Callable[[], None],
        cluster_id: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._changed = changed
        self._cluster_id = cluster_id
        self._client = BrokerClient(transport, bootstrap, rng=rng, cluster_id=cluster_id)
        self._endpoints: dict[int, str] = {}
        self._topics: dict[str, TopicView] = {}
        self._led: dict[PartitionKey, Leadership] = {}
        self._wanted: dict[str, None] = {}
        self._callers: dict[str, RpcClient] = {}
        self._backoff = Backoff(_PAUSES, rng)
        self._stale = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._failure: str | None = None
        self.turned_away: ApiError | None = None
        """The error with which the brokers refuse this client, or None if they accept it."""

    @property
    def failure(self) -> str:
        """Why the last refresh failed, or "" if it succeeded."""
        if self._failure is None:
            return f"none of {self._client.servers} has answered yet"
        return self._failure

    def want(self, topic: str) -> TopicView | None:
        """Return a topic if it is known; otherwise request it, and return None."""
        found = self._topics.get(topic)
        if found is None:
            self._wanted[topic] = None
            self.refresh()
        return found

    def leader(self, key: PartitionKey) -> Leadership | None:
        """Return a partition's leader if it is known and reachable, else None."""
        found = self._led.get(key)
        return found if found is not None and found.leader_id in self._endpoints else None

    def trouble(self, key: PartitionKey) -> str:
        """Return why a partition's leader cannot be used, or "" if the reason is unknown."""
        leader = self.leader(key)
        if leader is None:
            return self.failure or "no leader is known"
        caller = self._callers.get(self._endpoints[leader.leader_id])
        return "" if caller is None or caller.connected else caller.failure

    def learn(self, key: PartitionKey, current: data_pb2.CurrentLeader) -> None:
        """Record a newer leader that a broker has named (KIP-951), without a refresh."""
        known = self._led.get(key)
        if (
            known is not None
            and current.leader_epoch > known.leader_epoch
            and current.leader_id in self._endpoints
        ):
            self._led[key] = Leadership(current.leader_id, current.leader_epoch)

    def refresh(self) -> None:
        """Schedule a refresh of stale or missing metadata."""
        self._stale = True
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._refresh(), name="metadata refresh")

    def settled(self) -> None:
        """Record an answer from a leader: the next refresh is immediate."""
        self._backoff.reset()

    def call(
        self, leader_id: int, body: Any, timeout_s: float, callers: Collection[Any] = ()
    ) -> asyncio.Future[Any]:
        """Send a request body to a broker that ``leader`` returned. ``callers``: the callers'
        spans.
        """
        endpoint = self._endpoints[leader_id]
        caller = self._callers.get(endpoint)
        if caller is not None and caller.silent:
            # Requests in flight keep their deadlines; no more are sent on a connection that says
            # nothing.
            caller.retire()
            caller = None
        if caller is None:
            caller = self._callers[endpoint] = RpcClient(
                self._transport, endpoint, Conversation.BROKER
            )
        future: asyncio.Future[Any] = self._loop.create_future()
        request = broker_request(body, cluster_id=self._cluster_id)
        if tracing.active is not None:
            request = tracing.active.calling(request, future, callers)
        caller.start(request, self._loop.time() + timeout_s + ANSWER_MARGIN_S, future)
        if caller.stuck:
            # Only the next metadata, in which it is fenced, shows that it is dead: its link is then
            # closed.
            self.refresh()
        return future

    def close(self) -> None:
        """End all calls and links. Idempotent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for endpoint in sorted(self._callers):
            self._callers.pop(endpoint).close()
        self._client.close()

    # --- reading ---------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        throttled_s = 0.0
        while self._stale and not self._closed:
            self._stale = False
            await asyncio.sleep(max(self._backoff.next_s(), throttled_s))
            throttled_s = 0.0
            names = list(self._wanted)
            try:
                response = await self._client.read(
                    broker_pb2.MetadataRequest(topics=names),
                    mode=broker_pb2.LATEST,
                    timeout_s=REFRESH_TIMEOUT_S,
                )
            except ApiError as error:
                self._failure = str(error)
                refused = error.code is ErrorCode.SASL_AUTHENTICATION_FAILED
                self.turned_away = error if refused else None
                throttled_s = pause_after(error, 0.0)
                self._stale = True
                if error.code is ErrorCode.INCONSISTENT_GENERATION:
                    # The cluster was restored: earlier reads may be lost.
                    self._client.forget()
                    self._led.clear()
            else:
                self._failure, self.turned_away = "", None
                self._take(response.metadata)
            self._stale = self._stale or any(caller.stuck for caller in self._callers.values())
            self._changed()
        self._task = None

    def _take(self, metadata: broker_pb2.MetadataResponse) -> None:
        self._endpoints = {
            broker.node_id: address_of(broker.host, broker.port) for broker in metadata.brokers
        }
        for endpoint in sorted(set(self._callers) - set(self._endpoints.values())):
            # Fenced or unregistered: closing the link ends its requests in flight.
            self._callers.pop(endpoint).close()
        for topic in metadata.topics:
            self._take_topic(topic)

    def _take_topic(self, topic: broker_pb2.MetadataTopic) -> None:
        if topic.error_code:
            self._topics.pop(topic.name, None)
            return
        self._topics[topic.name] = TopicView(topic.name, topic.topic_id, len(topic.partitions))
        for partition in topic.partitions:
            key = (topic.topic_id, partition.partition_index)
            known = self._led.get(key)
            # A broker may have named a newer leader than the one in this image.
            if known is None or partition.leader_epoch >= known.leader_epoch:
                self._led[key] = Leadership(partition.leader_id, partition.leader_epoch)


class PartitionClient(ABC):
    """The common part of producers and consumers: work done once at the end of an event-loop turn
    for all calls in the turn, and again when metadata or time requires it. Must be created on the
    event loop.

    ``bootstrap``: the first brokers to contact, host:port each.
    """

    def __init__(
        self, transport: Transport, bootstrap: Endpoints, rng: random.Random, cluster_id: str
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._rng = rng
        self._leaders = Leaders(
            transport, bootstrap, rng=rng, changed=self._schedule, cluster_id=cluster_id
        )
        self._scheduled = self._closed = False
        self._timer = DeadlineTimer(self._loop, self._schedule)

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._begin_work)

    def _begin_work(self) -> None:
        self._scheduled = False
        if not self._closed:
            self._work(self._loop.time())

    @abstractmethod
    def _work(self, now: float) -> None:
        """Send what can be sent, end what is overdue, and set the timer."""

    def close(self) -> None:
        """End all calls and links. Idempotent."""
        self._closed = True
        self._timer.cancel()
        self._leaders.close()


STALE_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.BROKER_FENCED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the leader is looked up again: it is wrong, or cannot answer."""


REQUEST_PARTITIONS_MAX = 1000
"""Maximum number of partitions in one request."""


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """The answer of one broker. ``failure``: why it is missing or wrong; ``led`` is then empty."""

    broker_id: int
    broker_epoch: int = -1
    led: tuple[data_pb2.LedPartition, ...] = ()
    """Partitions that the broker leads, sorted by topic id and index."""
    refused: Mapping[PartitionKey, str] = field(default_factory=dict)
    """Why the broker does not lead a requested partition, by key."""
    failure: str = ""


async def ask_leaders(
    transport: Transport,
    endpoints: Mapping[int, str],
    *,
    timeout_s: float,
    keys: Sequence[PartitionKey] = (),
    cluster_id: str = "",
) -> dict[int, LeaderAnswer]:
    """Query brokers, by id and concurrently, for which of ``keys`` they lead, or for all
    they lead.
    """

    async def ask(broker_id: int) -> LeaderAnswer:
        try:
            pages = await ask_leader(
                transport,
                endpoints[broker_id],
                timeout_s=timeout_s,
                keys=keys,
                cluster_id=cluster_id,
            )
        except ApiError as error:
            return LeaderAnswer(broker_id, failure=str(error))
        if pages[0].broker_id != broker_id:
            failure = f"{endpoints[broker_id]} is broker {pages[0].broker_id}"
            return LeaderAnswer(broker_id, failure=failure)
        led: dict[PartitionKey, data_pb2.LedPartition] = {}
        refused: dict[PartitionKey, str] = {}
        for one in (one for page in pages for one in page.partitions):
            key = one.topic_id, one.partition_index
            if (refusal := item_error(one)) is not None:
                refused[key] = f"{refusal.code.name}: {refusal.message}".rstrip(": ")
            else:
                led[key] = one
        found = tuple(led[key] for key in sorted(led))
        return LeaderAnswer(broker_id, pages[-1].broker_epoch, found, refused)

    answers = await asyncio.gather(*map(ask, sorted(endpoints)))
    return {answer.broker_id: answer for answer in answers}


async def ask_leader(
    transport: Transport,
    endpoint: str,
    *,
    timeout_s: float,
    keys: Sequence[PartitionKey] = (),
    cluster_id: str = "",
) -> list[data_pb2.BrokerMetadataResponse]:
    """Return all pages of one broker's answer, at least one, with the errors of ``keys`` that it
    does not lead. Raises ApiError.
    """
    caller = RpcClient(transport, endpoint, Conversation.BROKER)
    try:
        async with asyncio.timeout(timeout_s):
            pages: list[data_pb2.BrokerMetadataResponse] = []
            for at in range(0, max(1, len(keys)), REQUEST_PARTITIONS_MAX):
                request = data_pb2.BrokerMetadataRequest()
                for topic_id, index in keys[at : at + REQUEST_PARTITIONS_MAX]:
                    request.partitions.add(topic_id=topic_id, partition_index=index)
                while True:
                    asked = broker_request(request, cluster_id=cluster_id)
                    answer = require_success(await caller.call(asked, timeout_s))
                    pages.append(answer.broker_metadata)
                    if keys or not pages[-1].HasField("next_cursor"):
                        break
                    request = data_pb2.BrokerMetadataRequest(cursor=pages[-1].next_cursor)
            return pages
    except TimeoutError:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{endpoint} did not answer in time") from None
    finally:
        caller.close()
