"""K6, K7: the times until a broker that dies or stops is fenced, and until it is back; and the cost
of a thousand brokers' heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from datetime import datetime
from typing import Any

from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s, latency_ms
from raftlog.client.broker_client import BrokerClient
from raftlog.errors import ApiError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2

POLL_S = 0.005
GIVE_UP_S = 60.0
SETTLE_S = 3.0
BEATING = (0, 100, 1000)


# --- K6 -----------------------------------------------------------------------------------------


class Witness:
    """A broker's view of another broker, sampled every few milliseconds."""

    def __init__(self, endpoint: str, broker_id: int) -> None:
        self._transport = GrpcTransport()
        self._client = BrokerClient(self._transport, [endpoint], rng=random.Random(1))
        self._broker_id = broker_id

    async def look(self) -> tuple[bool, int]:
        """Return (active, broker epoch) in the witness's newest image."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._client.read(body, mode=broker_pb2.LATEST)
        found = next(
            one for one in response.describe_cluster.brokers if one.broker_id == self._broker_id
        )
        return not found.is_fenced, found.broker_epoch

    async def until(self, *, active: bool, above_epoch: int = -1) -> float:
        """Wait until another broker is in this state; return the time. Raises TimeoutError."""
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                with contextlib.suppress(ApiError):
                    if (seen := await self.look())[0] is active and seen[1] > above_epoch:
                        return time.monotonic()
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        self._client.close()
        await self._transport.close()


async def _started_at(quorum: Quorum, name: str, since: float) -> float:
    """Return the time after ``since`` at which a broker logs that it serves and begins to register,
    by the machine's clock. Its log may be written later. Raises TimeoutError.
    """
    async with asyncio.timeout(GIVE_UP_S):
        while True:
            lines = (json.loads(line) for line in quorum.log_lines(name))
            starts = [line["timestamp"] for line in lines if line["event"] == "broker started"]
            at = datetime.fromisoformat(starts[-1]).timestamp()
            if at > since:
                return at
            await asyncio.sleep(POLL_S)


async def _restart(
    quorum: Quorum, name: str, witness: Witness, above_epoch: int
) -> tuple[float, float]:
    """Start a broker; return the seconds until it is up, and from there until it is
    unfenced again.
    """
    begun = time.time()
    quorum.start(name)
    await witness.until(active=True, above_epoch=above_epoch)
    back = time.time()
    up = await _started_at(quorum, name, begun)
    return up - begun, back - up


async def _life(quorum: Quorum, name: str, witness: Witness, way: str) -> dict[str, float]:
    _, epoch = await witness.look()
    begun = time.monotonic()
    quorum.kill(name, signal.SIGTERM if way == "sigterm" else signal.SIGKILL)
    out: dict[str, float] = {}
    if way != "kill -9, back at once":
        out["until_out"] = await witness.until(active=False) - begun
    await asyncio.to_thread(quorum.wait_ended, name)
    if way == "sigterm":
        out["until_exit"] = time.monotonic() - begun
    out["start_until_up"], out["up_until_unfenced"] = await _restart(quorum, name, witness, epoch)
    await asyncio.sleep(SETTLE_S)
    return out


async def _lives(quorum: Quorum, way: str, runs: int) -> dict[str, Any]:
    witness_name, name = quorum.brokers[0], quorum.brokers[-1]
    witness = Witness(quorum.endpoint(witness_name), int(name.rpartition("-")[2]))
    await witness.until(active=True)
    await asyncio.sleep(SETTLE_S)
    seen = [await _life(quorum, name, witness, way) for _ in range(runs)]
    await witness.close()
    return {
        "way": way,
        "runs": runs,
        **{f"{key}_ms": latency_ms([one[key] for one in seen]) for key in seen[0]},
    }


def broker_lives(quorum: Quorum, runs: int) -> list[dict[str, Any]]:
    """K6: measure each way of dying, and the return, as observed at another broker, sampled every 5
    ms.
    """
    import uvloop

    return [
        uvloop.run(_lives(quorum, way, runs))
        for way in ("kill -9", "kill -9, back at once", "sigterm")
    ]


# --- K7 -----------------------------------------------------------------------------------------


def _beating(quorum: Quorum, count: int, seconds: float) -> dict[str, Any]:
    leading = quorum.endpoints[quorum.leader() - 1]
    # The leader first, so that no broker connects to the others first.
    known = ",".join([leading, *(one for one in quorum.endpoints if one != leading)])
    command = [sys.executable, "-m", "benchmarks.beaters", quorum.cluster_id, known, str(count)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError("the brokers' process has exited")
        time.sleep(SETTLE_S)
        leader = quorum.leader()
        pids = quorum.pids
        begun, before = time.monotonic(), [cpu_s([pid]) for pid in pids]
        time.sleep(seconds)
        taken = time.monotonic() - begun
        used = [
            round((cpu_s([pid]) - old) * 100 / taken, 1)
            for pid, old in zip(pids, before, strict=True)
        ]
        out, _ = child.communicate("stop\n", timeout=60)
    finally:
        child.kill()
        child.wait()
    told = json.loads(out)
    others = [share for number, share in enumerate(used, 1) if number != leader]
    return {
        "brokers": count,
        "leader_cpu_percent": used[leader - 1],
        "followers_cpu_percent": others,
        "heartbeats_per_s": round(told["answered"] / told["seconds"], 1),
        "leader_cpu_us_a_heartbeat": round(
            used[leader - 1] * 1e4 * told["seconds"] / max(1, told["answered"])
        ),
        "heartbeats_failed": told["failed"],
        "heartbeat_ms": told["latency_ms"],
    }


def heartbeats(quorum: Quorum, seconds: float) -> list[dict[str, Any]]:
    """K7: measure the controllers' CPU, in percent of one core, by number of brokers that send
    heartbeats every 2 s, each on its own connection.
    """
    return [_beating(quorum, count, seconds) for count in BEATING]
