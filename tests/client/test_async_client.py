"""The library's client: results, errors, tokens and deadlines."""

import asyncio
from collections.abc import Awaitable
from operator import attrgetter
from typing import Any

import pytest
from client_world import World, silent, simulate
from scenarios import scenario
from scripted_broker import Scripted, SimClient, client_of, with_client

import raftlog
from raftlog import errors
from raftlog.errors import ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc


async def failure(awaitable: Awaitable[object]) -> Any:
    with pytest.raises(errors.RaftlogError) as error:
        await awaitable
    return error.value


def refused(*errors_: tuple[str, ErrorCode]) -> dict[str, Any]:
    results = [
        rpc.CreatableTopicResult(
            name=name,
            error=common_pb2.Error(
                error_code=code, error_message=f"no {name}", field=f"topics[{i}]"
            ),
        )
        for i, (name, code) in enumerate(errors_)
    ]
    return {"create_topics": rpc.CreateTopicsResponse(topics=results)}


EXISTS, NONE = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE


@scenario(with_client)
async def test_several_refused_items_raise_one_error_that_carries_each(
    client: SimClient, broker: Scripted
) -> None:
    broker.body = refused(("t", EXISTS), ("u", NONE), ("v", ErrorCode.INVALID_PARTITIONS))
    error = await failure(client.topics.create_all([raftlog.NewTopic("t")]))
    assert type(error) is errors.ItemsRefusedError
    assert [type(one) for one in error.errors] == [
        errors.TopicAlreadyExistsError,
        errors.InvalidPartitionsError,
    ]
    assert error.write.offset == broker.offset
    assert "no t (field topics[0])" in str(error)
    assert "no v (field topics[2])" in str(error)


@scenario(with_client)
async def test_write_that_is_not_as_visible_as_requested_is_reported_and_kept(
    client: SimClient, broker: Scripted
) -> None:
    broker.reached = common_pb2.ACKS_COMMITTED
    assert (await client.topics.create("t")).reached is raftlog.Acks.COMMITTED
    error = await failure(client.topics.create("t", acks="visible"))
    assert type(error) is errors.AcksNotReachedError
    assert not isinstance(error, errors.ApiError)
    assert (error.code, error.outcome_unknown) == (ErrorCode.REQUEST_TIMED_OUT, False)
    assert (error.retriable, error.field, error.message) == (False, "", str(error))
    assert error.result == raftlog.WriteResult(
        raftlog.Token(0, 1, broker.offset), raftlog.Acks.COMMITTED, (3,)
    )
    assert "is committed at offset" in str(error)
    assert "brokers 3" in str(error)


@pytest.mark.parametrize("call", ["produce", "kv.put", "kv.get", "quorum.transfer"])
async def test_call_raises_client_closed_when_its_client_is_closed(call: str) -> None:
    client = raftlog.AsyncClient("127.0.0.1:1", timeout_s=60)
    arguments = {"quorum.transfer": (1,), "kv.get": ("k",)}.get(call, ("k", "v"))
    waiting = asyncio.ensure_future(attrgetter(call)(client)(*arguments))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await client.close()
    with pytest.raises(errors.ClientClosedError) as failed:
        await waiting
    assert not failed.value.retriable
    assert not failed.value.outcome_unknown


@scenario(with_client, principal="User:me")
async def test_quorum_changes_carry_the_principal_of_the_client(
    client: SimClient, broker: Scripted
) -> None:
    await client.quorum.remove_voter(4, "d" * 22)
    await client.quorum.transfer()
    assert [one.client.principal for one in broker.writes] == ["User:me"] * 2


@scenario(with_client, principal="User:me", acks="acknowledged")
async def test_writes_are_numbered_and_reads_are_not(client: SimClient, broker: Scripted) -> None:
    await client.topics.create("t")
    await client.topics.create("u", validate_only=True)
    await client.topics.delete("t", acks="committed")
    numbers = [(one.client.client_id, one.client.sequence) for one in broker.writes]
    assert numbers == [(7, 1), (0, 0), (7, 2)]
    assert broker.writes[0].client.principal == "User:me"
    assert [one.acks for one in broker.writes] == [
        common_pb2.ACKS_ACKNOWLEDGED,
        common_pb2.ACKS_COMMITTED,
        common_pb2.ACKS_COMMITTED,
    ]


