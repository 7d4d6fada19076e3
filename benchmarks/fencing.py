"""K-fence: fencing a broker that has 1,000 partitions, out of a total of 10,000 or 100,000: the
cost must depend only on the partitions of that broker. Measured twice: in one process, only the
cost of deciding, folding and encoding; and on a real quorum, the time from the request to its
committed answer, and until every broker has applied it.

    .venv/bin/python -m benchmarks.fencing [--json] # the first alone benchmarks/run k_fence # both
"""

from __future__ import annotations

import gc
import json
import random
import time
from typing import Annotated, Any

import typer

from benchmarks.nodes import Quorum
from benchmarks.propagation import FIRST_BROKER, observed
from benchmarks.stats import percentile
from controller.rules.fencing import fence, unfence
from controller.rules.placement import place
from controller.state.epoch_log import EpochLog
from raftlog.client.controller_client import ControllerClient
from raftlog.client.session import Session
from raftlog.metadata.entities import Cause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import unknown
from raftlog.metadata.records import Record, record
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

HELD = 1_000
TOTALS = (10_000, 100_000)
REPLICATION_FACTOR = 3
VICTIMS = 2
RUNS = 15
PARTITIONS_A_CALL = 2_000


def alone(total: int) -> dict[str, Any]:
    """Return the CPU milliseconds of one fencing in this process, with enough brokers that each has
    1,000 partitions.
    """
    brokers = list(range(1, total * REPLICATION_FACTOR // HELD + 1))
    base = _image(brokers, total)
    gc.collect()
    gc.freeze()
    taken: dict[str, list[float]] = {"decide": [], "fold": [], "encode_and_fold": [], "unfence": []}
    changed: set[int] = set()
    for broker_id in brokers[:RUNS]:
        log = EpochLog(1, base.offset + 1, base, unknown(base.offset + 1))
        begun = time.process_time()
        records = fence(log.pending, base.brokers[broker_id], Cause.SESSION_TIMED_OUT)
        decided = time.process_time()
        log.add(records, None, 0)
        added = time.process_time()
        fenced = log.pending.snapshot()
        again = ImageBuilder(base)
        folding = time.process_time()
        again.apply_batch(records, base_offset=base.offset + 1, epoch=1, timestamp_ms=0)
        folded = time.process_time()
        unfence(log.pending, fenced.brokers[broker_id])
        joined = time.process_time()
        changed.add(len(records))
        for name, seconds in zip(
            taken,
            (decided - begun, folded - folding, added - decided, joined - folded),
            strict=True,
        ):
            taken[name].append(seconds * 1000)
    gc.unfreeze()
    figures = {
        f"{name}_p50_cpu_ms": round(percentile(values, 0.5), 2) for name, values in taken.items()
    }
    return {"partitions": total, "brokers": len(brokers), "records": max(changed), **figures}


def _image(brokers: list[int], total: int) -> Image:
    builder = ImageBuilder(Image())
    records: list[Record] = [
        record(
            pb.RegisterBrokerRecord(broker_id=each, incarnation_id=f"i{each}", broker_epoch=each)
        )
        for each in brokers
    ]
    topic_id = bytes(range(16))
    records.append(record(pb.TopicRecord(name="t", topic_id=topic_id)))
    for index, replicas in enumerate(place(brokers, total, REPLICATION_FACTOR, random.Random(1))):
        records.append(
            record(
                pb.PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=replicas,
                    isr=replicas,
                    leader=replicas[0],
                )
            )
        )
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=0)
    return builder.snapshot()


def on_a_quorum(quorum: Quorum) -> list[dict[str, Any]]:
    """Measure on three controllers with brokers that keep the image; three of them have the
    replicas that are not on the victims.
    """
    import uvloop

    rows: list[dict[str, Any]] = []
    with observed(quorum, REPLICATION_FACTOR + VICTIMS * len(TOTALS)) as watching:
        fenced = uvloop.run(_fence_all(quorum.endpoints))
        watching.stop()
    for total, samples in fenced.items():
        answered = [(end - begun) * 1000 for begun, end, _ in samples]
        applied = [(watching.all_applied(offset) - begun) * 1000 for begun, _, offset in samples]
        rows.append(
            {
                "partitions": total,
                "fenced_brokers": len(samples),
                "partitions_each": HELD,
                "until_committed_answer_ms": [round(one, 1) for one in sorted(answered)],
                "until_last_broker_applied_ms": [round(one, 1) for one in sorted(applied)],
            }
        )
    return rows


async def _fence_all(bootstrap: list[str]) -> dict[int, list[tuple[float, float, int]]]:
    """Return (sent at, answered at, offset) for each victim, by total number of partitions."""
    import asyncio

    transport = GrpcTransport()
    client = ControllerClient(transport, bootstrap, rng=random.Random(1))
    session = client.session("k_fence")
    keepers = [FIRST_BROKER + each for each in range(REPLICATION_FACTOR)]
    first, there = FIRST_BROKER + REPLICATION_FACTOR, 0
    samples: dict[int, list[tuple[float, float, int]]] = {}
    for total in TOTALS:
        victims = list(range(first, first + VICTIMS))
        first += VICTIMS
        for victim in victims:
            await _create(session, f"of-{victim}", HELD, [victim, *keepers[1:]])
        rest = total - there - HELD * VICTIMS
        while rest > 0:
            await _create(session, f"rest-{total}-{rest}", min(rest, PARTITIONS_A_CALL), keepers)
            rest -= PARTITIONS_A_CALL
        there = total
        await asyncio.sleep(5)  # until every broker has folded it
        samples[total] = [await _fence(client, victim) for victim in victims]
        await asyncio.sleep(5)
    client.close()
    await transport.close()
    return samples


async def _create(session: Session, name: str, count: int, replicas: list[int]) -> None:
    assignments = [
        rpc.CreatableReplicaAssignment(partition_index=each, broker_ids=replicas)
        for each in range(count)
    ]
    topic = rpc.CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
    )
    # No faster than the brokers apply it: one that falls behind would be fenced, and not measured.
    response = await session.write(
        rpc.CreateTopicsRequest(topics=[topic]), acks=common_pb2.ACKS_ACKNOWLEDGED, timeout_s=60
    )
    for result in response.create_topics.topics:
        if result.error.error_code:
            raise RuntimeError(result.error.error_message)


async def _fence(client: ControllerClient, broker_id: int) -> tuple[float, float, int]:
    """Send a heartbeat in the broker's name that asks to be fenced; return its times and offset."""
    described = (await client.call(rpc.DescribeBrokersRequest(), timeout_s=60)).describe_brokers
    (broker,) = [one for one in described.brokers if one.broker_id == broker_id]
    request = rpc.BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=broker.broker_epoch,
        current_metadata_offset=-1,
        told_lowest_acknowledged_offset=-1,
        want_fence=True,
    )
    begun = time.monotonic()
    response = await client.call(request, timeout_s=60)
    ended = time.monotonic()
    if not response.HasField("write"):
        raise RuntimeError(f"broker {broker_id} was fenced already")
    return begun, ended, response.write.token.offset


def main(
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Measure fencing in one process."""
    for total in TOTALS:
        row = alone(total)
        print(
            json.dumps(row)
            if as_json
            else "  ".join(f"{name}={value}" for name, value in row.items())
        )


if __name__ == "__main__":
    typer.run(main)
