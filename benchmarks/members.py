"""etcd: three processes on one machine, of the programs built by its own scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from raftlog.local.cluster import free_ports

MEMBERS = 3
START_TIMEOUT_S = 40.0


class Members:
    """A context manager for etcd's members, which are stopped, and their data removed, at the end.
    ``home``: PEERS_HOME/etcd.
    """

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
        """Return the addresses once all members name one leader, the leader's first. Raises
        TimeoutError.
        """
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
