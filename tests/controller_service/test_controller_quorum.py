"""Three controllers on simulated disks and network, asked by a real client: decisions, commits,
failover, unknown outcomes.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from quorum_world import World, alter
from scenarios import simulated

from raftlog import batch
from raftlog.client.session import Session
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Conversation, Link
from raftlog.transport.unary import Caller, answer
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2


@simulated
async def test_write_is_answered_with_its_offset_and_is_in_every_image() -> None:
    world = World()
    response = await world.client.call(alter("a", "1"), principal="alice")
    assert response.WhichOneof("body") == "incremental_alter_configs"
    offset = response.write.token.offset
    await world.until(lambda: all(n.service.image.offset >= offset for n in world.nodes.values()))
    for node in world.nodes.values():
        assert node.service.image.configs[(16, "a")] == {"match": "1"}
    assert len(world.hashes()) == 1
    assert not world.network.handler_failures


@pytest.mark.parametrize("length", [1025, 65_535, 65_536, 1_000_000])
@simulated
async def test_principal_beyond_its_limit_stops_no_controller(length: int) -> None:
    world = World()
    node = await world.active()
    await world.client.call(alter("z", "1"))
    await world.until(lambda: len(world.hashes()) == 1)
    before, end = world.hashes(), node.service.replica.log_end_offset
    for principal in ("x" * length, "ä" * length, "a\nb"):
        with pytest.raises(ApiError) as refused:
            await world.client.call(alter("a", "1"), principal=principal)
        assert (refused.value.code, refused.value.field) == (
            ErrorCode.INVALID_REQUEST,
            "client.principal",
        )
        assert not refused.value.outcome_unknown
    assert (world.hashes(), node.service.replica.log_end_offset) == (before, end)
    assert await world.active() is node
    await world.client.call(alter("a", "1"), principal="x" * 1024)
    assert not any(one.failures for one in world.nodes.values())


@simulated
async def test_many_writes_in_flight_are_all_answered_in_order() -> None:
    world = World()
    await world.active()
    futures = [world.client.call(alter(f"k{i}", str(i))) for i in range(300)]
    responses = await asyncio.gather(*futures)
    offsets = [r.write.token.offset for r in responses]
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == 300


@simulated
async def test_error_names_its_field_changes_nothing_and_waits_for_proof_of_leading() -> None:
    world = World()
    node, *_ = await world.settled()
    before = node.service.image
    bad = alter("b", "1")
    bad.resources[0].configs[0].name = "no.such.key"
    response = await world.client.call(bad, raise_refused=False)
    error = response.incremental_alter_configs.results[0].error
    assert (error.error_code, error.field) == (
        ErrorCode.INVALID_CONFIG,
        "resources[0].configs[0].name",
    )
    assert not error.outcome_unknown
    assert node.service.image is before
    # Cut off from the others, the deposed leader cannot say even that.
    world.network.isolate(f"c{node.id}")
    world.network.heal(f"c{node.id}", "client")
    stale = asyncio.ensure_future(world.client.call(alter("c", "1"), timeout_s=60))
    await asyncio.sleep(0.4)
    assert not stale.done()


@simulated
async def test_acknowledged_writes_survive_the_death_of_the_active_controller() -> None:
    world = World()
    old = await world.active()
    for i in range(20):
        await world.client.call(alter(f"k{i}", str(i)))
    lost = asyncio.ensure_future(world.client.call(alter("late", "x")))
    await asyncio.sleep(0)
    old.kill()
    with pytest.raises(ApiError) as failure:
        await lost
    assert failure.value.outcome_unknown
    response = await world.client.call(alter("after", "y"))
    assert response.controller_epoch > 1
    new = await world.active()
    assert new is not old
    for i in range(20):
        assert new.service.image.configs[(16, f"k{i}")] == {"match": str(i)}
    old.start()
    await world.until(lambda: len(world.hashes()) == 1 and old.service.image.offset > 20)


@simulated
async def test_request_of_another_cluster_is_refused() -> None:
    world = World()
    request = pb.ControllerRequest(cluster_id="other", incremental_alter_configs=alter("a", "1"))
    with pytest.raises(ApiError) as failure:
        await world.client.call(request)
    assert (failure.value.code, failure.value.field) == (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        "cluster_id",
    )


@simulated
async def test_deposed_leader_answers_its_waiting_writes_with_outcome_unknown() -> None:
    world = World()
    node, *_ = await world.settled()
    for other in world.others(node):
        world.network.partition(f"c{node.id}", f"c{other.id}")
    with pytest.raises(ApiError) as failure:
        await world.client.call(alter("b", "2"), timeout_s=20)
    assert failure.value.outcome_unknown
    assert failure.value.code == ErrorCode.NOT_CONTROLLER


@simulated
async def test_stale_controller_does_not_name_itself_as_leader() -> None:
    """A broker epoch beyond this log was given by a newer controller: sent back to this one the
    broker would ask in a circle.
    """
    world = World()
    node = await world.active()
    beat = pb.BrokerHeartbeatRequest(broker_id=7, broker_epoch=10**9)
    response = await asyncio.ensure_future(
        answer(node.service.reception, pb.ControllerRequest(broker_heartbeat=beat), Caller("a:1"))
    )
    assert (response.error.error_code, response.error.field) == (
        ErrorCode.NOT_CONTROLLER,
        "broker_epoch",
    )
    assert (response.leader_id, response.leader_endpoint) == (-1, "")
    beat.broker_epoch = 1
    response = await asyncio.ensure_future(
        answer(node.service.reception, pb.ControllerRequest(broker_heartbeat=beat), Caller("a:1"))
    )
    assert (response.error.error_code, response.leader_id) == (
        ErrorCode.STALE_BROKER_EPOCH,
        node.id,
    )


class Stranger:
    """Reaches the controllers' ports, and keeps what they answer."""

    def __init__(self, world: World) -> None:
        self.links: dict[str, Link] = {}
        self.answers: list[quorum_pb2.QuorumMessage] = []
        transport = world.network.transport_for("stranger")
        for endpoint in world.bootstrap:
            transport.dial(endpoint, Conversation.QUORUM, self)

    def opened(self, link: Link) -> None:
        self.links[link.peer] = link

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self.answers.extend(messages)

    def closed(self, link: Link, reason: str) -> None:
        self.links.pop(link.peer, None)


