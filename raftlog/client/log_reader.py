"""A reader of a running cluster's committed log, as an observer whose progress is ignored.

Also reads the snapshots with which logs begin (KIP-630), and the image that follows from both.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from raftlog import batch
from raftlog.client.endpoints import EndpointSelector
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import SnapshotLoader
from raftlog.metadata.snapshot_file import Footer, SnapshotId, read_footer
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.transport.rpc_client import RpcClient
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2

PIECE_BYTES = 32 << 10
"""Size of one requested piece in bytes: processing it blocks the loop for a few milliseconds."""
FOOTER_BYTES_MAX = 256
"""Number of bytes fetched to get a footer, about twice its size."""
NO_EPOCH = -1
"""Epoch sent by a reader that does not know the leader; any node that has the snapshot answers."""
OBSERVER_ID = -1
CHUNK_MAX_BYTES = 4 << 20
SNAPSHOT_PIECE_BYTES = 1 << 20
LINK_TIMEOUT_S = 1.0
"""Time in seconds after which a controller without a link is skipped."""
LINK_TIMEOUT_MIN_S = 0.05
"""Minimum of that timeout when many controllers must be tried in little time, each within its share
of the remaining time.
"""

ATTEMPTS = 5
"""Maximum number of attempts to read the state: the log may be deleted below the position, or the
node may die.
"""
_AGAIN = (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)
Progress = Callable[[int, int], None]
"""Function called with (offset reached, offset to reach), both exclusive."""


async def fetch_snapshot(
    transport: Transport,
    address: str,
    snapshot_id: SnapshotId,
    sink: Callable[[bytes], None],
    *,
    cluster_id: str,
    timeout_s: float,
    piece_bytes: int = PIECE_BYTES,
    last_bytes: int = 0,
) -> None:
    """Fetch a snapshot, or only its last bytes, piece by piece into ``sink``.

    Raises ApiError (SNAPSHOT_NOT_FOUND: the node has deleted the snapshot meanwhile;
    REQUEST_TIMED_OUT: it does not answer), and the errors of ``sink``. A piece that does not arrive
    within ``timeout_s`` is requested once more, on another link, before the node counts as silent.
    (Without the repetition, a snapshot of a thousand pieces would restart forever if one piece in a
    hundred is late.)
    """
    loop = asyncio.get_running_loop()
    id_ = quorum_pb2.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)
    caller = RpcClient(transport, address, Conversation.SNAPSHOT)
    deadline = loop.time() + timeout_s
    position = asked_again_at = 0
    try:
        while True:
            request = quorum_pb2.FetchSnapshotRequest(
                cluster_id=cluster_id,
                replica_id=-1,
                current_leader_epoch=NO_EPOCH,
                snapshot_id=id_,
                position=position,
                # One byte reveals the size, from which the start of the last bytes follows.
                max_bytes=1 if last_bytes else piece_bytes,
            )
            try:
                response = await caller.call(request, deadline - loop.time())
            except ApiError as error:
                if error.code is ErrorCode.NETWORK_EXCEPTION:
                    continue  # The link was lost: the next one gets the rest of the time.
                # The first piece is not retried, since starting a new fetch costs nothing.
                if asked_again_at >= position:
                    message = f"{address} did not send the snapshot in time"
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, message) from None
                asked_again_at, deadline = position, loop.time() + timeout_s
                caller.close()
                caller = RpcClient(transport, address, Conversation.SNAPSHOT)
                continue
            _require_piece(address, snapshot_id, position, response)
            if last_bytes:
                position, last_bytes = max(0, response.size - last_bytes), 0
            else:
                sink(response.bytes)
                position += len(response.bytes)
            if position >= response.size:
                return
            deadline = loop.time() + timeout_s
    finally:
        caller.close()


def _require_piece(
    address: str, snapshot_id: SnapshotId, position: int, response: quorum_pb2.FetchSnapshotResponse
) -> None:
    if response.error_code:
        error = error_from_wire(common_pb2.Error(error_code=response.error_code))
        why = error.message.rstrip(": ") or error.code.name
        raise ApiError(
            error.code, f"{address} refuses to send snapshot {snapshot_id.end_offset}: {why}"
        )
    if response.position != position or not response.bytes:
        message = f"{address} sent a different piece than the one requested"
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, message)


async def fetch_footer(
    transport: Transport,
    address: str,
    snapshot_id: SnapshotId,
    *,
    cluster_id: str,
    timeout_s: float,
) -> Footer | None:
    """Return the footer of a node's snapshot, with the hashes of its state and of the log below it;
    None if it does not arrive in time.
    """
    tail: list[bytes] = []
    with contextlib.suppress(TimeoutError, ApiError):
        async with asyncio.timeout(timeout_s):
            await fetch_snapshot(
                transport,
                address,
                snapshot_id,
                tail.append,
                cluster_id=cluster_id,
                timeout_s=timeout_s,
                last_bytes=FOOTER_BYTES_MAX,
            )
    return read_footer(b"".join(tail))


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The identity of a log, and how far it was committed when the node answered.

    ``high_watermark``: exclusive. ``snapshot_id``: the state to start with if the log begins above
    0. ``address``: the answering node's address.
    """

    cluster_id: str
    generations: tuple[int, ...]
    """Generations of the log, oldest first."""
    high_watermark: int
    log_start_offset: int
    snapshot_id: SnapshotId | None = None
    address: str = ""

    @property
    def generation(self) -> int:
        """The generation of the log."""
        return self.generations[-1]


