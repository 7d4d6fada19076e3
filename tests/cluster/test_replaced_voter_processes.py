"""Autopilot with real processes: a spare takes the seat of a killed controller, which comes back as
a spare, and takes the next seat.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, Ran, raftlog, until

from raftlog.local.cluster import free_ports

AFTER_MS = 3_000


class Node:
    def __init__(self, directory: Path, node_id: int, ports: list[int]) -> None:
        self.id, self.endpoint = node_id, f"127.0.0.1:{ports[node_id - 1]}"
        self.config, self.log = directory / f"c{node_id}.toml", directory / f"c{node_id}.log"
        voters = [f'"{one}@127.0.0.1:{ports[one - 1]}"' for one in (1, 2, 3)]
        servers = [f'"127.0.0.1:{port}"' for port in ports[:3]]
        known = (
            f"controller.quorum.voters = [{', '.join(voters)}]\n"
            if node_id <= 3
            else f"controller.quorum.bootstrap.servers = [{', '.join(servers)}]\n"
        )
        self.config.write_text(
            'process.roles = ["controller"]\n'
            f'node.id = {node_id}\ncluster.id = "spares"\nlog.dirs = ["data-{node_id}"]\n'
            f'listeners = ["{self.endpoint}"]\n{known}'
            f"controller.quorum.voter.replace.after.ms = {AFTER_MS}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "raftlog", "controller", "run", "-c", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)


class Quorum:
    """Voters 1 to 3, and node 4 as a spare."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(4)
        self.nodes = [Node(directory, node_id, ports) for node_id in (1, 2, 3, 4)]
        self.at = ",".join(one.endpoint for one in self.nodes)

    def asked(self, *command: object) -> Ran:
        return raftlog(*command, "--bootstrap-controller", self.at)

    def voters(self) -> set[int]:
        """Voters in the log; empty while nobody leads or the set is static."""
        told = self.asked("quorum", "describe", "--json").json
        named = told["voters_offset"] is not None and told["leader_id"] is not None
        return {one["node_id"] for one in told["voters"]} if named else set()

    def conditions(self) -> dict[int, str]:
        told = self.asked("quorum", "autopilot", "--json").json
        return {one["node_id"]: one["condition"] for one in told["replicas"]}


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    made = Quorum(tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.kill()


@pytest.mark.nightly
def test_killed_controllers_are_replaced_by_spares(quorum: Quorum) -> None:
    first, second, third, spare = quorum.nodes
    for node in quorum.nodes:
        extra = ("--no-initial-controllers",) if node is spare else ()
        assert raftlog("storage", "format", "-c", node.config, *extra).code == 0
        node.start()
    until(lambda: quorum.voters() == {1, 2, 3}, "the log names the voters")
    until(lambda: quorum.conditions().get(4) == "ready", "the spare follows")
    assert "every voter fetches" in quorum.asked("quorum", "autopilot").out

    third.kill()
    until(
        lambda: "Autopilot: node 3 is silent" in quorum.asked("doctor").out, "the doctor tells it"
    )
    until(lambda: quorum.voters() == {1, 2, 4}, "the spare has the seat")
    history = quorum.asked("history", "cluster").out
    assert "node 4 takes its seat" in history
    assert "node 4 takes the vacant seat" in history

    third.start()
    until(lambda: quorum.conditions().get(3) == "ready", "the voter that is back is a spare")
    second.kill()
    until(lambda: quorum.voters() == {1, 3, 4}, "it takes the next seat")
    first.kill()
    until(lambda: quorum.voters() == {1, 3, 4}, "two of three lead")
