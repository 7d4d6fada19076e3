import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from fake_quorum import CLUSTER, HOSTS, Cluster, create, on_cluster, topics
from scenarios import failure, scenario
from structlog.testing import capture_logs

from broker.service.requests import answer_unary
from broker.settings import ClientListener
from raftlog.client.broker_client import BrokerClient
from raftlog.client.requests import controller_request
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import format_hash
from raftlog.metadata.image import Image
from raftlog.transport.api import Conversation, Link
from raftlog.transport.unary import Caller
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.records.v1 import records_pb2 as rec


def names(response: pb.BrokerResponse) -> list[str]:
    return [topic.name for topic in response.metadata.topics]


async def describe(client: Any) -> pb.DescribeBrokerResponse:
    return (await client.read(pb.DescribeBrokerRequest())).describe_broker


@scenario(on_cluster)
async def test_broker_registers_catches_up_and_serves(cluster: Cluster) -> None:
    begun = cluster.loop.time()
    (broker,) = await cluster.active(7)
    assert cluster.loop.time() - begun < 0.5, "nothing waits for a heartbeat interval"
    registration = cluster.quorum.registration(7)
    host, port = broker.address.rsplit(":", 1)
    assert (registration.listeners[0].host, registration.listeners[0].port) == (host, int(port))
    assert registration.incarnation_id == "i-7"
    await cluster.until(lambda: cluster.quorum.lao == cluster.quorum.log.last)
    client = cluster.client(broker)
    about = await describe(client)
    image = cluster.quorum.log.image(cluster.quorum.log.last)
    assert about.state == controller_pb2.ACTIVE
    assert (about.broker_id, about.broker_epoch) == (7, registration.epoch)
    assert (about.applied_offset, about.high_watermark) == (image.offset, cluster.quorum.log.end)
    assert about.state_hash == format_hash(image.state_hash)
    assert (about.controller_id, about.controller_epoch) == (1, cluster.quorum.log.epoch)
    assert not about.self_fenced
    assert broker.report.ready() == (True, f"serving up to offset {image.offset}")


@scenario(on_cluster)
async def test_broker_registers_all_listeners_and_gives_each_client_its_own(
    cluster: Cluster,
) -> None:
    client_listeners = (
        ClientListener("CLIENTS", "b7:0"),
        ClientListener("PROXIED", "b7:0", "proxy", 80),
    )
    broker = await cluster.broker(7, listener_name="INTERNAL", client_listeners=client_listeners)
    await cluster.until(lambda: not broker.why_fenced())
    internal, of_clients, _ = broker.addresses
    told = [
        (one.name, f"{one.host}:{one.port}") for one in cluster.quorum.registration(7).listeners
    ]
    assert told == [("INTERNAL", internal), ("CLIENTS", of_clients), ("PROXIED", "proxy:80")]
    await cluster.until(lambda: cluster.quorum.lao == cluster.quorum.log.last)
    for address, (_, wanted) in zip(broker.addresses, told, strict=True):
        transport = cluster.network.transport_for(f"client-of-{address}".replace(":", "-"))
        client = BrokerClient(transport, [address], rng=random.Random(1))
        answer = await client.read(pb.MetadataRequest())
        assert [f"{one.host}:{one.port}" for one in answer.metadata.brokers] == [wanted]
        cluster_answer = await client.read(pb.DescribeClusterRequest())
        (one,) = cluster_answer.describe_cluster.brokers
        assert f"{one.host}:{one.port}" == wanted
        client.close()


@scenario(on_cluster)
async def test_forwarded_request_carries_the_clients_identity(cluster: Cluster) -> None:
    (one,) = await cluster.active(1)
    identity = common_pb2.ClientIdentity(
        principal="alice", client_id=7, sequence=9, all_below_done=8, generation=2
    )
    request = controller_pb2.ControllerRequest(client=identity, create_topics=create("t"))
    await cluster.client(one).write(request)
    assert cluster.quorum.writes[-1].client == identity