class BelowLogStartError(ApiError):
    """The log begins at ``log_start_offset``; the requested records are only in ``snapshot_id``."""

    def __init__(self, offset: int, log_start_offset: int, snapshot_id: SnapshotId) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log begins at offset {log_start_offset}: records before it, such as {offset}, "
            "were deleted after a snapshot",
            field="fetch_offset",
        )
        self.log_start_offset, self.snapshot_id = log_start_offset, snapshot_id


class LogReader:
    """A reader of committed chunks from the active controller and its successors; each answer must
    arrive within ``timeout_s``.
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
        """Number of connections made."""
        self._refusal = ""
        """Message of the last node that refused because it does not lead."""
        self._failures: dict[str, str] = {}
        """Controllers that did not answer or refuse this client, with the reasons."""
        self._round: set[str] = set()
        """The controllers in ``_failures`` that were tried in the current round."""

    async def info(self) -> LogInfo:
        """Return the state of the active controller's log. Raises ApiError."""
        # With a high watermark of -1 the controller always has news, and answers at once.
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
        """Return whole, verified committed batches, starting with the one at ``offset``; empty if
        none arrives within ``max_wait_ms``. Raises BelowLogStartError, other ApiErrors, and
        CorruptLogError naming the offset.
        """
        response = await self._fetch(offset, max_bytes, max_wait_ms=max_wait_ms)
        snapshot_id = _snapshot_of(response)
        if snapshot_id is not None:
            raise BelowLogStartError(offset, response.log_start_offset, snapshot_id)
        chunk = response.records
        batch.scan(chunk, expect_offset=offset)
        return chunk

    async def chunks(self, offset: int, until: int) -> AsyncIterator[bytes]:
        """Yield committed chunks from ``offset``, a batch boundary, until one reaches ``until``
        (exclusive); waits for new ones.

        The last chunk may contain batches beyond ``until``. Raises as ``read`` does.
        """
        while offset < until:
            chunk = await self.read(offset, max_wait_ms=int(self._timeout_s * 500))
            if chunk:
                yield chunk
                *_, last = batch.headers(chunk, verify=False)
                offset = last.end_offset

    async def snapshot(self, snapshot_id: SnapshotId, sink: Callable[[bytes], None]) -> None:
        """Fetch a snapshot with which the log begins, from the node that named it, piece by piece
        into ``sink``.

        Raises ApiError (SNAPSHOT_NOT_FOUND: the node has a newer one by now), and the errors of
        ``sink``.
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
        """Query controllers until one answers as the active controller."""
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
                f"no active controller answered in time; tried {nodes}{why}",
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
        """Send the request to the current target. Return None if another node must be tried, after
        any pause that is due.

        A silent node does not use up the others' time: if two of three nodes hang, a reader with a
        timeout of two seconds still tries the third.
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
            # A new leader does not know the high watermark before its own first commit.
            if not unled and (response.HasField("error") or response.high_watermark >= 0):
                self._endpoints.reached()
                return response
            if unled:
                self._refusal = response.error.error_message
            pause_s = self._endpoints.redirected(response.leader_endpoint, self._loop.time())
        self.close()
        await asyncio.sleep(pause_s)
        return None


