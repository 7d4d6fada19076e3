"""The limit of this machine behind every figure: one round trip of a message on one gRPC stream
between two processes.

Run it: ``python -m benchmarks.pingpong [SECONDS]``.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from raftlog.transport import grpc_runtime

import grpc  # isort: skip
import grpc.aio  # isort: skip

SERVICE, METHOD = "raftlog.benchmarks.PingPong", "Echo"
MESSAGE = b"x" * 300
WARM_UP_S = 0.3


async def _echo(_: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def _serve() -> None:
    """Print the port, then echo until stdin ends."""
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


async def measure_pingpong(seconds: float) -> dict[str, Any]:
    """Exchange messages of 300 bytes for about ``seconds``; return the round trips per second,
    their p50 and p99 in ms, and the state of the EventEngine.
    """
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.pingpong", "--serve"),
        cwd=Path(__file__).parents[1],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            await _round_trips(stream, WARM_UP_S)
            times_s = await _round_trips(stream, seconds)
            stream.cancel()
    finally:
        server.stdin.close()
        await server.wait()
    return {
        "round_trips_per_s": round(len(times_s) / sum(times_s)),
        "p50_ms": round(statistics.median(times_s) * 1000, 3),
        "p99_ms": round(statistics.quantiles(times_s, n=100)[98] * 1000, 3),
        "event_engine": grpc_runtime.event_engine_state(),
    }


async def _round_trips(stream: Any, seconds: float) -> list[float]:
    times_s: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds:
        await stream.write(MESSAGE)
        await stream.read()
        sent, now = now, time.perf_counter()
        times_s.append(now - sent)
    return times_s


def main() -> None:
    """Serve, or measure and print."""
    if sys.argv[1:] == ["--serve"]:
        uvloop.run(_serve())
    else:
        print(json.dumps(uvloop.run(measure_pingpong(float(sys.argv[1]) if sys.argv[1:] else 2.0))))


if __name__ == "__main__":
    main()