@scenario(on_cluster)
async def test_write_through_one_broker_is_readable_at_another(cluster: Cluster) -> None:
    one, two = await cluster.active(1, 2)
    writer, reader = cluster.client(one), cluster.client(two)
    response = await writer.write(create("t"), acks=common_pb2.ACKS_ACKNOWLEDGED, principal="alice")
    forwarded = cluster.quorum.writes[-1]
    assert (forwarded.client.client_id, forwarded.client.sequence) == (0, 0)
    assert (forwarded.client.principal, forwarded.acks) == ("alice", common_pb2.ACKS_ACKNOWLEDGED)
    reader.see(response.write.token)
    read = await reader.read(topics())
    assert names(read) == ["t"]
    assert read.token.offset >= response.write.token.offset
    assert (read.token.generation, read.token.epoch) == (1, cluster.quorum.log.epoch)


@scenario(on_cluster)
async def test_broker_reports_its_state_and_offsets_to_the_controller(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    quorum = cluster.quorum
    (registered,) = quorum.registrations
    assert (registered.broker_id, registered.incarnation_id) == (1, "i-1")
    assert registered.registration_version == 1
    proof = registered.process
    assert (proof.boot_id, proof.directory_id, proof.lock_device) == ("boot", "dir-1", 1)
    assert proof.lock_inode == 2
    offset = quorum.commit(rec.NoOpRecord())
    await cluster.until(lambda: broker.image.offset == quorum.lao == offset)
    said = len(quorum.heartbeats)
    await cluster.until(lambda: len(quorum.heartbeats) > said + 1)
    beat, fetch, epoch = quorum.heartbeats[-1], quorum.fetches[-1], quorum.registration(1).epoch
    assert (beat.broker_id, beat.broker_epoch) == (1, epoch)
    assert beat.controller_epoch == quorum.log.epoch
    assert (beat.target_state, beat.want_shut_down) == (controller_pb2.ACTIVE, False)
    assert (beat.current_metadata_offset, beat.told_lowest_acknowledged_offset) == (offset, offset)
    assert (fetch.replica_id, fetch.broker_epoch) == (1, epoch)
    assert fetch.controller_epoch == quorum.log.epoch
    assert (fetch.applied_offset, fetch.told_lowest_acknowledged_offset) == (offset, offset)
    links = len(quorum.links["c1"])
    await cluster.client(broker).write(create("t"))
    assert len(quorum.links["c1"]) == links + 1, "writes have a connection of their own"
    broker.stop()
    await cluster.until(lambda: quorum.heartbeats[-1].want_shut_down)
    assert quorum.heartbeats[-1].target_state == controller_pb2.STOPPING


@pytest.mark.parametrize("reply", ["registration", "heartbeat"])
@scenario(on_cluster)
async def test_mismatched_timeouts_are_logged_once(cluster: Cluster, *, reply: str) -> None:
    quorum = cluster.quorum
    quorum.registration_says_ms = 15_000 if reply == "registration" else 9_000
    quorum.heartbeats_say_ms = 15_000 if reply == "heartbeat" else 0
    with capture_logs() as logs:
        (broker,) = await cluster.active(1)
        heartbeats = len(quorum.heartbeats)
        await cluster.until(lambda: len(quorum.heartbeats) > heartbeats + 2)
    loud = [entry for entry in logs if "timeouts do not fit" in entry["event"]]
    assert [entry["log_level"] for entry in loud] == ["error"]
    assert "broker.fencing.timeout.ms (12000) is not above" in loud[0]["problem"]
    if reply == "heartbeat":
        assert broker.report.status()["timeouts"] == loud[0]["problem"]
    quorum.heartbeats_say_ms = 9_000
    await cluster.until(
        lambda: broker.report.status()["timeouts"] == "fit those of the controllers"
    )


@scenario(on_cluster)
async def test_broker_counts_itself_fenced_when_lao_exceeds_applied(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = cluster.client(broker)
    cluster.quorum.hold_lao = True
    cluster.quorum.lao = cluster.quorum.log.last + 1
    await cluster.until(lambda: bool(broker.why_fenced()), within_s=3.0)
    assert "above the offset applied here" in broker.why_fenced()
    assert not broker.report.ready()[0]
    assert (await describe(client)).self_fenced
    assert (await failure(client.read(topics(), timeout_s=0.5))).code is ErrorCode.BROKER_FENCED
    cluster.quorum.commit(rec.NoOpRecord())
    await cluster.until(lambda: not broker.why_fenced())


class Listening:
    """A silent client: the messages that it received, and the time at which its link was closed."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.loop = cluster.loop
        self.opened_at: list[float] = []
        self.known_lao: list[pb.BrokerResponse] = []
        self.closed_at: list[float] = []
        self.dialer = cluster.network.transport_for("listening").dial(
            address, Conversation.BROKER, self
        )

    def opened(self, link: Link) -> None:
        self.opened_at.append(self.loop.time())

    def closed(self, link: Link, reason: str) -> None:
        self.closed_at.append(self.loop.time())

    def received(self, link: Link, messages: Sequence[pb.BrokerResponse]) -> None:
        self.known_lao.extend(messages)


@scenario(on_cluster)
async def test_clients_of_new_levels_are_notified_and_disconnected_later(cluster: Cluster) -> None:
    broker = await cluster.broker(1, request_timeout_ms=700)
    await cluster.until(lambda: not broker.why_fenced())
    await describe(cluster.client(broker))
    client = Listening(cluster, broker.address)
    await cluster.until(lambda: len(client.opened_at) == 1)
    for name in ("lao.version", "broker.heartbeat.version"):
        cluster.quorum.log.append(rec.FeatureLevelRecord(name=name, feature_level=1))
    cluster.quorum.commit(rec.FeatureLevelRecord(name="metadata.version", feature_level=2))
    await cluster.until(lambda: bool(client.known_lao))
    told_at = cluster.loop.time()
    levels = {one.name: one.level for one in client.known_lao[-1].api_versions.finalized_features}
    assert levels["metadata.version"] == 2
    assert client.closed_at == [], "what is under way has its time"
    await cluster.until(lambda: len(client.closed_at) == 1, within_s=2.0)
    assert 0.6 < client.closed_at[0] - told_at < 0.8
    await cluster.until(lambda: len(client.opened_at) == 2, within_s=5.0)
    await asyncio.sleep(2.0)
    assert len(client.closed_at) == 1, "the new connection stays"
    client.dialer.close()


@scenario(on_cluster)
async def test_broker_follows_a_controller_failover(cluster: Cluster) -> None:
    one, two = await cluster.active(1, 2)
    client = cluster.client(one)
    await client.write(create("before"))
    old = cluster.brokers[1].report.describe().lowest_acknowledged_offset
    cluster.network.crash("c1")
    cluster.quorum.parked.clear()
    cluster.quorum.elect(None)
    await asyncio.sleep(0.01)
    write = asyncio.ensure_future(client.write(create("after"), timeout_s=10))
    await asyncio.sleep(0.5)
    assert not write.done()
    assert not one.why_fenced(), "a broker survives an election"
    cluster.quorum.elect("c3")
    begun = cluster.loop.time()
    result = await write
    assert cluster.loop.time() - begun < 1.0
    assert len([w for w in cluster.quorum.writes if w.create_topics.topics[0].name == "after"]) == 1
    await cluster.until(lambda: cluster.quorum.lao >= result.write.token.offset)
    for broker in (one, two):
        about = broker.report.describe()
        assert about.controller_id == 3
        assert about.lowest_acknowledged_offset >= old
        assert not broker.why_fenced()


@scenario(on_cluster)
async def test_forwarded_write_of_unknown_outcome_is_never_resent(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = cluster.client(broker)
    write = asyncio.ensure_future(client.write(create("silent"), timeout_s=5))
    await asyncio.sleep(0.2)
    cluster.network.crash("c1")
    cluster.quorum.parked.clear()
    cluster.quorum.elect("c2")
    error = await failure(write)
    assert (error.code, error.outcome_unknown) == (ErrorCode.NETWORK_EXCEPTION, True)
    await asyncio.sleep(10)
    assert len(cluster.quorum.writes) == 1


@scenario(on_cluster)
async def test_broker_without_controllers_fences_itself_and_recovers(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = cluster.client(broker)
    await client.write(create("t"))
    cluster.isolate("b1")
    await asyncio.sleep(9.5)
    assert names(await client.read(topics())) == ["t"], "not before its own timeout"
    await asyncio.sleep(5)
    error = await failure(client.read(topics(), timeout_s=1))
    assert (error.code, error.outcome_unknown) == (ErrorCode.BROKER_FENCED, False)
    assert (await failure(client.write(create("u"), timeout_s=1))).code is ErrorCode.BROKER_FENCED
    assert (await describe(client)).self_fenced
    assert broker.report.ready()[0] is False
    cluster.network.unblock_all()
    await cluster.until(lambda: not broker.why_fenced(), within_s=10)
    assert names(await client.read(topics())) == ["t"]


@scenario(on_cluster)
async def test_heartbeats_answered_by_a_deposed_controller_are_not_a_contact(
    cluster: Cluster,
) -> None:
    (broker,) = await cluster.active(1)
    known_lao = broker.report.describe().lowest_acknowledged_offset
    cluster.quorum.heartbeat_epoch = cluster.quorum.log.epoch - 1
    cluster.quorum.hold_lao = True
    cluster.quorum.lao = known_lao
    await asyncio.sleep(11)
    assert not broker.why_fenced()
    await asyncio.sleep(4)
    assert "deposed" in broker.why_fenced()
    assert broker.report.describe().self_fenced
    cluster.quorum.heartbeat_epoch = None
    await cluster.until(lambda: not broker.why_fenced(), within_s=3)


@scenario(on_cluster)
async def test_heartbeats_of_another_generation_set_no_epoch_or_lao(cluster: Cluster) -> None:
    """A recovered log has its registration still; it has not fetched any of it yet."""
    (broker,) = await cluster.active(1)
    await cluster.until(lambda: cluster.quorum.known_lao.get(1, -1) == cluster.quorum.log.last)
    before = broker.report.describe()
    cluster.quorum.heartbeat_epoch, cluster.quorum.heartbeat_generation = 1001, 2
    await asyncio.sleep(15)
    now = broker.report.describe()
    assert (now.controller_epoch, now.generation) == (before.controller_epoch, 1)
    assert {one.generation for one in cluster.quorum.heartbeats[-5:]} == {1}
    assert "another log" in broker.why_fenced()
    cluster.quorum.heartbeat_epoch = cluster.quorum.heartbeat_generation = None
    await cluster.until(lambda: not broker.why_fenced(), within_s=3)


@scenario(on_cluster)
async def test_broker_with_a_full_view_stops_fetching_until_lao_rises(cluster: Cluster) -> None:
    broker = await cluster.broker(1, image_max_bytes=5000)
    await cluster.until(lambda: not broker.why_fenced())
    await cluster.until(lambda: cluster.quorum.known_lao.get(1, -1) == cluster.quorum.log.last)
    cluster.quorum.hold_lao = True
    for n in range(20):
        cluster.quorum.commit(
            rec.ConfigRecord(resource_type=4, name="num.io.threads", value=str(n) * 1000)
        )
        await asyncio.sleep(0.05)
    behind = broker.report.describe()
    assert behind.applied_offset < cluster.quorum.log.last
    assert behind.image_bytes_kept < 5000 + 3000
    await asyncio.sleep(10)
    assert broker.report.describe().applied_offset == behind.applied_offset
    assert not broker.why_fenced()
    cluster.quorum.hold_lao = False
    await cluster.until(
        lambda: broker.report.describe().applied_offset == cluster.quorum.log.last, within_s=30
    )


@scenario(on_cluster)
async def test_read_waits_for_its_token_until_its_deadline(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = cluster.client(broker)
    token = common_pb2.MetadataToken(generation=1, epoch=1, offset=cluster.quorum.log.end)
    client.see(token)
    read = asyncio.ensure_future(client.read(topics(), timeout_s=5))
    await asyncio.sleep(1)
    assert not read.done()
    cluster.quorum.log.topic("t", ([1], 1))
    cluster.quorum.release()
    assert names(await read) == ["t"]

    client.see(common_pb2.MetadataToken(generation=1, epoch=1, offset=10_000))
    begun = cluster.loop.time()
    error = await failure(client.read(topics(), timeout_s=2))
    assert (error.code, error.field) == (ErrorCode.REQUEST_TIMED_OUT, "read.at_least.offset")
    assert cluster.loop.time() - begun == pytest.approx(2.0, abs=0.1)


@scenario(on_cluster)
async def test_broker_serves_until_its_controlled_shutdown_completes(cluster: Cluster) -> None:
    one, _ = await cluster.active(1, 2)
    begun = cluster.loop.time()
    one.stop()
    assert one.report.describe().state == controller_pb2.STOPPING
    ended = await one.ended()
    assert (ended.clean, ended.reason) == (True, "controlled shutdown")
    assert cluster.loop.time() - begun < 0.5
    heartbeat = cluster.quorum.heartbeats[-1]
    assert (heartbeat.want_shut_down, heartbeat.target_state) == (True, controller_pb2.STOPPING)


@scenario(on_cluster)
async def test_broker_follows_a_new_generation_and_refuses_old_tokens(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = cluster.client(broker)
    await client.write(create("t"))
    await client.read(topics())
    waiting = cluster.client(broker)
    waiting.see(common_pb2.MetadataToken(generation=1, epoch=1, offset=10_000))
    parked = asyncio.ensure_future(waiting.read(topics(), timeout_s=20))
    await asyncio.sleep(0.1)
    cluster.quorum.restore()
    assert (await failure(parked)).code is ErrorCode.INCONSISTENT_GENERATION
    await cluster.until(lambda: not broker.why_fenced())
    assert cluster.quorum.registration(1).incarnation_id == "i-1"
    assert (await failure(client.read(topics()))).code is ErrorCode.INCONSISTENT_GENERATION
    client.forget()
    response = await client.read(topics())
    assert names(response) == []
    assert response.token.generation == 2


class Images:
    """A stand-in for the data plane that records the images it receives."""

    has_unreported = False

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.recovered = False

    def image_moved(self, image: Image, changes: object) -> None:
        self.offsets.append(image.offset)

    def close(self) -> None:
        pass


@scenario(on_cluster)
async def test_replicas_drop_the_old_image_before_the_new_registration(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    images: Any = Images()
    parts = (
        broker._follower, broker._registration_client, broker.requests, broker.watches
    )  # fmt: skip
    broker._notifications.connect(*parts, images)
    cluster.quorum.commit(rec.NoOpRecord())
    last = cluster.quorum.log.last
    await cluster.until(lambda: images.offsets[-1:] == [last])
    cluster.quorum.restore()
    await cluster.until(
        lambda: broker.report.describe().generation == 2 and not broker.why_fenced()
    )
    assert images.offsets[images.offsets.index(last) + 1] == -1


@scenario(on_cluster)
async def test_fatal_log_error_stops_the_broker_and_is_logged(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    assert (broker.running, broker.fatal) == (True, None)
    cluster.quorum.commit(rec.UnregisterBrokerRecord(broker_id=99))
    with pytest.raises(Exception, match="99") as raised:
        await broker.ended()
    assert (broker.running, broker.fatal) == (False, raised.value)


@scenario(on_cluster)
async def test_invalid_requests_name_the_field(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    write = controller_request(create("t"))
    write.timeout_ms = -1
    for request, code, field in [
        (pb.BrokerRequest(), ErrorCode.INVALID_REQUEST, "body"),
        (
            pb.BrokerRequest(cluster_id="other", metadata=topics()),
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            "cluster_id",
        ),
        (pb.BrokerRequest(write=write), ErrorCode.INVALID_REQUEST, "write.timeout_ms"),
        (
            pb.BrokerRequest(metadata=topics(), read=pb.ReadOptions(timeout_ms=-5)),
            ErrorCode.INVALID_REQUEST,
            "read.timeout_ms",
        ),
    ]:
        response = await answer_unary(broker.requests, request, Caller("somebody:1"))
        assert (response.error.error_code, response.error.field) == (code, field)
    assert cluster.quorum.writes == []


@scenario(on_cluster)
async def test_unary_calls_are_answered_like_those_of_a_stream(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    request = controller_request(create("t"), cluster_id=CLUSTER)
    asked = pb.BrokerRequest(write=request)
    response = await answer_unary(broker.requests, asked, Caller("somebody:1"))
    assert response.write.write.token.offset == cluster.quorum.log.last
    assert asked == pb.BrokerRequest(write=request), "a message is not changed after it was sent"
    cluster.quorum.leader = None
    request.timeout_ms = 300
    failed = await answer_unary(
        broker.requests, pb.BrokerRequest(write=request), Caller("somebody:1")
    )
    assert failed.error.error_code == ErrorCode.NOT_CONTROLLER


@scenario(on_cluster)
async def test_close_answers_waiting_requests(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    token = common_pb2.MetadataToken(generation=1, epoch=1, offset=10_000)
    waiting = asyncio.ensure_future(
        answer_unary(
            broker.requests,
            pb.BrokerRequest(metadata=topics(), read=pb.ReadOptions(at_least=token)),
            Caller("a:1"),
        )
    )
    await asyncio.sleep(0.1)
    await broker.close()
    await broker.close()
    assert (await waiting).error.error_code == ErrorCode.BROKER_NOT_AVAILABLE
    late = await answer_unary(
        broker.requests, pb.BrokerRequest(metadata=topics()), Caller("somebody:1")
    )
    assert late.error.error_code == ErrorCode.BROKER_NOT_AVAILABLE


@scenario(on_cluster)
async def test_serving_creates_no_task_per_request(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = cluster.client(broker)
    await client.read(topics())
    made = cluster.loop.tasks_made
    reads = [client.send(pb.BrokerRequest(metadata=topics()), 5.0) for _ in range(100)]
    writes = [
        client.send(pb.BrokerRequest(write=controller_request(create(f"t{n}"))), 5.0)
        for n in range(100)
    ]
    for future in (*reads, *writes):
        assert not (await future).HasField("error")
    assert cluster.loop.tasks_made == made


@scenario(on_cluster)
async def test_broker_finds_the_quorum_when_its_only_address_is_down(cluster: Cluster) -> None:
    one = await cluster.broker(1, controllers=("c1:1",))
    voters = [
        rec.VoterEntry(voter_id=number, voter_directory_id=f"d{number}", endpoint=f"{host}:1")
        for number, host in enumerate(HOSTS, 1)
    ]
    cluster.quorum.commit(rec.VotersRecord(voters=voters))
    await cluster.until(lambda: not one.why_fenced())
    cluster.network.crash("c1")
    cluster.quorum.parked.clear()
    cluster.quorum.elect("c3")
    offset = cluster.quorum.commit(rec.NoOpRecord())
    await cluster.until(lambda: one.view.applied >= offset)
    heard = len(cluster.quorum.heartbeats)
    await cluster.until(lambda: len(cluster.quorum.heartbeats) > heard)
    await cluster.client(one).write(create("t"), timeout_s=5)
