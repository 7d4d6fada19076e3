"""Strict reads at a broker: leases and heartbeats."""

import asyncio

import pytest
from fake_quorum import Cluster, create, on_cluster, topics
from scenarios import failure, scenario

from broker.metadata.read_gate import RETRY_S, WANTED_FOR_S, ReadLease
from broker.service.service import BrokerService
from raftlog.client.broker_client import BrokerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as rec


async def raised(cluster: Cluster, *broker_ids: int) -> list[BrokerService]:
    brokers = await cluster.active(*broker_ids)
    for name in ("lao.version", "broker.heartbeat.version"):
        cluster.quorum.commit(rec.FeatureLevelRecord(name=name, feature_level=1))
    cluster.quorum.commit(rec.FeatureLevelRecord(name="metadata.version", feature_level=2))
    await cluster.until(lambda: cluster.quorum.lao == cluster.quorum.log.last)
    return brokers


async def read(client: BrokerClient, timeout_s: float = 5.0) -> pb.BrokerResponse:
    return await client.read(topics(), mode=pb.STRICT, timeout_s=timeout_s)


async def refused(client: BrokerClient, timeout_s: float = 1.0) -> ApiError:
    error = await failure(read(client, timeout_s))
    return error


@scenario(on_cluster)
async def test_first_strict_read_gets_a_lease_that_serves_the_next(cluster: Cluster) -> None:
    (broker,) = await raised(cluster, 1)
    client = cluster.client(broker)
    await asyncio.sleep(1.0)
    assert not any(beat.want_read_lease for beat in cluster.quorum.heartbeats), (
        "there are no strict readers"
    )
    begun = cluster.loop.time()
    await client.write(create("t"))
    response = await read(client)
    assert [topic.name for topic in response.metadata.topics] == ["t"]
    assert cluster.loop.time() - begun < 0.1, "not after a heartbeat's interval"
    beats = len(cluster.quorum.heartbeats)
    for _ in range(50):
        await read(client)
    assert len(cluster.quorum.heartbeats) == beats
    assert 5_000 < broker.report.describe().read_lease_ms <= 6_000


@scenario(on_cluster)
async def test_heartbeats_follow_the_lease_while_there_are_readers(cluster: Cluster) -> None:
    (broker,) = await raised(cluster, 1)
    cluster.quorum.read_lease_ms = 1_500
    client = cluster.client(broker)

    async def beats_in(seconds: float, *, reading: bool) -> int:
        before, end = len(cluster.quorum.heartbeats), cluster.loop.time() + seconds
        while cluster.loop.time() < end:
            if reading:
                await read(client)
                assert broker.report.describe().read_lease_ms > 0, "never without one"
            await asyncio.sleep(0.1)
        return len(cluster.quorum.heartbeats) - before

    assert 20 <= await beats_in(10.0, reading=True) <= 25
    await asyncio.sleep(WANTED_FOR_S)
    assert await beats_in(10.0, reading=False) <= 6
    assert not cluster.quorum.heartbeats[-1].want_read_lease
    assert broker.report.describe().read_lease_ms == 0


@scenario(on_cluster)
async def test_strict_read_without_lease_reports_why_at_its_deadline(cluster: Cluster) -> None:
    (broker,) = await raised(cluster, 1)
    cluster.quorum.read_lease_ms = 0
    client = cluster.client(broker)
    begun = cluster.loop.time()
    error = await refused(client, 2.0)
    assert (error.code, error.outcome_unknown) == (ErrorCode.NO_READ_LEASE, False)
    assert "not now" in error.message
    assert cluster.loop.time() - begun >= 1.9
    assert len(cluster.quorum.heartbeats) < 30, "asked again now and then, not all the time"
    waiting = asyncio.ensure_future(read(client))
    await asyncio.sleep(0.5)
    cluster.quorum.read_lease_ms = 6_000
    await waiting


