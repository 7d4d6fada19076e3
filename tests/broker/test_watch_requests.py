"""What a broker answers to clients of Watch that say what they like."""

from __future__ import annotations

import asyncio
from typing import Any

from fake_quorum import CLUSTER, Cluster, on_cluster
from scenarios import scenario

from broker.service.service import BrokerService
from broker.settings import WatchSettings
from raftlog.errors import ErrorCode
from raftlog.transport.api import Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2 as pb


class Raw:
    """A client that says what it likes."""

    def __init__(self, *requests: pb.WatchRequest) -> None:
        self.requests = requests
        self.responses: list[pb.WatchResponse] = []
        self.links: list[Link] = []
        self.gone = 0

    def opened(self, link: Link) -> None:
        self.links.append(link)
        for request in self.requests:
            link.send(request)

    def received(self, link: Link, messages: Any) -> None:
        self.responses += messages

    def closed(self, link: Link, reason: str) -> None:
        self.gone += 1


def raw(cluster: Cluster, broker: BrokerService, *requests: pb.WatchRequest) -> Raw:
    client = Raw(*requests)
    transport = cluster.network.transport_for(f"raw{cluster.loop.time()}")
    transport.dial(broker.address, Conversation.WATCH, client)
    return client


@scenario(on_cluster)
async def test_requests_that_make_no_sense_end_their_call(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    begin, at = pb.WatchRequest(cluster_id=CLUSTER), pb.WatchToken
    for requests, field in (
        ((pb.WatchRequest(mode=pb.STRICT),), "mode"),
        ((pb.WatchRequest(mode=77),), "mode"),  # type: ignore[arg-type]
        ((pb.WatchRequest(initial=True, since=at(offset=1)),), "initial"),
        ((pb.WatchRequest(since=at(offset=-2)),), "since"),
        ((pb.WatchRequest(since=at(offset=1, part=-1)),), "since"),
        ((pb.WatchRequest(progress_interval_ms=-1),), "progress_interval_ms"),
        ((begin, begin), ""),
    ):
        client = raw(cluster, broker, *requests)
        await asyncio.sleep(1)
        error = client.responses[-1].error
        assert (error.error_code, error.field) == (ErrorCode.INVALID_REQUEST, field)
        client.requests = ()
        await asyncio.sleep(10)
        assert client.gone >= 1
        assert len(broker.watches.hub) == 0


@scenario(on_cluster)
async def test_one_connection_never_takes_the_last_place(cluster: Cluster) -> None:
    broker = await cluster.broker(1, watch=WatchSettings(watch_max_watchers=3))
    await cluster.until(lambda: not broker.why_fenced())
    clients = []
    for _ in range(4):
        clients.append(raw(cluster, broker, pb.WatchRequest()))
        await asyncio.sleep(0.1)
    codes = [one.responses[-1].error.error_code for one in clients]
    assert codes == [0, 0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    clients[0].links[0].close()
    clients[0].requests = ()
    await asyncio.sleep(0.1)
    late = raw(cluster, broker, pb.WatchRequest())
    await asyncio.sleep(0.1)
    assert late.responses[-1].error.error_code == 0