def forged(epoch: int) -> list[quorum_pb2.QuorumMessage]:
    """Return forged messages that once ended a quorum: the last epoch, another leader of this one,
    or an unexpected one; from voters and others.
    """
    far = (2**31 - 1, 2**31 - 2, 2**30)
    bodies = []
    for sender in (1, 2, 3, 99):
        for at in (*far, epoch):
            vote = quorum_pb2.VoteRequest(cluster_id="c", replica_id=sender, replica_epoch=at)
            led = quorum_pb2.BeginQuorumEpochRequest(
                cluster_id="c", leader_id=sender, leader_epoch=at, leader_endpoint="x:1"
            )
            end = quorum_pb2.EndQuorumEpochRequest(
                cluster_id="c", leader_id=sender, leader_epoch=at
            )
            for voter_id in (1, 2, 3):
                vote.voter_id = led.voter_id = voter_id
                bodies.append(quorum_pb2.QuorumMessage(vote_request=vote))
                bodies.append(quorum_pb2.QuorumMessage(begin_quorum_epoch_request=led))
            if at in far:
                bodies.append(quorum_pb2.QuorumMessage(end_quorum_epoch_request=end))
    return bodies


@simulated
async def test_no_message_of_a_stranger_ends_the_quorum() -> None:
    """The epoch and the leader stay, and writes go on being served, also by the next leader."""
    world = World()
    node, *_ = await world.settled()
    epoch = node.service.node.controller_epoch
    stranger = Stranger(world)
    await world.until(lambda: len(stranger.links) == 3)
    messages = forged(epoch)
    for link in list(stranger.links.values()):
        for message in messages:
            link.send(message)
    await world.until(lambda: len(stranger.answers) == 3 * len(messages))
    assert (await world.active(), node.service.node.controller_epoch) == (node, epoch)
    await world.client.call(alter("a", "2"), timeout_s=1.0)
    assert not any(n.failures for n in world.nodes.values())
    assert all(n.service.replica.refusals.counts for n in world.nodes.values())
    node.kill()
    successor = await world.active()
    assert successor.service.node.controller_epoch == epoch + 1
    await asyncio.sleep(1)
    await world.client.call(alter("a", "3"), timeout_s=10.0)


# --- Exactly-once writes at three simulated controllers that die ---------------------------------


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
    followers = world.others(old)
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
