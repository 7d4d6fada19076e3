"""``scripts/chaos``: cycles of faults on a real cluster under load, then the verdict."""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raftlog import batch
from raftlog.client.consumer import EARLIEST, Consumer, Record
from raftlog.client.log_reader import LogReader
from raftlog.client.quorum_queries import ask_quorum
from raftlog.errors import RaftlogError
from raftlog.node.storage.reader import open_read_only
from raftlog.ops.logs import DirectoryLog, chunks, require_node
from raftlog.wire.common.v1 import common_pb2
from simulation.chaos.clients import PARTITIONS, TOPIC, Clients, History
from simulation.chaos.faults import ALONE, EVERY, heal
from simulation.chaos.judge import Verdict, judge
from simulation.chaos.nodes import ChaosCluster, is_possible
from simulation.chaos.scene import Scene

READY_WITHIN_S = 60.0
WRITTEN_WITHIN_S = 30.0
START_WITHIN_S = 120.0
AHEAD_MAX_S = 60.0


@dataclass(slots=True)
class Report:
    """Observations of a run of cycles. ``violations`` empty: every promise was kept."""

    seed: int
    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    written_after_s: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        waits = sorted(self.written_after_s)
        return {
            "seed": self.seed,
            "cycles": self.cycles,
            "violations": self.violations,
            "faults": dict(sorted(self.faults.items())),
            "seen": self.seen,
            "written_after_heal_s": {"median": waits[len(waits) // 2], "max": waits[-1]}
            if waits
            else {},
        }


async def run_cycles(cluster: ChaosCluster, seed: int, cycles: int, names: Sequence[str]) -> Report:
    """Run one cluster. It is running and ready at the beginning, and stopped at the end."""
    report, history, rng = Report(seed), History(), random.Random(seed)
    clients = Clients(cluster, history, seed)
    await clients.begin()
    for number in range(cycles):
        await _cycle(cluster, clients, report, rng, names)
        print(
            f"seed {seed} cycle {number + 1}/{cycles}: {report.written_after_s[-1:]}",
            file=sys.stderr,
            flush=True,
        )
        if report.violations:
            break
    failure = await clients.stop()
    if failure is not None:
        report.violations.append(f"a client ended: {failure}")
    try:
        verdict = await _verdict(cluster, clients, history)
    except (RaftlogError, TimeoutError) as error:
        verdict = Verdict([f"the history cannot be judged: {error}"])
    await clients.world.close()
    report.violations += verdict.violations
    late = sum(
        one.acks == common_pb2.ACKS_VISIBLE and one.outcome == "ok" and one.reached < one.acks
        for is_return, one in history.events
        if is_return
    )
    report.seen = verdict.seen | {"duplicates answered": history.duplicates, "visible late": late}
    return report


async def _cycle(
    cluster: ChaosCluster,
    clients: Clients,
    report: Report,
    rng: random.Random,
    names: Sequence[str],
) -> None:
    await asyncio.sleep(rng.uniform(0.3, 1.5))
    leader = (await ask_quorum(cluster.endpoints, 2.0)).leader
    scene = Scene(cluster, rng, -1 if leader is None else leader.node_id)
    chosen = rng.sample(names, k=min(len(names), rng.choice((1, 1, 2))))
    if alone := [name for name in chosen if name in ALONE]:
        chosen = alone[:1]
    for name in chosen:
        await asyncio.to_thread(EVERY[name], scene)
        report.faults[name] += 1
        await asyncio.sleep(rng.uniform(0.0, 1.0))
    await asyncio.sleep(rng.choice((0.3, 2.0, 6.0)) * rng.random())
    await asyncio.to_thread(heal, cluster)
    report.violations += cluster.violations
    report.cycles += 1
    healed = time.monotonic()
    unready = await asyncio.to_thread(cluster.wait_ready, READY_WITHIN_S)
    if unready:
        report.violations.append(
            f"{READY_WITHIN_S:g} s after healing {dict(report.faults)}: {unready}"
        )
        return
    await _write_visibly(clients, report, healed)
    failure = clients.failure()
    if failure is not None:
        report.violations.append(f"a client ended: {failure}")


async def _write_visibly(clients: Clients, report: Report, healed: float) -> None:
    """I17: after healing a write is visible everywhere within a bound."""
    client = clients.client(f"last{report.cycles}")
    try:
        while time.monotonic() < healed + READY_WITHIN_S + WRITTEN_WITHIN_S:
            operation = await client.write_config("last", acks=common_pb2.ACKS_VISIBLE)
            if operation.outcome == "ok" and operation.reached == common_pb2.ACKS_VISIBLE:
                report.written_after_s.append(round(time.monotonic() - healed, 2))
                return
            await asyncio.sleep(0.2)
        report.violations.append(
            f"I17: no write was visible within {WRITTEN_WITHIN_S:g} s of all nodes being ready"
        )
    finally:
        client.close()


async def _verdict(cluster: ChaosCluster, clients: Clients, history: History) -> Verdict:
    async with asyncio.timeout(START_WITHIN_S):
        log = await _committed(cluster, clients)
        ahead_s = max(one.timestamp_ms for chunk in log for one in batch.headers(chunk)) / 1000
        if ahead_s > time.time() + AHEAD_MAX_S:
            return Verdict([f"the log's time is {ahead_s - time.time():.0f} s ahead"])
        consumed = await _consume(cluster, clients, history)
    await asyncio.to_thread(_stop_all, cluster)
    node_logs = {node.name: _disk_log(node.data) for node in cluster.controllers}
    return judge(history, log, node_logs, consumed)


def _stop_all(cluster: ChaosCluster) -> None:
    for node in (*cluster.brokers, *cluster.controllers):
        node.stop()


async def _committed(cluster: ChaosCluster, clients: Clients) -> list[bytes]:
    transport = clients.world.transport_for("log")
    reader = LogReader(transport, cluster.endpoints, rng=random.Random())
    try:
        until = (await reader.info()).high_watermark
        return [chunk async for chunk in reader.chunks(0, until)]
    finally:
        reader.close()


async def _consume(cluster: ChaosCluster, clients: Clients, history: History) -> list[Record]:
    """Return all records up to each partition's high watermark after the last write."""
    transport = clients.world.transport_for("consumer")
    consumer = Consumer(transport, [node.endpoint for node in cluster.brokers], rng=random.Random())
    found: list[Record] = []
    acknowledged = [operation for operation in history.produced if operation.outcome == "ok"]
    ends_of = {f"{TOPIC}-{index}": 0 for index in range(PARTITIONS)}
    for operation in acknowledged:
        ends_of[operation.key] = max(ends_of[operation.key], operation.record_offset + 1)
    least = list(ends_of.values())
    consumer.assign(TOPIC, -1, EARLIEST)
    try:
        while True:
            records = await consumer.poll(1.0)
            found += records
            ends = [consumer.high_watermark(TOPIC, index) for index in range(PARTITIONS)]
            at = [max(0, consumer.position(TOPIC, index)) for index in range(PARTITIONS)]
            if not records and all(
                position >= max(end, one)
                for position, end, one in zip(at, ends, least, strict=True)
            ):
                return found
    finally:
        consumer.close()


def _disk_log(directory: Path) -> tuple[int, Sequence[bytes]]:
    require_node(directory)
    with open_read_only(directory) as log:
        return log.start_offset, list(chunks(DirectoryLog(log), log.end_offset))


async def _life(directory: Path, seed: int, cycles: int, names: Sequence[str]) -> Report:
    cluster = ChaosCluster(directory)
    try:
        cluster.create()
        cluster.start_all()
        unready = cluster.wait_ready(START_WITHIN_S)
        if unready:
            return Report(seed, violations=[f"never ready: {unready}"])
        return await run_cycles(cluster, seed, cycles, names)
    finally:
        cluster.close()


def main() -> int:
    """Run the command line. Return 0 if every promise was kept, 3 if not, 2 if this machine cannot
    run it.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for name, kind, default, what in (
        ("--cycles", int, 20, "number of times that faults are injected and healed"),
        (
            "--seed",
            int,
            int(time.time()),
            "decides which faults are injected, but not exactly when",
        ),
        ("--dir", Path, None, "directory of the nodes; kept if a promise was broken"),
    ):
        parser.add_argument(name, type=kind, default=default, help=what)
    parser.add_argument(
        "--fault",
        action="append",
        choices=sorted(EVERY),
        help="inject only this fault; may be repeated",
    )
    options = parser.parse_args()
    why_not = is_possible()
    if why_not:
        print(f"chaos: {why_not}", file=sys.stderr)
        return 2
    directory = options.dir or Path(tempfile.mkdtemp(prefix="raftlog-chaos-"))
    report = asyncio.run(
        _life(directory, options.seed, options.cycles, options.fault or sorted(EVERY))
    )
    print(json.dumps(report.as_dict(), indent=1))
    if report.violations:
        print(f"chaos: the logs of the nodes are in {directory}", file=sys.stderr)
        return 3
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
