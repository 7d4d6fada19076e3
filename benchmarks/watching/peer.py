"""The same at etcd, by the same client, at three members.

Its programs are those that its own scripts have built (``benchmarks.peers``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.watching.deliveries import Case, Served, deliveries, each_case
from benchmarks.watching.watchers import NUMBER
from raftlog.cli.local import free_ports
from raftlog.config_writes.twin import varint
from raftlog.transport import grpc_env  # noqa: F401  (before grpc)

import grpc.aio  # isort: skip

MEMBERS = 3
START_TIMEOUT_S = 40.0
WATCH, PUT = "/etcdserverpb.Watch/Watch", "/etcdserverpb.KV/Put"


def watch(home: Path, seconds: float) -> list[dict[str, Any]]:
    """A row for each case, one after the other on one fresh cluster. ``home``: PEERS_HOME."""
    with _Members(home / "etcd") as members:
        return each_case(partial(_measured, members, members.leader_first(), seconds))


async def _measured(
    members: _Members, addresses: Sequence[str], seconds: float, case: Case
) -> dict[str, Any]:
    by = f"{case.watchers}-on-streams" if case.shared else str(case.watchers)
    prefix = "own/" if case.own_keys else f"watched-by-{by}/"
    # WatchRequest.create_request: key, and the end of the range.
    begin, end = prefix.encode(), prefix[:-1].encode() + b"0"
    one = _field(1, begin + NUMBER)
    request = _field(1, one if case.own_keys else _field(1, begin) + _field(2, end))
    served = Served(
        addresses,
        WATCH,
        request,
        asked_once=False,
        pids=members.pids,
        all_pids=members.pids,
        shared="etcd" if case.shared else "",
    )
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        put = channel.unary_unary(PUT)

        async def write(number: int, value: bytes) -> None:
            await put(_field(1, f"{prefix}{number:08d}".encode()) + _field(2, value))

        return await deliveries(served, case, write, seconds=seconds)


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes, as protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(data)) + data


class _Members:
    """Three processes on one machine; ended, and their data removed, at the end of the ``with``."""

    def __init__(self, home: Path) -> None:
        self._bin, self._data = home / "bin", home / "watch-data"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._addresses: list[str] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(parents=True)
        ports = free_ports(2 * MEMBERS)
        clients, peers = ports[:MEMBERS], ports[MEMBERS:]
        self._addresses = [f"127.0.0.1:{port}" for port in clients]
        all_peers = ",".join(f"n{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
        for number in range(MEMBERS):
            client = f"http://127.0.0.1:{clients[number]}"
            peer = f"http://127.0.0.1:{peers[number]}"
            command = [
                str(self._bin / "etcd"),
                *("--name", f"n{number}", "--data-dir", str(self._data / f"n{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", all_peers, "--initial-cluster-state", "new"),
            ]
            with (self._data / f"n{number}.log").open("ab") as log:
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self

    def leader_first(self) -> list[str]:
        """Addresses, once all members name one leader. Raises TimeoutError."""
        deadline = time.monotonic() + START_TIMEOUT_S
        command = [str(self._bin / "bench"), "status", "-endpoints", ",".join(self._addresses)]
        while time.monotonic() < deadline:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            known = json.loads(done.stdout) if not done.returncode else []
            leaders = {one.get("leader", "0") for one in known}
            if len(known) == MEMBERS and len(leaders) == 1 and leaders != {"0"}:
                leads = [one["member"] == one["leader"] for one in known]
                order = sorted(range(MEMBERS), key=lambda i: not leads[i])
                return [self._addresses[i] for i in order]
            time.sleep(0.1)
        raise TimeoutError("etcd has no leader")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._data, ignore_errors=True)
