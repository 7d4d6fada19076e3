"""Exactly-once writes at three simulated controllers that die: every numbered write is in the log
once, and told so.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from scenarios import simulated
from test_controller_quorum import World, alter

from raftlog import batch
from raftlog.client.session import Session
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb


def log_of(node: Any) -> list[batch.BatchHeader]:
    service = node.service
    chunk, offset = b"", 0
    while offset < service.node.committed_end:
        part = service.node.read(offset, service.node.committed_end, 1 << 20)
        chunk += part
        offset = list(batch.headers(part))[-1].end_offset
    return list(batch.headers(chunk))


@pytest.mark.parametrize("seed", range(6))
@simulated
async def test_writes_are_executed_once_across_failovers(seed: int) -> None:
    world, rng = World(), random.Random(seed)
    await world.active()
    sessions = [world.client.session(f"s{i}") for i in range(3)]
    duplicates = done = 0

    async def write(number: int, session: Session) -> None:
        nonlocal duplicates, done
        for i in range(40):
            response = await session.write(alter(f"k{number}", str(i)), timeout_s=60)
            duplicates += response.write.duplicate
            done += 1

    async def kill() -> None:
        for _ in range(5):
            await asyncio.sleep(rng.uniform(0.01, 0.1))
            node = await world.active()
            node.kill()
            await asyncio.sleep(rng.uniform(0.3, 1.0))
            node.start()

    await asyncio.gather(
        kill(), *(write(i, session) for i, session in enumerate(sessions) for _ in range(4))
    )
    assert done == 3 * 4 * 40
    node = await world.active()
    await world.until(lambda: len(world.hashes()) == 1)
    executed = Counter((h.client_id, h.sequence) for h in log_of(node) if h.sequence)
    assert set(executed.values()) == {1}
    assert len(executed) == done
    assert duplicates > 0, "no retry has met its own write: the test shows nothing"


@simulated
async def test_retry_finds_its_write_in_the_tail_that_the_new_leader_inherited() -> None:
    """[Seq 7 sits in the inherited, not yet committed tail; the client retries within 20 ms and it
    is executed twice.]
    """
    world = World()
    old = await world.active()
    session = world.client.session()
    await session.write(alter("a", "0"))
    followers = [node for node in world.nodes if node is not old]
    writing = asyncio.ensure_future(session.write(alter("a", "1"), timeout_s=30))
    end = old.service.replica.log_end_offset
    while all(node.service.replica.log_end_offset <= end for node in followers):
        await asyncio.sleep(0.00002)
    assert not writing.done()
    assert old.service.node.committed_end <= end
    old.kill()
    response = await writing
    assert response.write.duplicate
    assert response.write.token.offset == end
    new = await world.active()
    numbers = [(h.sequence, h.base_offset, h.epoch) for h in log_of(new) if h.sequence]
    assert [number[:2] for number in numbers] == [(1, end - 1), (2, end)]
    assert response.write.token.epoch == numbers[1][2] < new.service.node.controller_epoch


class Delaying:
    """Sends writes for a session; the first one that is delayed can be let go later."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.delay_next = False
        self.delayed: pb.ControllerRequest | None = None

    async def attempt(
        self, request: pb.ControllerRequest, timeout_s: float
    ) -> pb.ControllerResponse:
        if self.delay_next:
            self.delay_next, self.delayed = False, request
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "no answer", outcome_unknown=True)
        return await self.world.client.send(request, timeout_s)


@pytest.mark.parametrize("closed_first", [False, True])
@simulated
async def test_attempt_1_is_delayed_attempt_2_is_invalid_the_state_changes_attempt_1_arrives(
    closed_first: bool,
) -> None:
    world = World()
    node = await world.active()
    link = Delaying(world)
    session = Session(link.attempt, name="", rng=random.Random(1), cluster_id="")
    delete = pb.DeleteTopicsRequest(names=["t"])
    await session.write(alter("a", "0"))
    link.delay_next = True
    with pytest.raises(ApiError) as failure:  # attempt 2 is told that there is no such topic
        await session.write(delete)
    assert failure.value.outcome_unknown
    assert link.delayed is not None
    if closed_first:
        await session.write(alter("a", "1"))
    before = node.service.image.state_hash
    late = pb.ControllerRequest()
    late.CopyFrom(link.delayed)
    # The state has changed: what was refused is possible now.
    late.incremental_alter_configs.CopyFrom(alter("late", "1"))
    response = await world.client.send(late)
    if closed_first:
        assert response.error.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert node.service.image.state_hash == before
    else:
        assert response.write.token.offset > 0
        assert node.service.image.configs[(16, "late")] == {"match": "1"}


@simulated
async def test_closed_client_and_another_generation_are_refused() -> None:
    world = World()
    node = await world.active()
    session = world.client.session()
    await session.write(alter("a", "0"))
    request = pb.ControllerRequest(incremental_alter_configs=alter("a", "1"))
    request.client.client_id, request.client.sequence, request.client.generation = (
        session.client_id,
        2,
        1,
    )
    other = await world.client.send(request)
    assert (other.error.error_code, other.error.field) == (
        ErrorCode.INCONSISTENT_GENERATION,
        "client.generation",
    )
    request.client.generation = node.service.node.committed_generation
    await session.close()
    closed = await world.client.send(request)
    assert (closed.error.error_code, closed.error.outcome_unknown) == (
        ErrorCode.UNKNOWN_PRODUCER_ID,
        False,
    )
