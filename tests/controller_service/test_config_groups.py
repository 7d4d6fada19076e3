"""Config writes that are decided as a group, each with its own outcome."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from quorum_world import Node, World, alter
from scenarios import simulated
from test_sessions_in_service import FakeBroker, unfenced_broker

from controller.disk.space import FINE, Verdict
from controller.service.intake import Intake
from raftlog import batch, tracing
from raftlog.client.controller_client import ControllerClient
from raftlog.config_writes.writes import ConfigWrite, ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import ANONYMOUS_PRINCIPAL
from raftlog.metadata.records import RecordType
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

METRICS, TOPIC, BROKER = 16, 2, 4


def write(name: str, value: str = "v", **fields: Any) -> ConfigWrite:
    return ConfigWrite([(METRICS, name, "match", value)], **fields)


async def active() -> tuple[World, Node]:
    world = World()
    node = await world.active()
    await asyncio.gather(*(world.client.send(write("warm"), 5.0) for _ in range(2)))
    return world, node


async def together(client: ControllerClient, *writes: Any) -> list[pb.ControllerResponse]:
    return await asyncio.gather(*(client.send(one, 5.0) for one in writes))


@simulated
async def test_concurrent_writes_get_one_batch_and_one_response_each() -> None:
    world, node = await active()
    end = node.service.replica.log_end_offset
    answers = await together(world.client, *(write(f"c{n}", str(n)) for n in range(10)))
    assert [one.write.token.offset for one in answers] == list(range(end, end + 10))
    assert all(one.write.token.epoch == one.controller_epoch == 1 for one in answers)
    assert all(one.WhichOneof("body") == "incremental_alter_configs" for one in answers)
    chunk = node.service.replica.read(end, end + 10, 1 << 20)
    assert [header.record_count for header in batch.headers(chunk)] == [10]
    await world.until(lambda: node.service.image.offset >= end + 9)
    for n in range(10):
        assert node.service.image.configs[METRICS, f"c{n}"] == {"match": str(n)}
    end = node.service.replica.log_end_offset
    many = ConfigWrite([(METRICS, f"m{n}", "match", "v") for n in range(3)])
    answers = await together(world.client, write("a"), many, write("b"), write("c"))
    assert [one.write.token.offset - end for one in answers] == [0, 3, 4, 5]
    chunk = node.service.replica.read(end, end + 6, 1 << 20)
    counts = [header.record_count for header in batch.headers(chunk)]
    assert counts == [1, 3, 2], "a write of several records has its own batch"


NAMED_TWICE = ConfigWrite([(METRICS, "t", "match", "1"), (METRICS, "t", "match", "2")])
WRONG = (
    (ConfigWrite([(METRICS, "x", "nonsense", "v")]), ErrorCode.INVALID_CONFIG),
    (ConfigWrite([(TOPIC, "nowhere", "retention.ms", "5")]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (ConfigWrite([(BROKER, "99", "x", "5")]), ErrorCode.INVALID_REQUEST),
    (ConfigWrite([(BROKER, "", "log.retention.ms", "soon")]), ErrorCode.INVALID_CONFIG),
    (write("x", "a\nb"), ErrorCode.INVALID_CONFIG),
    (write("x" * 250), ErrorCode.INVALID_REQUEST),
    (write(""), ErrorCode.INVALID_REQUEST),
    (ConfigWrite([(3, "x", "match", "v")]), ErrorCode.INVALID_REQUEST),
    (NAMED_TWICE, ErrorCode.INVALID_REQUEST),
)


@simulated
async def test_error_of_one_config_write_leaves_the_group_alone() -> None:
    world, node = await active()
    for wrong, code in WRONG:
        end = node.service.replica.log_end_offset
        before, refused, after = await together(world.client, write("a"), wrong, write("b"))
        assert before.write.token.offset == end
        # The first of two that are named alike succeeds.
        assert after.write.token.offset == end + 1 + refused.HasField("write")
        assert refused.HasField("write") == (wrong is NAMED_TWICE)
        results = refused.incremental_alter_configs.results
        assert code in {one.error.error_code for one in results}, wrong
        assert not refused.HasField("error")
    assert (METRICS, "x") not in node.service.image.configs


@simulated
async def test_write_of_another_cluster_or_an_oversized_principal_is_refused_alone() -> None:
    world, node = await active()
    end = node.service.replica.log_end_offset
    fields = ({"cluster_id": "another"}, {"principal": "x" * 5_000})
    writes = (
        write("a", principal="User:alice", cluster_id="c"),
        *(write("b", **f) for f in fields),
    )
    alice, there, nobody = await together(world.client, *writes)
    assert there.error.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert nobody.error.error_code == ErrorCode.INVALID_REQUEST
    assert nobody.error.field == "client.principal"
    assert alice.write.token.offset == end
    chunk = node.service.replica.read(end, end + 1, 1 << 20)
    assert [header.principal for header in batch.headers(chunk)] == ["User:alice"]


@simulated
async def test_only_the_controllers_own_batches_have_no_principal() -> None:
    """[Writes of clients without a principal were shown as made by the controller.]"""
    world, node, _ = await unfenced_broker()
    await together(world.client, write("a"), write("b"))
    two = ConfigWrite([(METRICS, "c", "match", "1"), (METRICS, "d", "match", "2")])
    await world.client.send(two, 5.0)
    hostname = pb.HostnameAlteration(hostname="h", broker_id=7)
    await world.client.call(pb.AlterHostnamesRequest(alterations=[hostname]))
    chunk = node.service.replica.read(0, node.service.replica.log_end_offset, 1 << 20)
    by: dict[str, set[str]] = defaultdict(set)
    for header in batch.headers(chunk):
        by[header.principal] |= {RecordType(one.type).name for one in batch.records(chunk, header)}
    assert by.keys() == {"", ANONYMOUS_PRINCIPAL}
    assert by[ANONYMOUS_PRINCIPAL] == {"CONFIG", "HOSTNAME"}
    assert {"LEADER_CHANGE", "REGISTER_BROKER", "BROKER_REGISTRATION_CHANGE"} <= by[""]


@simulated
async def test_group_is_refused_whole_when_the_disk_is_full() -> None:
    world, node = await active()
    node.service.node.space.verdict = Verdict(refusal="the disk is full")
    try:
        answers = await together(world.client, write("a"), write("b"))
    finally:
        node.service.node.space.verdict = FINE
    assert [one.error.error_code for one in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


@pytest.mark.parametrize("acks", [common_pb2.ACKS_ACKNOWLEDGED, common_pb2.ACKS_VISIBLE])
@simulated
async def test_write_group_waits_for_the_requested_level(acks: common_pb2.Acks) -> None:
    world, node, broker = await unfenced_broker()
    waiting = [world.client.send(write(f"c{n}", acks=acks), 5.0) for n in range(4)]
    await asyncio.sleep(0.3)
    assert not any(one.done() for one in waiting)
    answers = await acknowledged(broker, node, waiting)
    assert [one.write.reached for one in answers] == [acks] * 4
    offsets = [one.write.token.offset for one in answers]
    assert offsets == list(range(offsets[0], offsets[0] + 4))


async def acknowledged(broker: FakeBroker, node: Node, waiting: list[Any]) -> list[Any]:
    while not all(one.done() for one in waiting):
        await broker.heartbeat(node)
        await asyncio.sleep(0.05)
    return [one.result() for one in waiting]


@simulated
async def test_write_group_past_its_deadline_is_committed_and_reports_each_level() -> None:
    world, _, _ = await unfenced_broker()
    asked = common_pb2.ACKS_VISIBLE
    answers = await asyncio.gather(
        *(world.client.send(write(f"c{n}", acks=asked), 0.5) for n in range(3))
    )
    assert [one.write.reached for one in answers] == [common_pb2.ACKS_COMMITTED] * 3
    assert all(list(one.write.waiting_for_brokers) == [7] for one in answers)
    offsets = [one.write.token.offset for one in answers]
    assert offsets == [offsets[0], offsets[0] + 1, offsets[0] + 2]


@simulated
async def test_deposed_leader_reports_each_outcome_as_unknown() -> None:
    world, node = await active()
    world.cut_off(node)
    writing = [world.client.call(alter(f"c{n}"), timeout_s=30.0) for n in range(3)]
    errors = await asyncio.gather(*writing, return_exceptions=True)
    for error in errors:
        assert isinstance(error, ApiError)
        assert (error.code, error.outcome_unknown) == (ErrorCode.NOT_CONTROLLER, True)


def test_group_counts_as_all_its_requests() -> None:
    intake = Intake(1_000)
    change = (METRICS, "a", "match", "v")
    group = ConfigWrites(
        [1, 2, 3], [change] * 3, [1] * 3, 0, common_pb2.ACKS_COMMITTED, "", "", "", 90
    )
    intake.add(None, group, 0.0, kind="incremental_alter_configs")
    assert (len(intake), intake.waiting_bytes) == (3, 90)
    waiting = intake.take()
    assert waiting is not None
    assert waiting.count == 3
    assert (len(intake), intake.waiting_bytes) == (0, 0)
    intake.add(None, group, 0.0, kind="incremental_alter_configs")
    assert [one.count for one in intake.expired(2.0)] == [3]
    assert (len(intake), intake.waiting_bytes) == (0, 0)


@simulated
async def test_config_writes_group_with_a_single_write_can_be_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, node = await active()

    class Traced:
        def serving(self, _what: str, request: Any, _age_s: float) -> None:
            assert isinstance(request, pb.ControllerRequest), "a group has no parent of its own"

    answers: list[Any] = []
    link: Any = SimpleNamespace(peer="a:1", listener="", send=answers.append)
    group = ConfigWrites(
        [1], [(METRICS, "one", "match", "v")], [1], 0, common_pb2.ACKS_COMMITTED, "", "", "", 9
    )
    with monkeypatch.context() as patched:
        patched.setattr(tracing, "active", Traced())
        node.service.reception.received(link, [group])
        await asyncio.sleep(0.5)
    assert not node.failures
    assert answers[0].correlation_ids == [1]