@scenario(on_cluster)
async def test_lease_starts_when_the_heartbeat_was_sent_despite_delay(cluster: Cluster) -> None:
    (broker,) = await raised(cluster, 1)
    cluster.quorum.heartbeat_delay_s = 1.0
    await read(cluster.client(broker))
    assert 4_500 < broker.report.describe().read_lease_ms <= 5_000


@scenario(on_cluster)
async def test_stopping_broker_refuses_strict_reads(cluster: Cluster) -> None:
    (broker,) = await raised(cluster, 1)
    client = cluster.client(broker)
    await read(client)
    broker.stop()
    assert broker.report.describe().read_lease_ms == 0
    assert (await refused(client)).code in (ErrorCode.NO_READ_LEASE, ErrorCode.BROKER_NOT_AVAILABLE)


# --- Whether a broker may read strictly ----------------------------------------------------------


class Broker:
    def __init__(self) -> None:
        self.epoch = 5
        self.hastened = 0
        self.lease = ReadLease(lambda: self.epoch, self._hasten)

    def _hasten(self) -> None:
        self.hastened += 1


def test_lease_starts_when_the_heartbeat_was_sent() -> None:
    lease = Broker().lease
    assert not lease.held(100.0)
    lease.answered(100.0, 6000, "")
    assert lease.held(105.9)
    assert not lease.held(106.0)
    assert (lease.remaining_ms(105.0), lease.remaining_ms(106.0)) == (1000, 0)


def test_response_without_a_lease_keeps_it_and_an_older_response_does_not_shorten_it() -> None:
    lease = Broker().lease
    lease.answered(100.0, 6000, "")
    lease.answered(101.0, 0, "about to be fenced")
    assert lease.held(105.9)
    assert lease.refusal() == "about to be fenced"
    lease.answered(99.0, 1000, "")
    assert lease.held(105.9)
    assert lease.refusal() == ""


def test_lease_is_bound_to_one_registration() -> None:
    broker = Broker()
    broker.lease.answered(100.0, 6000, "")
    broker.epoch = 9
    assert not broker.lease.held(101.0)
    broker.lease.answered(101.0, 1000, "")
    assert broker.lease.held(101.9)
    assert not broker.lease.held(102.1), "what the former registration had does not count"
    broker.epoch = -1
    assert not broker.lease.held(101.5)
    broker.lease.answered(101.5, 1000, "")
    assert not broker.lease.held(101.6), "not registered: nobody's lease"


def test_stopping_process_never_gets_a_lease_again() -> None:
    lease = Broker().lease
    lease.reader(100.0)
    lease.answered(100.0, 6000, "")
    lease.renounce()
    assert not lease.held(100.1)
    assert not lease.wanted(100.1)
    lease.answered(100.1, 6000, "")
    assert not lease.held(100.2)
    with pytest.raises(ApiError) as error:
        lease.reader(100.2)
    assert error.value.code is ErrorCode.NO_READ_LEASE


def test_strict_read_requests_a_lease_and_the_first_triggers_a_heartbeat() -> None:
    broker = Broker()
    lease = broker.lease
    assert not lease.wanted(100.0)
    assert lease.next_heartbeat_s(100.0, 0) == float("inf")
    lease.reader(100.0)
    lease.reader(100.1)
    assert broker.hastened == 1, "not once for each reader"
    assert lease.wanted(100.1)
    assert lease.next_heartbeat_s(100.1, 0) == RETRY_S
    lease.answered(100.0, 6000, "")
    assert lease.next_heartbeat_s(100.1, 6000) == 2.0
    lease.reader(103.0)
    assert broker.hastened == 1
    lease.reader(106.0)
    assert broker.hastened == 2, "it has lapsed"
    assert not lease.wanted(106.0 + WANTED_FOR_S)
    assert lease.next_heartbeat_s(106.0 + WANTED_FOR_S, 6000) == float("inf")
