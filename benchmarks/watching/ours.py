"""``watch``: three brokers send the changes to configs at LAO, the default level."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from benchmarks.load import CLIENT_METRICS
from benchmarks.nodes import Quorum
from benchmarks.watching.deliveries import Case, Served, deliveries, each_case
from benchmarks.watching.shared import SHARED
from benchmarks.watching.watchers import NUMBER
from raftlog.client.controller_client import ControllerClient
from raftlog.config_writes.writes import ConfigWrite
from raftlog.transport.api import Conversation
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2

PATH, PATH_OF_MANY = Conversation.WATCH.value, Conversation.WATCH_MANY.value
SELECTOR = "configs/client-metrics/"


def watch(quorum: Quorum, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each case, one after the other on one cluster."""
    leader = quorum.endpoints[quorum.leader() - 1]
    return each_case(partial(_measured, quorum, leader, seconds), laned=True)


async def _measured(quorum: Quorum, leader: str, seconds: float, case: Case) -> dict[str, Any]:
    transport = GrpcTransport()
    client = ControllerClient(transport, [leader], rng=random.Random(1))
    how = "shared" if case.shared else "laned" if case.laned else "watchers"
    prefix = f"{case.watchers}-{how}"

    async def write(number: int, value: bytes) -> None:
        # Under fresh names, since the value before a change would contain its own mark.
        name = f"own-{number:08d}" if case.own_keys else f"{prefix}-{number}"
        change = (CLIENT_METRICS, name, "match", value.decode())
        await client.call(ConfigWrite([change]).request())

    brokers = quorum.broker_pids
    request = broker_pb2.WatchRequest(
        selectors=[f"{SELECTOR}own-{NUMBER.decode()}" if case.own_keys else SELECTOR]
    ).SerializeToString()
    if case.laned:
        (request,) = SHARED["raftlog"].requests(1, [request])
    served = Served(
        [quorum.endpoint(name) for name in quorum.brokers],
        PATH_OF_MANY if case.shared or case.laned else PATH,
        request,
        asked_once=not case.shared,
        pids=brokers,
        all_pids=[*quorum.pids, *brokers],
        shared="raftlog" if case.shared else "",
    )
    try:
        return await deliveries(served, case, write, seconds=seconds)
    finally:
        client.close()
        await transport.close()
