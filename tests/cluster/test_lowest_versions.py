"""The client library and the commands on the lowest versions of their dependencies."""

import json
import re
from pathlib import Path

import pytest
from cluster_kit import cluster_of
from installed import INSTALL_S, build_wheels, install, lowest_versions, virtual_environment
from test_examples import EXAMPLES, SAY, brokers, output

from raftlog.local.cluster import LocalCluster

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(INSTALL_S)]


@pytest.fixture(scope="module")
def lowest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the lowest versions."""
    directory = tmp_path_factory.mktemp("lowest")
    (wheel,) = build_wheels(directory).glob("raftlog-*.whl")
    constraints = directory / "lowest.txt"
    constraints.write_text(lowest_versions("cli"))
    python = virtual_environment(directory / "application")
    install(python, "--constraint", constraints, f"{wheel}[cli]")
    return python.parent


cluster = cluster_of(controllers=3, brokers=3)


@pytest.mark.parametrize("name", SAY)
def test_example_runs_on_lowest_versions(name: str, lowest: Path, cluster: LocalCluster) -> None:
    said = output([lowest / "python", EXAMPLES / name, brokers(cluster)], EXAMPLES)
    assert re.search(SAY[name], said), said


def test_commands_run_on_the_lowest_versions(lowest: Path, cluster: LocalCluster) -> None:
    def raftlog(command: str, *arguments: str) -> str:
        return output([lowest / "raftlog", *command.split(), *arguments], lowest)

    at = ["--bootstrap-server", brokers(cluster)]
    assert raftlog("--version").startswith("raftlog ")
    assert "create" in raftlog("topics --help")
    raftlog("topics create lowest --partitions 2 --acks visible", *at)
    described = json.loads(raftlog("topics describe lowest --json", *at))
    assert [len(one["partitions"]) for one in described["items"]] == [2]
