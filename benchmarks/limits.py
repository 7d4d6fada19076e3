"""The machine's limits: one durable write, one round trip of a message; and the floor, below which
no write that keeps the guarantee can be.

One write in flight needs a message to the leader and back, one to a follower and back, and one
fdatasync: the leader's and the follower's disk may work at the same time. The floor is their sum,
with bare TCP and existing blocks.

Run it: ``python -m benchmarks.limits [DIRECTORY]``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pingpong import measure_pingpong
from benchmarks.stats import percentile
from raftlog.node.storage.files import replace_file

RECORD = b"x" * 300
BLOCK_BYTES = 4096
ECHO = f"""
import socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while message := link.recv({len(RECORD)}, socket.MSG_WAITALL):
    link.sendall(message)
"""
"""The program at the other end of the bare TCP connection, which echoes what it receives."""
FLOOR_ROUND_TRIPS = 2


def _p50_ms(act: Callable[[], None], count: int) -> float:
    taken: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return round(percentile(taken, 0.5) * 1000, 3)


def fdatasync_ms(directory: Path, count: int = 1000) -> float:
    """Return the p50 of appending 300 bytes to a file and fdatasync, in ms."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:

        def append() -> None:
            os.write(file.fileno(), RECORD)
            os.fdatasync(file.fileno())

        return _p50_ms(append, count)


def overwrite_ms(directory: Path, count: int = 1000) -> float:
    """Return the p50 of overwriting 300 bytes and fdatasync in ms, which does not involve the file
    system's journal.
    """
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.write(file.fileno(), bytes(BLOCK_BYTES))
        os.fsync(file.fileno())

        def overwrite() -> None:
            os.pwrite(file.fileno(), RECORD, 0)
            os.fdatasync(file.fileno())

        return _p50_ms(overwrite, count)


def replace_ms(directory: Path, count: int = 200) -> float:
    """Return the p50 of durably replacing a file of 300 bytes in ms: write, fsync, rename, fsync
    the directory.
    """
    with tempfile.TemporaryDirectory(dir=directory) as inside:
        path = Path(inside) / "replaced"
        return _p50_ms(lambda: replace_file(path, RECORD), count)


def tcp_pingpong_ms(count: int = 2000) -> float:
    """Return the p50 of sending 300 bytes to another process and back over TCP in ms, both ends
    blocking.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", ECHO, str(server.getsockname()[1])]
        with subprocess.Popen(command) as child:
            link, _ = server.accept()
            with link:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

                def exchange() -> None:
                    link.sendall(RECORD)
                    link.recv(len(RECORD), socket.MSG_WAITALL)

                found = _p50_ms(exchange, count)
            child.wait()
    return found


def floor(directory: Path) -> dict[str, float]:
    """Return the floor of one write in flight, and its parts. Creates the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    overwrite, tcp = overwrite_ms(directory), tcp_pingpong_ms()
    return {
        "overwrite_p50_ms": overwrite,
        "tcp_pingpong_p50_ms": tcp,
        "floor_ms": round(overwrite + FLOOR_ROUND_TRIPS * tcp, 3),
    }


async def limits(directory: Path) -> dict[str, float]:
    """Return medians by name, in milliseconds. Takes some seconds."""
    pingpong, lowest = await measure_pingpong(2.0), floor(directory)
    return {
        "fdatasync_p50_ms": fdatasync_ms(directory),
        "replace_p50_ms": replace_ms(directory),
        "grpc_stream_pingpong_p50_ms": round(pingpong["p50_ms"], 3),
        **lowest,
    }


def main() -> None:
    """Print the limits as JSON."""
    directory = Path(sys.argv[1] if sys.argv[1:] else ".")
    print(json.dumps(asyncio.run(limits(directory)), indent=1))


if __name__ == "__main__":
    main()
