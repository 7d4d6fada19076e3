"""A throw-away quorum of real processes on free loopback ports, on a real disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType

from raftlog.wire.quorum.v1 import quorum_pb2 as pb

import grpc  # isort: skip

START_TIMEOUT_S = 30.0
RAFTLOG = str(Path(sys.executable).with_name("raftlog"))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Quorum:
    """Controllers as processes; stopped, and their data removed, at the end of the ``with``."""

    def __init__(self, directory: Path, nodes: int = 3, *, extra: str = "") -> None:
        self.directory = directory
        self.endpoints = [f"127.0.0.1:{port}" for port in free_ports(nodes)]
        self.cluster_id = str(uuid.uuid4())
        self._extra = extra
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Quorum:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        voters = ", ".join(f'"{i + 1}@{endpoint}"' for i, endpoint in enumerate(self.endpoints))
        for node in self.nodes:
            self._config(node).write_text(
                f'process.roles = ["controller"]\nnode.id = {node}\ncluster.id = "{self.cluster_id}"\n'
                f'log.dirs = ["data-{node}"]\ncontroller.quorum.voters = [{voters}]\n{self._extra}'
            )
            subprocess.run(
                [RAFTLOG, "storage", "format", "-c", str(self._config(node))], check=True, stdout=subprocess.DEVNULL
            )
            self.start(node)
        try:
            self.leader()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def nodes(self) -> range:
        """Node ids."""
        return range(1, len(self.endpoints) + 1)

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [process.pid for process in self.processes.values()]

    def _config(self, node: int) -> Path:
        return self.directory / f"node-{node}.toml"

    def start(self, node: int) -> None:
        """Start one node."""
        with (self.directory / f"node-{node}.log").open("ab") as out:
            self.processes[node] = subprocess.Popen(
                [RAFTLOG, "controller", "run", "-c", str(self._config(node))],
                stdout=out,
                stderr=out,
            )

    def signal(self, node: int, number: int) -> None:
        """Send a signal to one node, and reap it if that ends it."""
        self.processes[node].send_signal(number)

    def describe(self, node: int) -> pb.DescribeQuorumResponse | None:
        """What one node says of itself; None if it does not answer."""
        with grpc.insecure_channel(self.endpoints[node - 1]) as channel:
            ask = channel.unary_unary(
                "/raftlog.wire.quorum.v1.Quorum/DescribeQuorum",
                request_serializer=pb.DescribeQuorumRequest.SerializeToString,
                response_deserializer=pb.DescribeQuorumResponse.FromString,
            )
            try:
                return ask(pb.DescribeQuorumRequest(), timeout=2)
            except grpc.RpcError:
                return None

    def leader(self, *, settled: bool = True) -> int:
        """The node that leads, once all running nodes agree on it and have all that is committed. Raises TimeoutError."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            running = [n for n, process in self.processes.items() if process.poll() is None]
            seen = [self.describe(node) for node in running]
            known = [d for d in seen if d is not None]
            leaders = {(d.leader_id, d.leader_epoch) for d in known}
            if len(known) == len(running) and len(leaders) == 1 and known[0].leader_id > 0:
                ends = {d.high_watermark for d in known}
                if not settled or (len(ends) == 1 and -1 not in ends):
                    return known[0].leader_id
            time.sleep(0.02)
        raise TimeoutError(f"no leader within {START_TIMEOUT_S:.0f} s; see {self.directory}")
