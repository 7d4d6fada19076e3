"""W7: 100,000 partitions: memory and disk for each, and the restart time of nodes that have them.

``python -m benchmarks.scale [PARTITIONS] [DIRECTORY] [keys]`` measures another number, a million by
default, and prints each figure as it is known; with ``keys``, of keys with values of 256 bytes.
Also measures an export, its audit, and a failover.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.failover import RetryingWriter, failovers
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
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

PARTITIONS = 100_000
PARTITIONS_A_TOPIC = 2_000
KEYS_A_REQUEST = 100
READ_BYTES = 1 << 20
MANY = 1_000_000
TIMEOUT_S = 300.0


def scale(quorum: Quorum) -> dict[str, Any]:
    """Measure three controllers and three brokers that keep the image, at replication factor 3."""
    return measure(quorum, PARTITIONS, "partition", _partitions(PARTITIONS))


def measure(
    quorum: Quorum,
    count: int,
    what: str,
    requests: Iterable[Any],
    known: Callable[[str, Any], None] = lambda name, value: None,
    more: Callable[[Quorum], dict[str, float]] = lambda quorum: {},
) -> dict[str, Any]:
    """Create ``count`` partitions or keys by these requests, and measure their cost.

    ``known``: called with each figure at once. ``more``: measures further ones on the whole quorum.
    """
    import uvloop

    found: dict[str, Any] = {}

    def tell(**figures: Any) -> None:
        for name, value in figures.items():
            found[name] = round(value, 2) if isinstance(value, float) else value
            known(name, found[name])

    tell(**{f"{what}s": count})
    with observed(quorum, 3) as watching:
        leader = quorum.leader()
        empty = _resident_bytes(quorum.pids), _resident_bytes(watching.pids)
        seconds = uvloop.run(_write(quorum.endpoints, requests))
        for node in (1, 2, 3):
            quorum.wait_image(node, TIMEOUT_S)
        full = _resident_bytes(quorum.pids), _resident_bytes(watching.pids)
        tell(**{f"created_{what}s_per_s": round(count / seconds)})
        for who, before, after in zip(("controller", "broker"), empty, full, strict=True):
            each = [round((b - a) / count) for a, b in zip(before, after, strict=True)]
            tell(**{f"{who}_bytes_per_{what}": each})
        follower = leader % 3 + 1
        one_s, image_s = _restart_one(quorum, follower)
        tell(restart_one_until_high_watermark_s=one_s, restart_one_until_image_s=image_s)
        tell(**more(quorum))
        tell(kill_all_restart_until_write_s=uvloop.run(_restart_all(quorum)))
        tell(broker_start_until_unfenced_s=_start_broker(quorum))
    quorum.signal(follower, signal.SIGTERM)
    quorum.wait_gone(follower)
    tell(**_on_disk(quorum.data_path(follower), count, what))
    return found


def _commands(quorum: Quorum) -> dict[str, float]:
    """Return the seconds that operators' commands take; and the time from kill -9 of the leader
    until a write, in ms, the median of three.
    """
    there = ",".join(quorum.endpoints)
    target = quorum.directory / "export"
    shutil.rmtree(target, ignore_errors=True)
    commands = {
        "export_s": ["export", str(target), "--bootstrap-controller", there],
        "audit_s": ["replay", "audit", str(target), "--engine", "local"],
    }
    found: dict[str, float] = {}
    for name, words in commands.items():
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "raftlog", *words],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
        found[name] = time.monotonic() - begun
    gaps: list[float] = []
    for _ in range(3):
        result = failovers(quorum, signal.SIGKILL, 1)
        gaps.append(result["signal_to_first_write_ms"]["p50"])
        for node in (1, 2, 3):
            quorum.wait_image(node, TIMEOUT_S)
    return found | {"kill_leader_until_write_ms": median(gaps)}


def _resident_bytes(pids: list[int]) -> list[int]:
    return [resident_bytes(pid) for pid in pids]


def _partitions(count: int) -> Iterator[Any]:
    """Yield requests that create partitions, one topic each."""
    for index in range(count // PARTITIONS_A_TOPIC):
        name = f"topic-{index}"
        topic = pb.CreatableTopic(
            name=name, num_partitions=PARTITIONS_A_TOPIC, replication_factor=3
        )
        yield pb.CreateTopicsRequest(topics=[topic])


def _keys(count: int) -> Iterator[Any]:
    """Yield requests that put fresh keys, KEYS_A_REQUEST each, in a thousand directories."""
    value = bytes(range(256))
    for begin in range(0, count, KEYS_A_REQUEST):
        numbers = range(begin, min(count, begin + KEYS_A_REQUEST))
        yield pb.AlterKeyValuesRequest(
            alterations=[
                pb.KeyValueAlteration(key=f"app/{number % 1_000:03d}/{number:012d}", value=value)
                for number in numbers
            ]
        )


async def _write(bootstrap: list[str], requests: Iterable[Any]) -> float:
    """Write one request after the other, and return how long that took; then wait until all brokers
    have them.
    """
    transport = GrpcTransport()
    client = ControllerClient(transport, bootstrap, rng=random.Random(1))
    session = client.session("scale")
    begun = time.monotonic()
    for one in requests:
        response = await session.write(one, timeout_s=TIMEOUT_S)
        for topic in response.create_topics.topics:
            if topic.error.error_code:
                raise RuntimeError(topic.error.error_message)
    took = time.monotonic() - begun
    await session.write(
        pb.AlterKeyValuesRequest(alterations=[pb.KeyValueAlteration(key="all-have-it")]),
        acks=common_pb2.ACKS_VISIBLE,
        timeout_s=TIMEOUT_S,
    )
    client.close()
    await transport.close()
    return took


def _restart_one(quorum: Quorum, node: int) -> tuple[float, float]:
    """Kill a follower with kill -9 and restart it; return the seconds from its start until it knows
    the others' high watermark, and until its image is complete, so that it could lead at once.
    """
    quorum.signal(node, signal.SIGKILL)
    quorum.wait_gone(node)
    begun = time.monotonic()
    quorum.restart(node)
    quorum.leader()
    known_s = time.monotonic() - begun
    quorum.wait_image(node, TIMEOUT_S)
    return known_s, time.monotonic() - begun


async def _restart_all(quorum: Quorum) -> float:
    """Kill all nodes with kill -9 and restart them; return the seconds from their start until a
    write is acknowledged.
    """
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
        if time.monotonic() - begun > TIMEOUT_S:
            raise TimeoutError(f"no write was acknowledged within {TIMEOUT_S:.0f} s")
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await writer.close()
    return writer.acknowledged[0][0] - begun


def _start_broker(quorum: Quorum) -> float | None:
    """Start one more broker; return the seconds from its start until it is unfenced with the whole
    image applied, or None on timeout.
    """
    begun = time.monotonic()
    broker = Observers(quorum, 1, first=900)
    try:
        broker.wait_ready(TIMEOUT_S)
        return time.monotonic() - begun
    except TimeoutError:
        return None
    finally:
        for process in broker.processes:
            process.kill()
            process.wait()


def _on_disk(directory: Path, count: int, what: str) -> dict[str, Any]:
    """Measure the log of a stopped node, folded here, and the snapshot that it would become."""
    tune_memory()  # As in a node: otherwise the collector would examine each new partition repeatedly.
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
        f"log_bytes_per_{what}": round(log_bytes / count),
        "log_read_and_fold_s": round(folded - begun, 2),
        f"snapshot_bytes_per_{what}": round(sum(map(len, content)) / count),
        "snapshot_make_s": round(written - folded, 2),
        "snapshot_load_s": round(loaded - written, 2),
    }


def main() -> None:
    """Measure a million, and print each figure when it is known."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    directory = Path(sys.argv[2] if len(sys.argv) > 2 else ".raftlog/bench")
    keys = sys.argv[3:] == ["keys"]
    settings = {"kv.max.keys": count, "kv.max.bytes": 1_000 * count} if keys else {}
    with Quorum(directory, settings=settings) as quorum:
        measure(
            quorum,
            count,
            "key" if keys else "partition",
            _keys(count - 1)
            if keys
            else _partitions(count),  # One more request shows that all are applied.
            lambda name, value: print(json.dumps({name: value}), flush=True),
            _commands,
        )


if __name__ == "__main__":
    main()
