"""A lease is lost for its holder before the cluster ends it."""

import asyncio
import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from client_world import World, refuses, simulate
from scenarios import scenario
from scripted_broker import Scripted, SimClient, client_of, with_client

import raftlog
from raftlog import errors
from raftlog.client.leases import LeaseKeeper
from raftlog.errors import ErrorCode
from raftlog.outcome import OF_NO_LOG
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc


class Keeper(Scripted):
    """Keeps every lease alive, unless a test sets another answer."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 0
        self.generations: set[int] = set()
        self.asked: list[list[int]] = []
        self.ended: set[int] = set()
        self.silent = self.gone = False

    def __call__(self, request: pb.BrokerRequest) -> pb.BrokerResponse | None:
        if request.write.HasField("keep_lease_alive"):
            if self.silent:
                return None
            if self.gone:
                gone = refuses(ErrorCode.RESOURCE_NOT_FOUND)(request.write)
                return pb.BrokerResponse(write=gone)
            self.kept += 1
            self.generations.add(request.write.keep_lease_alive.generation)
            body = request.write.keep_lease_alive
            self.asked.append([body.lease_id, *body.more_lease_ids])
            ttl_ms, *more = (0 if one in self.ended else 10_000 for one in self.asked[-1])
            kept = rpc.KeepLeaseAliveResponse(ttl_ms=ttl_ms, more_ttl_ms=more)
            return pb.BrokerResponse(write=rpc.ControllerResponse(keep_lease_alive=kept))
        return super().__call__(request)


@scenario(with_client, Keeper)
async def test_lease_is_kept_alive_until_it_is_revoked(client: SimClient, broker: Keeper) -> None:
    async with await client.leases.grant(10.0) as lease:
        await asyncio.sleep(100)
        assert lease.is_held
        assert 30 < broker.kept < 50
    assert (lease.is_held, lease.why_lost) == (False, "revoked")
    revoke = broker.writes[-1].revoke_lease
    assert revoke.lease_id == lease.id
    # In another generation of the log the id may be another lease's.
    assert revoke.HasField("generation")
    assert client.token is not None
    assert broker.generations == {revoke.generation} == {client.token.generation}
    before = broker.kept
    await asyncio.sleep(50)
    assert broker.kept == before


@scenario(with_client, Keeper)
async def test_lease_is_lost_locally_before_the_cluster_ends_it(
    client: SimClient, broker: Keeper
) -> None:
    """At three quarters of its time after the last confirmed request was sent."""
    lease = await client.leases.grant(10.0)
    await asyncio.sleep(20)
    broker.silent, begun = True, client.world.loop.time()
    assert not await lease.wait_lost(4.0)
    assert await lease.wait_lost()
    assert 4.9 < client.world.loop.time() - begun <= 7.6
    assert not lease.is_held
    assert "no keep-alive was confirmed for 7.5 s" in lease.why_lost
    # It does not come back.
    broker.silent = False
    await asyncio.sleep(20)
    assert not lease.is_held


@scenario(with_client, Keeper)
async def test_ended_lease_is_lost_with_the_response(client: SimClient, broker: Keeper) -> None:
    lease = await client.leases.grant(10.0)
    broker.gone = True
    assert await lease.wait_lost(3.0)
    assert not lease.is_held
    await lease.revoke()  # no error


@scenario(simulate)
async def test_lease_of_a_closed_client_cannot_be_entered(world: World) -> None:
    await world.broker("a", Keeper())
    async with client_of(world) as client:
        lease = await client.leases.grant(10.0)
    for closed in (client, lease):
        with pytest.raises(errors.ClientClosedError):
            async with closed:
                pass


@scenario(with_client, Keeper)
async def test_lease_time_counts_from_the_sent_request(client: SimClient, broker: Keeper) -> None:
    await client.topics.create("t")  # the session is open
    held: list[pb.BrokerRequest] = []
    broker.server.answer = held.append
    begun = client.world.loop.time()
    granting = asyncio.ensure_future(client.leases.grant(4.0))
    await asyncio.sleep(2.5)
    broker.server.answer = broker
    broker.reply(held[0])
    lease = await granting
    broker.silent = True
    assert lease.is_held
    await lease.wait_lost()
    assert client.world.loop.time() - begun == pytest.approx(3.0, abs=0.01)


@scenario(with_client, Keeper)
async def test_late_confirmation_counts_from_its_request(client: SimClient, broker: Keeper) -> None:
    lease = await client.leases.grant(8.0)
    held: list[pb.BrokerRequest] = []
    broker.server.answer = held.append
    await asyncio.sleep(2.1)
    sent_at = lease._until - 6.0 + 2.0
    broker.server.answer = broker
    await asyncio.sleep(0.4)
    (asked,) = [one for one in held if one.write.HasField("keep_lease_alive")]
    broker.reply(asked)
    broker.silent = True
    await asyncio.sleep(0.1)
    assert lease.remaining_s == pytest.approx(sent_at + 8.0 - client.world.loop.time(), abs=0.01)
    await lease.wait_lost()
    assert client.world.loop.time() == pytest.approx(sent_at + 6.0, abs=0.01)


@scenario(with_client, Keeper)
async def test_confirmation_after_a_lost_lease_is_ignored(
    client: SimClient, broker: Keeper
) -> None:
    """Subscribers may have been told that it is lost."""
    lease = await client.leases.grant(0.4)
    held: list[pb.BrokerRequest] = []
    broker.server.answer = held.append
    await asyncio.sleep(0.11)
    # The program stood still, and its loop sees the answer before the timer.
    lease._timer.cancel()
    until = lease._until
    await asyncio.sleep(0.25)
    lease._until = client.world.loop.time()
    (asked,) = [one for one in held if one.write.HasField("keep_lease_alive")]
    broker.reply(asked)
    await asyncio.sleep(0.05)
    assert not lease.is_held
    assert lease._until <= until + 0.1


def test_failed_condition_on_an_offset_is_final_also_on_a_retry() -> None:
    async def test(world: World) -> None:
        broker = Scripted()
        server = await world.broker("a", broker)
        field, dropped = "alterations[1].expected_offset", 0

        def answer(request: pb.BrokerRequest) -> Any:
            nonlocal dropped
            if not request.write.HasField("alter_key_values"):
                return broker(request)
            if not dropped:
                dropped += 1
                asyncio.get_running_loop().call_soon(server.hang_up)
                return None
            error = common_pb2.Error(error_code=ErrorCode.INVALID_UPDATE_VERSION, field=field)
            return pb.BrokerResponse(write=rpc.ControllerResponse(error=error))

        server.answer = answer
        async with client_of(world) as client:
            changes: list[raftlog.Put | raftlog.Delete] = [
                raftlog.Put("a"),
                raftlog.Put("b", expected=7),
            ]
            with pytest.raises(errors.InvalidUpdateVersionError):
                await client.kv.alter(*changes)
            # The key may be deleted, and the attempt that is on its way finds it absent.
            dropped, changes[1] = 0, raftlog.Put("b", expected=raftlog.ABSENT)
            with pytest.raises(errors.UnknownOutcomeError):
                await client.kv.alter(*changes)
            dropped, field = 0, "alterations[1].expected_create_offset"
            changes[1] = raftlog.Delete("b", expected_create=7)
            with pytest.raises(errors.InvalidUpdateVersionError):
                await client.kv.alter(*changes)
            # Generations grow.
            dropped, field = 0, "alterations[1].expected_generation"
            changes[1] = raftlog.Delete("b", expected_create=raftlog.ABSENT, generation=0)
            with pytest.raises(errors.InvalidUpdateVersionError):
                await client.kv.alter(*changes)

    simulate(test)


GENERATION = 3


class Newer(Keeper):
    """The token of a log that was recovered three times."""

    def __init__(self) -> None:
        super().__init__()
        self.keeping: list[rpc.KeepLeaseAliveRequest] = []

    def __call__(self, request: pb.BrokerRequest) -> pb.BrokerResponse | None:
        if request.HasField("list_key_values"):
            one = pb.KeyValue(key="k", value=b"v", offset=8, create_offset=5, lease_id=4)
            token = common_pb2.MetadataToken(generation=GENERATION, epoch=1, offset=9)
            return pb.BrokerResponse(
                token=token, list_key_values=pb.ListKeyValuesResponse(key_values=[one])
            )
        if request.write.HasField("list_leases"):
            listed = rpc.ListLeasesResponse(
                leases=[rpc.ListedLease(lease_id=4)], generation=GENERATION
            )
            return pb.BrokerResponse(write=rpc.ControllerResponse(list_leases=listed))
        if request.write.HasField("keep_lease_alive"):
            kept = rpc.KeepLeaseAliveRequest()
            kept.CopyFrom(request.write.keep_lease_alive)
            self.keeping.append(kept)
        return super().__call__(request)

    def result(self) -> common_pb2.WriteResult:
        result = super().result()
        result.token.generation = GENERATION
        return result


@scenario(with_client, Newer)
async def test_library_values_carry_their_log_generation(client: SimClient, broker: Newer) -> None:
    """[After a recovery the same number is another record's, or another program's lease.]"""
    found = await client.kv.get("k")
    assert found is not None
    assert (found.offset, found.create_offset, found.lease_id) == (8, 5, 4)
    put = await client.kv.put("k", "v")
    lease = await client.leases.grant(10.0)
    lease.abandon()
    (listed,) = await client.leases.list()
    stored = int(found.offset)
    changes: list[tuple[Any, bool]] = [
        (raftlog.Expect("k", expected=found.offset), True),
        (raftlog.Expect("k", expected_create=found.create_offset), True),
        (raftlog.Delete("k", expected=put.offset), True),
        (raftlog.Put("k", lease_id=lease.id), True),
        (raftlog.Put("k", lease_id=found.lease_id), True),
        (raftlog.Put("k", lease_id=listed.id), True),
        (raftlog.Put("k", expected=stored), False),
        (raftlog.Put("k", expected=stored, generation=GENERATION), True),
        (raftlog.Put("k", expected=raftlog.ABSENT), False),
        (raftlog.Put("k"), False),
    ]
    for change, knows in changes:
        await client.kv.alter(change)
        (sent,) = broker.writes[-1].alter_key_values.alterations
        assert sent.HasField("expected_generation") is knows, change
        assert sent.expected_generation == (GENERATION if knows else 0)
    # Offsets of two generations are together of none.
    await client.kv.alter(raftlog.Put("k", lease_id=lease.id, expected=raftlog.LogOffset(7, 1)))
    (sent,) = broker.writes[-1].alter_key_values.alterations
    assert sent.expected_generation == OF_NO_LOG
    await client.kv.delete("k", expected=stored, generation=2)
    (sent,) = broker.writes[-1].alter_key_values.alterations
    assert sent.expected_generation == 2
    for named in ((listed.id, None), (int(lease.id), 3), (int(lease.id), None)):
        await client.leases.keep_alive(named[0], generation=named[1])
        await client.leases.revoke(named[0], generation=named[1])
        kept, revoked = broker.keeping[-1], broker.writes[-1].revoke_lease
        for request in (kept, revoked):
            unknown = type(named[0]) is int and named[1] is None
            assert request.HasField("generation") is not unknown
            assert request.generation == (0 if unknown else GENERATION)


@scenario(with_client, Keeper)
async def test_lease_of_an_abandoned_log_generation_has_ended(
    client: SimClient, broker: Keeper
) -> None:
    """[``with lease:`` ends with an error after a recovery, though nothing is left to revoke.]"""
    lease = await client.leases.grant(10.0)

    def over(request: pb.BrokerRequest) -> Any:
        return pb.BrokerResponse(write=refuses(ErrorCode.INCONSISTENT_GENERATION)(request.write))

    broker.server.answer = over
    await lease.revoke()
    assert not lease.is_held
    with pytest.raises(errors.InconsistentGenerationError):
        await client.kv.put("k", "v")
    broker.server.answer = broker
    await client.forget()
    await client.kv.put("k", "v")


def test_offset_keeps_its_generation_in_copies() -> None:
    offset = raftlog.LogOffset(17, 2)
    assert offset == 17
    assert str(offset) == "17"
    assert json.dumps({"at": offset}) == '{"at": 17}'
    assert f"{offset:020d}" == "00000000000000000017"
    for same in (copy.copy(offset), copy.deepcopy([offset])[0], pickle.loads(pickle.dumps(offset))):
        assert (same, same.generation) == (17, 2)
    assert type(offset + 1) is int


@pytest.mark.parametrize("exactly_once", [True, False])
@scenario(simulate)
async def test_write_in_another_generation_does_not_hide_the_change_from_reads(
    world: World, *, exactly_once: bool
) -> None:
    """[What was read is gone; a write moves the client on, and the program never hears of it.]"""
    await world.broker("a", Newer())
    async with client_of(world, exactly_once=exactly_once) as client:
        await client.see(raftlog.Token(GENERATION - 1, 1, 500))
        await client.kv.put("k", "v")
        assert client.token == raftlog.Token(GENERATION - 1, 1, 500)
        await client.forget()
        written = await client.kv.put("k", "v")
        assert client.token == written.token


@scenario(with_client, Keeper)
async def test_leases_of_a_client_are_kept_alive_by_one_request(
    client: SimClient, broker: Keeper
) -> None:
    leases = []
    for _ in range(20):
        leases.append(await client.leases.grant(10.0))
        await asyncio.sleep(0.3)
    broker.asked.clear()
    await asyncio.sleep(25)
    assert all(lease.is_held for lease in leases)
    assert 9 <= len(broker.asked) <= 11
    assert all(len(asked) == 20 for asked in broker.asked)
    broker.ended.add(leases[3].id)
    assert await leases[3].wait_lost(3.0)
    assert "has expired" in leases[3].why_lost
    await leases[4].revoke()
    await asyncio.sleep(3)
    assert broker.asked[-1] == [one.id for one in leases if one not in leases[3:5]]
    assert [lease.is_held for lease in leases].count(False) == 2
    other = await client.leases.grant(4.0)
    await asyncio.sleep(10)
    assert other.is_held
    assert [other.id] in broker.asked, "another time to live has another rhythm"
    await client.close()
    assert all(not lease.is_held for lease in leases)


@scenario(with_client, Keeper)
async def test_lease_without_a_response_is_requested_again(
    client: SimClient, broker: Keeper
) -> None:
    """[A controller answers for the first lease alone.]"""
    one, two = await client.leases.grant(10.0), await client.leases.grant(10.0)

    def short(request: pb.BrokerRequest) -> pb.BrokerResponse | None:
        response = broker(request)
        if response is not None and response.write.HasField("keep_lease_alive"):
            response.write.keep_lease_alive.ClearField("more_ttl_ms")
        return response

    broker.server.answer = short
    await asyncio.sleep(8)
    assert one.is_held
    assert not two.is_held
    assert "no keep-alive was confirmed" in two.why_lost


def test_lease_that_ends_twice_keeps_the_slot_of_the_next_lease() -> None:
    async def main() -> None:
        core: Any = SimpleNamespace(lease_keepers={})
        first: Any = SimpleNamespace(id=1)
        second: Any = SimpleNamespace(id=2)
        former = LeaseKeeper.of(core, 10.0, 1)
        former.add(first)
        former.discard(first)
        keeper = LeaseKeeper.of(core, 10.0, 1)
        keeper.add(second)
        former.discard(first)
        assert LeaseKeeper.of(core, 10.0, 1) is keeper is not former
        keeper.discard(second)
        assert core.lease_keepers == {}

    asyncio.run(main())
