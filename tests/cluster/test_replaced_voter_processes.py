"""Autopilot with real processes: a spare replaces a killed controller, which returns as a spare."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit import ControllerProcess, on_files, raftlog, until
from command_runs import Ran

from raftlog.local.cluster import free_ports

AFTER_MS = 3_000


def controller(directory: Path, node_id: int, ports: list[int]) -> ControllerProcess:
    """Nodes 1 to 3 know the voters, and others their addresses."""
    voters = [f"{one}@127.0.0.1:{port}" for one, port in enumerate(ports[:3], 1)]
    servers = [f"127.0.0.1:{port}" for port in ports[:3]]
    known = (
        f"controller.quorum.voters = {json.dumps(voters)}\n"
        if node_id <= 3
        else f"controller.quorum.bootstrap.servers = {json.dumps(servers)}\n"
    )
    settings = f"{known}controller.quorum.voter.replace.after.ms = {AFTER_MS}\n"
    port = ports[node_id - 1]
    return ControllerProcess(directory, node_id, port, cluster_id="spares", settings=settings)


class Quorum:
    """Voters 1 to 3, and node 4 as a spare."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(4)
        self.nodes = [controller(directory, node_id, ports) for node_id in (1, 2, 3, 4)]
        self.at = ",".join(one.endpoint for one in self.nodes)

    def asked(self, *command: object) -> Ran:
        return raftlog(*command, "--bootstrap-controller", self.at)

    def voters(self) -> set[int]:
        """Return the voters in the log; empty while nobody leads or the set is static."""
        asked = self.asked("quorum describe --json")
        if not asked.out:
            return set()
        told = asked.json
        named = told["voters_offset"] is not None and told["leader_id"] is not None
        return {one["node_id"] for one in told["voters"]} if named else set()

    def conditions(self) -> dict[int, str]:
        asked = self.asked("quorum autopilot --json")
        replicas = asked.json["replicas"] if asked.out else ()
        return {one["node_id"]: one["condition"] for one in replicas}


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
        on_files("storage format -c", node.config, *extra)
        node.start()
    until(lambda: quorum.voters() == {1, 2, 3}, "the log names the voters")
    until(lambda: quorum.conditions().get(4) == "ready", "the spare follows")
    assert "every voter fetches" in quorum.asked("quorum autopilot").out

    third.kill()
    until(
        lambda: "node 3 has been silent" in " ".join(quorum.asked("doctor").out.split()),
        "the doctor tells it",
    )
    until(lambda: quorum.voters() == {1, 2, 4}, "the spare has the seat")
    history = quorum.asked("history cluster").out
    assert "node 4 takes its seat" in history
    assert "node 4 takes the vacant seat" in history

    third.start()
    until(lambda: quorum.conditions().get(3) == "ready", "the voter that is back is a spare")
    second.kill()
    until(lambda: quorum.voters() == {1, 3, 4}, "it takes the next seat")
    first.kill()
    until(lambda: quorum.voters() == {1, 3, 4}, "two of three lead")
