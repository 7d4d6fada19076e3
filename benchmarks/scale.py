"""W7: 100,000 partitions: memory and disk for each, and the restart time of nodes with them."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.failover import RetryingWriter
from benchmarks.nodes import Quorum
from benchmarks.propagation import Observers, observed
from benchmarks.stats import resident_bytes
from raftlog.client.controller_client import ControllerClient
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.node.storage.reader import open_read_only
from raftlog.process import tune_memory
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb

PARTITIONS = 100_000
PARTITIONS_A_TOPIC = 2_000
READ_BYTES = 1 << 20


def scale(quorum: Quorum) -> dict[str, Any]:
    """Three controllers, three brokers that keep the image, replication factor 3."""
    import uvloop

    with observed(quorum, 3) as watching:
        leader = quorum.leader()
        empty = _resident_bytes(quorum.pids), _resident_bytes(watching.pids)
        seconds = uvloop.run(_create(quorum.endpoints))
        full = _resident_bytes(quorum.pids), _resident_bytes(watching.pids)
        follower = leader % 3 + 1
        one_s, image_s = _restart_one(quorum, follower)
        all_s = uvloop.run(_restart_all(quorum))
        broker_s = _start_broker(quorum)
    quorum.signal(follower, signal.SIGTERM)
    quorum.wait_gone(follower)
    return {
        "partitions": PARTITIONS,
        "created_partitions_per_s": round(PARTITIONS / seconds),
        "controller_bytes_per_partition": [
            _each(a, b) for a, b in zip(empty[0], full[0], strict=True)
        ],
        "broker_bytes_per_partition": [_each(a, b) for a, b in zip(empty[1], full[1], strict=True)],
        "restart_one_until_high_watermark_s": round(one_s, 2),
        "restart_one_until_image_s": round(image_s, 2),
        "kill_all_restart_until_write_s": round(all_s, 2),
        "broker_start_until_unfenced_s": round(broker_s, 2),
        **_on_disk(quorum.data_path(follower)),
    }


def _each(empty: int, full: int) -> int:
    return round((full - empty) / PARTITIONS)


def _resident_bytes(pids: list[int]) -> list[int]:
    return [resident_bytes(pid) for pid in pids]


async def _create(bootstrap: list[str]) -> float:
    """Create them, one topic a call; how long it took."""
    transport = GrpcTransport()
    client = ControllerClient(transport, bootstrap, rng=random.Random(1))
    session = client.session("scale")
    begun = time.monotonic()
    for index in range(PARTITIONS // PARTITIONS_A_TOPIC):
        topic = pb.CreatableTopic(
            name=f"topic-{index}", num_partitions=PARTITIONS_A_TOPIC, replication_factor=3
        )
        response = await session.write(pb.CreateTopicsRequest(topics=[topic]), timeout_s=60)
        for result in response.create_topics.topics:
            if result.error.error_code:
                raise RuntimeError(result.error.error_message)
    took = time.monotonic() - begun
    await asyncio.sleep(3)  # until the standbys and the brokers have folded it, too
    client.close()
    await transport.close()
    return took


def _restart_one(quorum: Quorum, node: int) -> tuple[float, float]:
    """kill -9 of a follower, then: from its start until it knows the high watermark that the others
    know, and until its image is there, which is when it could lead at once.
    """
    quorum.signal(node, signal.SIGKILL)
    quorum.wait_gone(node)
    begun = time.monotonic()
    quorum.restart(node)
    quorum.leader()
    known_s = time.monotonic() - begun
    quorum.wait_image(node)
    return known_s, time.monotonic() - begun


async def _restart_all(quorum: Quorum) -> float:
    """kill -9 of all nodes, then: from their start until a write is acknowledged."""
    writer = RetryingWriter(quorum.endpoints)
    for node in (1, 2, 3):
        quorum.signal(node, signal.SIGKILL)
    for node in (1, 2, 3):
        quorum.wait_gone(node)
    begun = time.monotonic()
    for node in (1, 2, 3):
        quorum.restart(node)
    writing = asyncio.create_task(writer.run())
    while not writer.acknowledged:
        await asyncio.sleep(0.01)
        if time.monotonic() - begun > 120:
            raise TimeoutError("no write was acknowledged within 120 s")
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await writer.close()
    return writer.acknowledged[0][0] - begun


def _start_broker(quorum: Quorum) -> float:
    """Measure one more broker: from the start of its process until it is unfenced, the whole image
    applied.
    """
    begun = time.monotonic()
    broker = Observers(quorum, 1, first=900)
    try:
        broker.wait_ready()
        return time.monotonic() - begun
    finally:
        for process in broker.processes:
            process.kill()
            process.wait()


def _on_disk(directory: Path) -> dict[str, Any]:
    """The log of a stopped node, folded here; and the snapshot that it would be."""
    tune_memory()  # As a node does: the collector would look at each new partition again and again.
    log_bytes = 0
    builder = ImageBuilder(Image())
    begun = time.monotonic()
    with open_read_only(directory) as reader:
        offset = reader.start_offset
        while offset < reader.end_offset:
            chunk = reader.read(offset, until=reader.end_offset, max_bytes=READ_BYTES)
            log_bytes += len(chunk)
            builder.apply_chunk(chunk)
            offset = builder.offset + 1
    folded = time.monotonic()
    image = builder.snapshot()
    content = list(pieces(image, header_of(image, cluster_id="bench", generations=())))
    written = time.monotonic()
    load(content)
    loaded = time.monotonic()
    return {
        "log_bytes_per_partition": round(log_bytes / PARTITIONS),
        "log_read_and_fold_s": round(folded - begun, 2),
        "snapshot_bytes_per_partition": round(sum(map(len, content)) / PARTITIONS),
        "snapshot_make_s": round(written - folded, 2),
        "snapshot_load_s": round(loaded - written, 2),
    }
