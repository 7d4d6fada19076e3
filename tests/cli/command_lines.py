"""Command lines run in this process, and real clusters for them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from command_runs import Ran

from raftlog.cli.main import main
from raftlog.local.cluster import LocalCluster

At = tuple[str, str]
"""The option that names the nodes to connect to."""


class Raftlog:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, command: object = "", *arguments: object) -> Ran:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*str(command).split(), *map(str, arguments)])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err, err
        return Ran(ended.value.code or 0, out, err)

    def succeed(self, command: object, *arguments: object) -> Ran:
        return self(command, *arguments).showed()


@pytest.fixture
def raftlog(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Raftlog]:
    """Run one command line: exit code and output."""
    for name in ("RAFTLOG_BOOTSTRAP_CONTROLLER", "RAFTLOG_BOOTSTRAP_SERVER", "RAFTLOG_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structured = structlog.get_config()
    yield Raftlog(capsys)
    root.handlers[:], root.level = handlers, level
    structlog.configure(**structured)


@pytest.fixture
def at(cluster: LocalCluster) -> At:
    return "--bootstrap-controller", cluster.bootstrap_controllers


@pytest.fixture
def through(cluster: LocalCluster) -> At:
    return "--bootstrap-server", cluster.bootstrap_servers


@contextmanager
def running(directory: Path, brokers: int, controllers: int = 1) -> Iterator[LocalCluster]:
    """Run this number of controllers, from node 1 on, and then brokers, as ready processes."""
    made = LocalCluster(directory, controllers=controllers, brokers=brokers)
    made.generate()
    try:
        made.start_controllers()
        made.wait_leader(120)
        made.start_brokers()
        made.wait_ready([node.name for node in made.nodes], 120)
        yield made
    finally:
        made.delete()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One controller and one broker, as processes of their own."""
    with running(tmp_path_factory.mktemp("cluster") / "c", brokers=1) as made:
        yield made