@pytest.mark.parametrize(
    "code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
@scenario(simulate)
async def test_unsupported_numbers_are_omitted(world: World, *, code: ErrorCode) -> None:
    broker = Scripted()
    broker.opening = code
    await world.broker("a", broker)
    async with client_of(world) as client:
        assert (await client.topics.create("t")).offset == broker.offset
        assert broker.writes[0].client.client_id == 0
    async with client_of(world, exactly_once=True) as client:
        error = await failure(client.topics.create("t"))
        assert error.code is code
        assert type(error) is type(errors.ApiError(code, ""))
        assert len(broker.writes) == 1


@scenario(with_client, client_id="x" * 500)
async def test_other_session_failures_are_raised(client: SimClient, broker: Scripted) -> None:
    broker.opening = ErrorCode.INVALID_REQUEST
    assert type(await failure(client.topics.create("t"))) is errors.InvalidRequestError
    assert broker.writes == []


@scenario(with_client, timeout_s=5)
async def test_reads_are_retried_until_their_deadline_and_never_unknown(
    client: SimClient, broker: Scripted
) -> None:
    broker.refusals = [ErrorCode.BROKER_FENCED, ErrorCode.BROKER_NOT_AVAILABLE]
    assert (len(await client.topics.list()), len(broker.reads)) == (1, 3)
    broker.refusals = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert isinstance(await failure(client.topics.list()), errors.AuthorizationError)
    broker.server.answer = silent
    begun = client.world.loop.time()
    assert type(await failure(client.topics.list(timeout_s=2))) is errors.RequestTimedOutError
    assert 2 <= client.world.loop.time() - begun <= 2.6


@scenario(with_client, read="latest")
async def test_client_reads_its_own_writes_and_tokens(client: SimClient, broker: Scripted) -> None:
    assert client.token is None
    written = await client.topics.create("t")
    assert client.token == written.token
    await client.topics.list()
    assert broker.reads[-1].read.at_least.offset == written.offset
    assert broker.reads[-1].read.mode == pb.LATEST
    await client.see(raftlog.Token.parse("0-1-99"))
    await client.topics.describe("t", read="strict")
    assert (broker.reads[-1].read.at_least.offset, broker.reads[-1].read.mode) == (99, pb.STRICT)
    await client.forget()
    assert client.token is None


@scenario(simulate)
async def test_values_show_what_is_unknown(world: World) -> None:
    await world.broker("a", Scripted())
    async with client_of(world) as client:
        assert await client.topics.list() == [
            raftlog.Topic("t", "01" * 16, (raftlog.Partition(0, None, 0, (4, 5), ()),))
        ]


@pytest.mark.parametrize(("late_s", "known"), [(0.3, True), (0.7, False)])
@scenario(with_client)
async def test_outcome_that_arrives_shortly_after_the_deadline_is_reported(
    client: SimClient, broker: Scripted, *, late_s: float, known: bool
) -> None:
    await client.topics.create("opens the session")
    held: list[pb.BrokerRequest] = []
    broker.server.answer = held.append
    call = asyncio.ensure_future(client.topics.create("t", timeout_s=1.0))
    await asyncio.sleep(1.0 + late_s)
    broker.server.answer = broker
    for request in held:
        broker.reply(request)
    if known:
        assert (await call).offset > 0
    else:
        assert isinstance(await failure(call), errors.UnknownOutcomeError)


def test_client_is_bound_to_one_event_loop() -> None:
    client = raftlog.AsyncClient("127.0.0.1:1")

    async def begin() -> None:
        await client.see(raftlog.Token(0, 1, 2))

    asyncio.run(begin())
    with pytest.raises(errors.RaftlogError, match="another event loop"):
        asyncio.run(begin())


@pytest.mark.parametrize(
    ("bootstrap", "options", "said"),
    [
        ("", {}, "or set RAFTLOG_BOOTSTRAP_SERVER; `raftlog dev` runs a cluster"),
        ("a", {}, "bootstrap: 'a' is not host:port (for instance 127.0.0.1:9092)"),
        ("nowhere", {}, "bootstrap: 'nowhere' is not host:port"),
        ("a:1,:1", {}, "bootstrap: ':1' has no host (for instance 127.0.0.1:9092)"),
        ("a:1", {"acks": "all"}, "acks='all': must be one of committed, acknowledged, visible"),
        ("a:1", {"read": "dirty"}, "read='dirty': must be one of repeatable, latest, strict"),
        ("a:1", {"timeout_s": 0}, "timeout_s=0"),
        ("a:1", {"token": "x"}, "tls_ca_file is missing"),
        ("a:1", {"token": "x", "token_file": "y"}, "not both"),
        (
            "a:1",
            {"tls_ca_file": "ca.pem", "token_file": "nowhere"},
            "token_file: no token: No such file or directory: nowhere",
        ),
        ("a:1", {"tls_ca_file": "ca", "tls_key_file": "key"}, "give both of tls_certificate_file"),
        ("a:1", {"tls_ca_file": "/nowhere/ca.pem"}, "tls.ca.file: No such file"),
    ],
)
def test_client_constructor_refuses_invalid_arguments(
    bootstrap: str, options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAFTLOG_BOOTSTRAP_SERVER", raising=False)
    with pytest.raises(errors.ConfigError) as error:
        raftlog.AsyncClient(bootstrap, **options)
    assert said in str(error.value)


def test_unknown_option_is_reported() -> None:
    with pytest.raises(TypeError, match="unknown option api_key; the options are controllers"):
        raftlog.AsyncClient("a:1", api_key="x")  # type: ignore[call-arg]


def test_token_is_validated_on_input() -> None:
    wrong = ["", "1", "1-2", "a-b-c", "1-2-3-4-5", "1-2--3", "-1-2-3", "1-2-3\n", "1.2.3"]
    for text in [*wrong, "1" * 30 + "-2-3"]:
        with pytest.raises(ValueError, match="is not a token"):
            raftlog.Token.parse(text)


def test_token_survives_serialization_as_text() -> None:
    for token in raftlog.Token(2, 30, -1), raftlog.Token(0, 1, 7), raftlog.Token(0, 1, 7, 2):
        assert raftlog.Token.parse(str(token)) == token
    assert str(raftlog.Token(0, 3, 1042, 1)) == "0-3-1042-1"


THROTTLED = [ErrorCode.THROTTLING_QUOTA_EXCEEDED]


@scenario(with_client, timeout_s=20)
async def test_read_waits_for_the_throttle_time_of_a_broker(
    client: SimClient, broker: Scripted
) -> None:
    broker.refusals, broker.throttle_time_ms = THROTTLED * 2, 3_000
    begun = client.world.loop.time()
    await client.topics.describe("t")
    assert len(broker.reads) == 3
    assert 6.0 <= client.world.loop.time() - begun < 6.5


@scenario(with_client, timeout_s=8)
async def test_read_ends_at_its_deadline_without_another_attempt(
    client: SimClient, broker: Scripted
) -> None:
    broker.refusals, broker.throttle_time_ms = THROTTLED * 9, 3_000
    begun = client.world.loop.time()
    error = await failure(client.topics.describe("t"))
    assert (error.code, len(broker.reads)) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 3)
    assert 6.0 <= client.world.loop.time() - begun < 6.5


@scenario(with_client, timeout_s=60)
async def test_close_ends_a_read_that_waits_for_its_next_attempt(
    client: SimClient, broker: Scripted
) -> None:
    broker.refusals, broker.throttle_time_ms = THROTTLED, 20_000
    reading = asyncio.create_task(client.topics.describe("t"))
    await asyncio.sleep(1)
    begun = client.world.loop.time()
    await client.close()
    assert isinstance(await failure(reading), errors.ClientClosedError)
    assert client.world.loop.time() - begun < 1.0
    assert len(broker.reads) == 1
