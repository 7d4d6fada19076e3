"""Brokers that register and heartbeat, and do nothing else; run as a process: see ``lives``.

    python -m benchmarks.beaters CLUSTER_ID CONTROLLERS COUNT

Prints ``ready`` when all are unfenced; when a line arrives on stdin, prints JSON (answered, failed,
seconds, latency_ms) and exits. Each broker has a connection of its own, as real ones have, and
claims to have applied everything committed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
import uuid

import structlog
import uvloop

from benchmarks.stats import latency_ms
from broker.settings import SUPPORTED_FEATURES
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import require_success
from raftlog.errors import ApiError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

FIRST_ID = 10_000
INTERVAL_S = 2.0
LOOK_S = 0.5
STARTS_PER_S = 200
"""Connections opened per second, as opening all at once would measure something else."""


class Beater:
    """One broker, reduced to its registration and heartbeats."""

    def __init__(
        self, transport: GrpcTransport, controllers: list[str], cluster_id: str, broker_id: int
    ) -> None:
        self._client = ControllerClient(transport, controllers, rng=random.Random(broker_id))
        self._cluster_id = cluster_id
        self._id = broker_id
        self.active = False
        self.latencies: list[float] = []
        self.failed = 0

    async def live(self, committed: Committed) -> None:
        """Run brokers until cancelled."""
        ranges = [
            records_pb2.FeatureRange(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, low, high in SUPPORTED_FEATURES
        ]
        registration = pb.RegisterBrokerRequest(
            broker_id=self._id,
            cluster_id=self._cluster_id,
            incarnation_id=str(uuid.uuid4()),
            listeners=[records_pb2.Listener(name="PLAINTEXT", host="127.0.0.1", port=1)],
            features=ranges,
            registration_version=1,
            previous_broker_epoch=-1,
        )
        epoch = (await self._client.call(registration, timeout_s=120)).register_broker.broker_epoch
        due = time.monotonic() + random.random() * INTERVAL_S
        while True:
            await asyncio.sleep(due - time.monotonic())
            due += INTERVAL_S * random.uniform(0.9, 1.0)
            request = pb.BrokerHeartbeatRequest(
                broker_id=self._id,
                broker_epoch=epoch,
                current_metadata_offset=committed.offset,
                told_lowest_acknowledged_offset=committed.offset,
                controller_epoch=committed.epoch,
                target_state=pb.ACTIVE,
            )
            sent = time.monotonic()
            try:
                reply = require_success(
                    await self._client.send(
                        pb.ControllerRequest(broker_heartbeat=request), INTERVAL_S
                    )
                )
            except ApiError:
                self.failed += 1
            else:
                self.latencies.append(time.monotonic() - sent)
                self.active = reply.broker_heartbeat.current_state == pb.ACTIVE


class Committed:
    """The committed offset, which is requested from the controllers at intervals."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        self.offset, self.epoch = -1, 0

    async def look(self) -> None:
        """Refresh the committed offset until cancelled."""
        while True:
            try:
                response = await self._client.call(pb.DescribeBrokersRequest(), timeout_s=30)
            except ApiError:
                continue
            self.offset, self.epoch = (
                response.describe_brokers.high_watermark - 1,
                response.controller_epoch,
            )
            await asyncio.sleep(LOOK_S if self.epoch == 0 or not self.settled else 20 * LOOK_S)

    settled = False


async def main(cluster_id: str, controllers: list[str], count: int) -> None:
    """Register the brokers and heartbeat until a line arrives on stdin; print the counts as JSON."""
    transport = GrpcTransport()
    committed = Committed(ControllerClient(transport, controllers, rng=random.Random(1)))
    looking = asyncio.create_task(committed.look())
    beaters = [
        Beater(transport, controllers, cluster_id, FIRST_ID + 10 * count + number)
        for number in range(count)
    ]
    tasks = [looking]
    for beater in beaters:
        tasks.append(asyncio.create_task(beater.live(committed)))
        await asyncio.sleep(1 / STARTS_PER_S)
    while not all(beater.active for beater in beaters):
        await asyncio.sleep(0.1)
        for task in tasks:
            if task.done():
                task.result()
    print("ready", flush=True)
    committed.settled = True
    for beater in beaters:
        beater.latencies.clear()
        beater.failed = 0
    begun = time.monotonic()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    latencies = [each for beater in beaters for each in beater.latencies]
    result = {
        "answered": len(latencies),
        "failed": sum(beater.failed for beater in beaters),
        "seconds": time.monotonic() - begun,
        "latency_ms": latency_ms(latencies) if latencies else {},
    }
    print(json.dumps(result), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    uvloop.run(main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])))