async def committed_state(
    reader: LogReader, progress: Progress | None = None
) -> tuple[LogInfo, Image]:
    """Return the state at the high watermark. Raises ApiError, CorruptLogError, FoldError."""
    retrying = AsyncRetrying(
        retry=retry_if_exception(_is_retriable),
        stop=stop_after_attempt(ATTEMPTS),
        reraise=True,
    )
    return await retrying(_committed_state, reader, progress)


def _is_retriable(error: BaseException) -> bool:
    """Return whether another attempt may succeed. It may even after a CorruptLogError: the data may
    have been damaged in transit.
    """
    again = isinstance(error, ApiError) and error.code in _AGAIN
    return again or isinstance(error, BelowLogStartError | CorruptLogError)


async def _committed_state(reader: LogReader, progress: Progress | None) -> tuple[LogInfo, Image]:
    info = await reader.info()
    image = Image()
    if info.snapshot_id is not None:
        loader = SnapshotLoader()
        await reader.snapshot(info.snapshot_id, loader.feed)
        image = loader.finish()
    builder = ImageBuilder(image)
    async for chunk in reader.chunks(builder.offset + 1, info.high_watermark):
        builder.apply_chunk(chunk)
        if progress is not None:
            progress(builder.offset + 1, info.high_watermark)
    return info, builder.snapshot()


class CommittedImage:
    """The committed image, read incrementally: the first read fetches the whole log, or its newest
    snapshot and the log after it; later reads fetch only new records.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._builder: ImageBuilder | None = None

    async def read(self) -> Image:
        """Return the image at the current high watermark. Raises ApiError, CorruptLogError."""
        if self._builder is not None:
            try:
                return await self._read_on(self._builder)
            except BelowLogStartError:
                # The log was deleted beyond the position of this reader.
                pass
        _, image = await committed_state(self._reader)
        self._builder = ImageBuilder(image)
        return image

    async def _read_on(self, builder: ImageBuilder) -> Image:
        info = await self._reader.info()
        async for chunk in self._reader.chunks(builder.offset + 1, info.high_watermark):
            builder.apply_chunk(chunk)
        return builder.snapshot()


def _snapshot_of(response: pb.MetadataFetchResponse) -> SnapshotId | None:
    if not response.HasField("snapshot_id"):
        return None
    return SnapshotId(response.snapshot_id.end_offset, response.snapshot_id.epoch)


class _TurnedAwayError(LinkClosedError):
    """A controller refuses this client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class _Connection:
    """One link to one controller, with one request at a time."""

    def __init__(self, transport: Transport, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._link: asyncio.Future[Link] = loop.create_future()
        self._answer: asyncio.Future[pb.MetadataFetchResponse] | None = None
        self._dialer: Dialer = transport.dial(address, Conversation.OBSERVER, self)

    async def ask(
        self, request: pb.MetadataFetchRequest, link_timeout_s: float, answer_timeout_s: float
    ) -> pb.MetadataFetchResponse:
        """Send a request, and return the response. Raises LinkClosedError."""
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
        """Close the link."""
        self._dialer.close()
        self._link.cancel()

    def opened(self, link: Link) -> None:
        """Record the new link."""
        if not self._link.done():
            self._link.set_result(link)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """Record a failed attempt."""
        if not self._link.done():
            self._link.set_exception(
                LinkClosedError(reason) if error is None else _TurnedAwayError(error)
            )

    def received(self, link: Link, messages: Sequence[pb.MetadataFetchResponse]) -> None:
        """Record the response."""
        if messages and self._answer is not None and not self._answer.done():
            self._answer.set_result(messages[0])

    def closed(self, link: Link, reason: str) -> None:
        """Record the end of the link."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LinkClosedError(reason))
