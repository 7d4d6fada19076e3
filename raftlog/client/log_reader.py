"""Reading the committed log of a running cluster, as one more observer whose progress counts for
nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from raftlog import batch
from raftlog.client.endpoint_selector import EndpointSelector
from raftlog.client.snapshot_fetch import fetch_snapshot
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.log_generation import NO_GENERATION
from raftlog.storage.api import SnapshotId
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.transport.wire_errors import error_from_wire
from raftlog.wire.controller.v1 import controller_pb2 as pb

OBSERVER_ID = -1
CHUNK_MAX_BYTES = 4 << 20
SNAPSHOT_PIECE_BYTES = 1 << 20
LINK_TIMEOUT_S = 1.0
"""A controller that gives no link in this time is passed over for another one."""
LINK_TIMEOUT_MIN_S = 0.05
"""The same where many have to be asked in little time: each gets its share of what is left."""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """Which log it is, and how far it is committed when asked: ``high_watermark`` is exclusive.

    ``snapshot_id``: the state to begin with where the log begins above 0; ``address``: of the node
    that said all this.
    """

    cluster_id: str
    generations: tuple[int, ...]
    """Those of the log, oldest first."""
    high_watermark: int
    log_start_offset: int
    snapshot_id: SnapshotId | None = None
    address: str = ""

    @property
    def generation(self) -> int:
        """The generation of the log."""
        return self.generations[-1]


class BelowLogStartError(ApiError):
    """The log was dropped below ``log_start_offset``: what was asked for is only there as part of
    the state, in ``snapshot_id``.
    """

    def __init__(self, offset: int, log_start_offset: int, snapshot_id: SnapshotId) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log begins at offset {log_start_offset}: {offset} lies before that, and was"
            " dropped after a snapshot",
            field="fetch_offset",
        )
        self.log_start_offset, self.snapshot_id = log_start_offset, snapshot_id


class LogReader:
    """Reads committed chunks from the active controller, wherever that is, and from its successor
    if it changes.

    ``timeout_s`` bounds each answer. Must be made on the event loop; close it.
    """

    def __init__(
        self,
        transport: Transport,
        bootstrap: Sequence[str],
        *,
        rng: random.Random,
        timeout_s: float = 10.0,
        cluster_id: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._endpoints = EndpointSelector(bootstrap, rng)
        self._timeout_s = timeout_s
        self._cluster_id = cluster_id
        self._generations: tuple[int, ...] = ()
        self._seen_cluster_id = cluster_id
        self._connection: _Connection | None = None
        self.connections = 0
        """How many connections have been made."""
        self._refusal = ""
        """What the last node said that does not lead."""
        self._failures: dict[str, str] = {}
        """Those that were asked in vain, or do not let this client in, and why."""
        self._round: set[str] = set()
        """Those of them that were asked since all were."""

    async def info(self) -> LogInfo:
        """What the active controller says of its log now.

        Raises ApiError: REQUEST_TIMED_OUT if none answers in time, SASL_AUTHENTICATION_FAILED at
        once if none lets this client in.
        """
        # High watermark -1: it knows better in any case, so that it answers at once.
        response = await self._fetch(0, 1, max_wait_ms=0)
        return LogInfo(
            response.cluster_id,
            self._generations,
            response.high_watermark,
            response.log_start_offset,
            _snapshot_of(response),
            self._endpoints.target,
        )

    async def read(
        self, offset: int, max_bytes: int = CHUNK_MAX_BYTES, *, max_wait_ms: int = 0
    ) -> bytes:
        """Whole committed batches from the one that begins at ``offset``, verified; empty if none
        comes within ``max_wait_ms``.

        Raises BelowLogStartError, other ApiErrors, and CorruptLogError naming the offset.
        """
        response = await self._fetch(offset, max_bytes, max_wait_ms=max_wait_ms)
        snapshot_id = _snapshot_of(response)
        if snapshot_id is not None:
            raise BelowLogStartError(offset, response.log_start_offset, snapshot_id)
        chunk = response.records
        batch.scan(chunk, expect_offset=offset)
        return chunk

    async def chunks(self, offset: int, until: int) -> AsyncIterator[bytes]:
        """Committed chunks from ``offset``, a batch boundary, until one reaches ``until``
        (exclusive); waits for what is to come.

        The last chunk may hold batches beyond ``until``. Raises as ``read`` does.
        """
        while offset < until:
            chunk = await self.read(offset, max_wait_ms=int(self._timeout_s * 500))
            if chunk:
                yield chunk
                *_, last = batch.headers(chunk, verify=False)
                offset = last.end_offset

    async def snapshot(self, snapshot_id: SnapshotId, sink: Callable[[bytes], None]) -> None:
        """Fetch a snapshot that the log begins with, from the node that named it, piece by piece
        into ``sink``.

        Raises ApiError (SNAPSHOT_NOT_FOUND: it has a newer one by now), and what ``sink`` raises.
        """
        address = self._endpoints.target
        await fetch_snapshot(
            self._transport,
            address,
            snapshot_id,
            sink,
            cluster_id=self._seen_cluster_id,
            timeout_s=self._timeout_s,
            piece_bytes=SNAPSHOT_PIECE_BYTES,
        )

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _fetch(
        self, offset: int, max_bytes: int, *, max_wait_ms: int
    ) -> pb.MetadataFetchResponse:
        """Ask until somebody answers as the active controller."""
        request = pb.MetadataFetchRequest(
            cluster_id=self._cluster_id,
            replica_id=OBSERVER_ID,
            fetch_offset=offset,
            applied_offset=-1,
            told_lowest_acknowledged_offset=-1,
            high_watermark=offset if max_wait_ms else -1,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            generation=self._generations[-1] if self._generations else NO_GENERATION,
        )
        self._refusal = ""
        self._failures.clear()
        self._round.clear()
        deadline = self._loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                while (response := await self._attempt(request, deadline)) is None:
                    pass
        except TimeoutError:
            self.close()
            nodes = ", ".join(self._endpoints.known)
            said = [self._refusal, *(f"{one} {why}" for one, why in self._failures.items())]
            why = "; ".join(filter(None, said))
            why = f": {why}" if why else ""
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"no active controller answered in time; asked {nodes}{why}",
            ) from None
        if response.HasField("error"):
            raise error_from_wire(response.error, leader_id=response.leader_id)
        if not self._generations:
            self._generations = (*response.previous_generations, response.generation)
        self._seen_cluster_id = response.cluster_id
        return response

    async def _attempt(
        self, request: pb.MetadataFetchRequest, deadline: float
    ) -> pb.MetadataFetchResponse | None:
        """One question to the current target; None: another one has to be asked, after the pause
        that was due.

        Nobody who is silent takes the time that the others need. [Two of three nodes hang: with a
        second for each of them a reader that has two never asks the third.]
        """
        left_s = deadline - self._loop.time()
        address = self._endpoints.target
        if self._connection is None:
            self._connection = _Connection(self._transport, address)
            self.connections += 1
        others = sum(one not in self._round for one in self._endpoints.known if one != address)
        link_s = min(LINK_TIMEOUT_S, max(LINK_TIMEOUT_MIN_S, left_s / (others + 1)))
        wait_s = min(request.max_wait_ms / 1000, left_s)
        try:
            response = await self._connection.ask(request, link_s, (left_s + wait_s) / 2)
        except _TurnedAwayError as error:
            self._failures[address] = str(error)
            if self._failures.keys() >= set(self._endpoints.known):
                raise error.error from None
            pause_s = self._endpoints.unreachable(self._loop.time())
        except LinkClosedError as error:
            if address in self._round:
                self._round.clear()
            self._round.add(address)
            self._failures[address] = str(error)
            pause_s = self._endpoints.unreachable(self._loop.time())
        else:
            unled = (
                response.HasField("error") and response.error.error_code == ErrorCode.NOT_CONTROLLER
            )
            # A new leader knows no high watermark before its own first commit.
            if not unled and (response.HasField("error") or response.high_watermark >= 0):
                self._endpoints.reached()
                return response
            if unled:
                self._refusal = response.error.error_message
            pause_s = self._endpoints.redirected(response.leader_endpoint, self._loop.time())
        self.close()
        await asyncio.sleep(pause_s)
        return None


def _snapshot_of(response: pb.MetadataFetchResponse) -> SnapshotId | None:
    if not response.HasField("snapshot_id"):
        return None
    return SnapshotId(response.snapshot_id.end_offset, response.snapshot_id.epoch)


class _TurnedAwayError(LinkClosedError):
    """A controller does not let this client in."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class _Connection:
    """One link to one controller, asked one thing at a time."""

    def __init__(self, transport: Transport, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._link: asyncio.Future[Link] = loop.create_future()
        self._answer: asyncio.Future[pb.MetadataFetchResponse] | None = None
        self._dialer: Dialer = transport.dial(address, Conversation.OBSERVER, self)

    async def ask(
        self, request: pb.MetadataFetchRequest, link_timeout_s: float, answer_timeout_s: float
    ) -> pb.MetadataFetchResponse:
        """Send and wait. Raises LinkClosedError."""
        try:
            async with asyncio.timeout(link_timeout_s):
                link = await asyncio.shield(self._link)
        except TimeoutError:
            raise LinkClosedError("does not answer") from None
        answer = self._answer = asyncio.get_running_loop().create_future()
        link.send(request)
        try:
            async with asyncio.timeout(answer_timeout_s):
                return await answer
        except TimeoutError:
            raise LinkClosedError("does not answer") from None

    def close(self) -> None:
        """Give the link up."""
        self._dialer.close()
        self._link.cancel()

    def opened(self, link: Link) -> None:
        """The link is there."""
        if not self._link.done():
            self._link.set_result(link)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """There is no link."""
        if not self._link.done():
            self._link.set_exception(
                LinkClosedError(reason) if error is None else _TurnedAwayError(error)
            )

    def received(self, link: Link, messages: Sequence[pb.MetadataFetchResponse]) -> None:
        """The answer."""
        if messages and self._answer is not None and not self._answer.done():
            self._answer.set_result(messages[0])

    def closed(self, link: Link, reason: str) -> None:
        """Lost."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LinkClosedError(reason))
