"""Readers of the committed log and of snapshots, over links that break."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from client_world import Server, World, simulate
from scenarios import failure, simulated

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.client import log_reader
from raftlog.errors import ApiError, CorruptLogError, ErrorCode, SaslAuthenticationFailedError
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.metadata.snapshot_file import SnapshotId
from raftlog.transport.api import Conversation, LinkClosedError
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2
from raftlog.wire.records.v1 import records_pb2 as rec

Answer = Callable[[pb.MetadataFetchRequest], "pb.MetadataFetchResponse | None"]


class FakeLink:
    """A link that answers each request by a script, or ``never``; None: the link breaks."""

    def __init__(self, address: str, answer: Answer, handler: Any) -> None:
        self.peer, self._answer, self._handler, self._open = address, answer, handler, True

    def send(self, message: pb.MetadataFetchRequest) -> None:
        if not self._open:
            raise LinkClosedError("closed")
        if self._answer is never:
            return
        response = self._answer(message)
        loop = asyncio.get_running_loop()
        if response is None:
            self._open = False
            loop.call_soon(self._handler.closed, self, "broke")
        else:
            loop.call_soon(self._handler.received, self, [response])


def never(_: pb.MetadataFetchRequest) -> None:
    """The answer of a node that hangs."""


class FakeTransport:
    """Controllers by address. A missing address gives no link; ``refusing`` ones fail the attempt."""

    def __init__(
        self, refusing: str = "", refusal: ApiError | None = None, **controllers: Answer
    ) -> None:
        self.refusing, self.refusal, self.controllers = refusing, refusal, controllers
        self.dialled: list[str] = []
        self.open = 0

    def dial(self, address: str, conversation: Any, handler: Any) -> Any:
        self.dialled.append(address)
        self.open += 1
        soon = asyncio.get_running_loop().call_soon
        if address in self.refusing:
            soon(handler.attempt_failed, "UNAVAILABLE: Connection refused", self.refusal)
        if (answer := self.controllers.get(address)) is not None:
            soon(handler.opened, FakeLink(address, answer, handler))
        return self

    def close(self) -> None:
        self.open -= 1


def chunk(base: int, count: int) -> bytes:
    return batch.encode([RecordData(20, 0, b"")] * count, base_offset=base, epoch=1, timestamp_ms=1)


def leader(chunks: dict[int, bytes], *, high_watermark: int = 9, generation: int = 3) -> Answer:
    def answer(request: pb.MetadataFetchRequest) -> pb.MetadataFetchResponse:
        assert request.replica_id == -1
        assert request.generation in (0, generation)
        return pb.MetadataFetchResponse(
            cluster_id="C",
            generation=generation,
            high_watermark=high_watermark,
            records=chunks.get(request.fetch_offset, b"")
            if request.fetch_offset < high_watermark
            else b"",
        )

    return answer


def refuse(code: ErrorCode, endpoint: str = "") -> Answer:
    def answer(_: pb.MetadataFetchRequest) -> pb.MetadataFetchResponse:
        response = pb.MetadataFetchResponse(
            leader_id=-1, leader_endpoint=endpoint, high_watermark=-1
        )
        response.error.error_code = code
        response.error.error_message = "no"
        return response

    return answer


def reader(transport: Any, *bootstrap: str, timeout_s: float = 60.0) -> log_reader.LogReader:
    return log_reader.LogReader(transport, bootstrap, rng=random.Random(1), timeout_s=timeout_s)


CHUNKS = {0: chunk(0, 4) + chunk(4, 1), 5: chunk(5, 4)}


async def test_log_reader_reads_chunks_up_to_the_high_watermark() -> None:
    log = reader(FakeTransport(a=leader(CHUNKS)), "a")
    info = await log.info()
    assert (info.cluster_id, info.generation, info.high_watermark) == ("C", 3, 9)
    assert [data async for data in log.chunks(0, info.high_watermark)] == [CHUNKS[0], CHUNKS[5]]
    assert [data async for data in log.chunks(0, 3)] == [CHUNKS[0]]
    assert [data async for data in log.chunks(5, 5)] == []


async def test_hint_is_followed_and_only_one_link_is_kept() -> None:
    transport = FakeTransport(a=refuse(ErrorCode.NOT_CONTROLLER, "b"), b=leader(CHUNKS))
    log = reader(transport, "a")
    assert (await log.info()).high_watermark == 9
    assert (transport.dialled, transport.open) == (["a", "b"], 1)
    log.close()
    log.close()
    assert transport.open == 0


async def test_leader_that_does_not_know_its_high_watermark_is_asked_again() -> None:
    answers = iter([leader(CHUNKS, high_watermark=-1), leader(CHUNKS)])

    def answer(request: pb.MetadataFetchRequest) -> pb.MetadataFetchResponse | None:
        return next(answers)(request)

    assert (await reader(FakeTransport(a=answer), "a").info()).high_watermark == 9


async def test_broken_link_is_replaced_and_the_read_continues() -> None:
    asked: list[int] = []

    def breaks(request: pb.MetadataFetchRequest) -> pb.MetadataFetchResponse | None:
        asked.append(request.fetch_offset)
        return leader(CHUNKS)(request) if request.fetch_offset == 0 else None

    transport = FakeTransport(a=breaks, b=leader(CHUNKS))
    log = reader(transport, "a", "b")
    assert [data async for data in log.chunks(0, 9)] == [CHUNKS[0], CHUNKS[5]]
    assert asked == [0, 5]
    assert transport.dialled == ["a", "b"]


@simulated
async def test_unreachable_address_is_skipped() -> None:
    transport = FakeTransport(b=leader(CHUNKS))
    assert (await reader(transport, "a", "b").info()).high_watermark == 9
    assert transport.dialled == ["a", "b"]


async def test_corrupt_and_misplaced_chunks_are_refused_with_their_offset() -> None:
    damaged = CHUNKS[5][:-1] + b"x"
    with pytest.raises(CorruptLogError) as caught:
        await reader(FakeTransport(a=leader({5: damaged})), "a").read(5)
    assert caught.value.offset == 5
    with pytest.raises(CorruptLogError):
        await reader(FakeTransport(a=leader({5: chunk(6, 1)})), "a").read(5)


async def test_other_errors_are_raised_unchanged() -> None:
    caught = await failure(
        reader(FakeTransport(a=refuse(ErrorCode.INCONSISTENT_GENERATION)), "a").info()
    )
    assert caught.code is ErrorCode.INCONSISTENT_GENERATION


@simulated
async def test_log_reader_raises_when_nobody_leads_in_time() -> None:
    log = reader(FakeTransport(a=refuse(ErrorCode.NOT_CONTROLLER)), "a", timeout_s=0.05)
    with pytest.raises(ApiError, match="no active controller answered in time; tried a") as caught:
        await log.info()
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert not caught.value.outcome_unknown


async def test_error_below_the_log_start_names_it_and_the_snapshot() -> None:
    def answer(request: pb.MetadataFetchRequest) -> pb.MetadataFetchResponse:
        response = pb.MetadataFetchResponse(
            cluster_id="C", generation=3, high_watermark=9, log_start_offset=5
        )
        if request.fetch_offset < 5:
            response.snapshot_id.end_offset, response.snapshot_id.epoch = 7, 2
        else:
            response.records = chunk(request.fetch_offset, 1)
        return response

    log = reader(FakeTransport(a=answer), "a")
    info = await log.info()
    assert (info.log_start_offset, info.snapshot_id, info.address) == (5, SnapshotId(7, 2), "a")
    with pytest.raises(
        log_reader.BelowLogStartError,
        match="the log begins at offset 5: records before it, such as 4",
    ) as failure:
        await log.read(4)
    assert failure.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert failure.value.snapshot_id == SnapshotId(7, 2)
    assert await log.read(5) == chunk(5, 1)
    log.close()


@pytest.mark.parametrize(
    "dead",
    [{}, {"a": never, "b": never}, {"a": never, "refusing": "b"}],
    ids=["none", "two silent", "one silent, one refusing"],
)
@simulated
async def test_dead_nodes_leave_time_for_the_leader(dead: dict[str, Any]) -> None:
    """[Two of three nodes hang; a reader gave all of it to the first.]"""
    transport = FakeTransport(c=leader(CHUNKS), **dead)
    log = reader(transport, "a", "b", "c", timeout_s=2.0)
    assert (await log.info()).address == "c"
    assert transport.dialled[:3] == ["a", "b", "c"]
    log.close()
    assert transport.open == 0


async def test_log_reader_fails_at_once_when_all_refuse_it() -> None:
    refused = ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the token has expired")
    log = reader(FakeTransport("ab", refused), "a", "b")
    with pytest.raises(SaslAuthenticationFailedError, match="expired"):
        await asyncio.wait_for(log.info(), 5)
    # One that lets it in is enough.
    log = reader(FakeTransport("a", refused, b=leader(CHUNKS)), "a", "b")
    assert (await asyncio.wait_for(log.info(), 5)).address == "b"


@simulated
async def test_refused_connection_costs_no_wait() -> None:
    async with asyncio.timeout(0.5):
        await reader(FakeTransport("ab", c=leader(CHUNKS)), "a", "b", "c", timeout_s=30.0).info()


@simulated
async def test_log_reader_error_names_each_address_and_reason() -> None:
    transport = FakeTransport("b", a=never)
    with pytest.raises(ApiError, match=r"tried a, b: .*b UNAVAILABLE: Connection refused"):
        await reader(transport, "a", "b", timeout_s=0.3).info()
    assert {"a", "b"} == set(transport.dialled)


class Log:
    """A committed log with one config value per batch, as a LogReader shows it."""

    def __init__(self) -> None:
        self.end = 0
        self.start = 0
        self.begun_at: list[int] = []
        """Offsets at which readers started."""

    async def info(self) -> log_reader.LogInfo:
        return log_reader.LogInfo("c", (8,), self.end, 0)

    async def chunks(self, offset: int, until: int) -> AsyncIterator[bytes]:
        self.begun_at.append(offset)
        if offset < self.start:
            # Once: as if the log began anew, so that a reader that starts over finds it all.
            self.start = 0
            raise log_reader.BelowLogStartError(offset, 5, SnapshotId(5, 1))
        for base in range(offset, until):
            message = rec.ConfigRecord(
                resource_type=16, resource_name="r", name="match", value=str(base)
            )
            yield batch.encode([record(message).data], base_offset=base, epoch=1, timestamp_ms=1)


async def test_committed_image_resumes_or_restarts_when_the_log_start_has_passed_it() -> None:
    log: Any = Log()
    committed = log_reader.CommittedImage(log)

    async def look() -> tuple[int, str]:
        image = await committed.read()
        return image.offset, image.configs[16, "r"]["match"]

    log.end = 3
    first = await committed.read()
    assert await look() == (2, "2")
    log.end = 5
    assert await look() == (4, "4")
    assert first.configs[16, "r"]["match"] == "2", "an image that was given away does not change"
    assert log.begun_at == [0, 3, 3]
    log.end, log.start = 9, 6
    assert await look() == (8, "8")
    assert log.begun_at[3:] == [5, 0]


@simulated
async def test_footer_takes_two_requests_whatever_the_size_of_the_snapshot() -> None:
    builder = ImageBuilder(Image())
    for number in range(50):
        message = rec.ConfigRecord(
            resource_type=16, resource_name="r", name=f"k{number}", value="x" * 100
        )
        builder.apply_chunk(
            batch.encode([record(message).data], base_offset=number, epoch=1, timestamp_ms=1)
        )
    image = builder.snapshot()
    content = b"".join(pieces(image, header_of(image, cluster_id="c", generations=(3,))))
    asked: list[int] = []

    def serve(request: Any) -> Any:
        asked.append(request.position)
        return quorum_pb2.FetchSnapshotResponse(
            correlation_id=request.correlation_id,
            size=len(content),
            position=request.position,
            bytes=content[request.position : request.position + request.max_bytes],
        )

    def drop(request: Any) -> Any:
        return quorum_pb2.FetchSnapshotResponse(
            correlation_id=request.correlation_id, error_code=ErrorCode.SNAPSHOT_NOT_FOUND
        )

    transport: Any = FakeTransport(a=serve, b=drop)
    for address, state_hash in (("a", image.state_hash), ("b", None), ("nobody", None)):
        footer = await log_reader.fetch_footer(
            transport, address, SnapshotId(50, 1), cluster_id="c", timeout_s=0.2
        )
        assert (footer.state_hash if footer is not None else None) == state_hash
    assert asked == [0, len(content) - log_reader.FOOTER_BYTES_MAX]
    assert transport.open == 0


def test_snapshot_is_fetched_over_lost_links_and_with_late_chunks() -> None:
    content = bytes(range(250))

    async def test(world: World) -> None:
        def serve(request: Any) -> Any:
            asked.append(request.position)
            count = asked.count(request.position)
            if count <= {50: 1, 100: 2}.get(request.position, 0):
                server.hang_up()
                return None
            if request.position == 150 and count == 1:
                return None
            piece = content[request.position : request.position + request.max_bytes]
            return quorum_pb2.FetchSnapshotResponse(
                size=len(content), position=request.position, bytes=piece
            )

        asked: list[int] = []
        server = await Server(world.network, "a", Conversation.SNAPSHOT, serve).start()
        found: list[bytes] = []
        begun = world.loop.time()
        await log_reader.fetch_snapshot(
            world.transport, "a:1", SnapshotId(50, 1), found.append,
            cluster_id="c", timeout_s=5.0, piece_bytes=50,
        )  # fmt: skip
        assert b"".join(found) == content
        assert asked == [0, 50, 50, 100, 100, 100, 150, 150, 200]
        # Only the piece that was late has cost a timeout; a lost link costs a new one.
        assert 5.0 <= world.loop.time() - begun < 7.0

    simulate(test)
