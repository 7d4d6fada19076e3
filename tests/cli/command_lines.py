"""Command lines run in this process, and real clusters for them."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from command_runs import Ran
from json_schemas import validator
from reference_pages import json_documents

from raftlog.cli.main import main
from raftlog.local.cluster import LocalCluster


def check_documents(words: Sequence[str], out: str) -> None:
    names = (" ".join(words[:count]) for count in range(4, 0, -1))
    name = next((one for one in names if one in json_documents.PRINTED), "")
    if name:
        whole = out.splitlines() if json_documents.PRINTED[name].lines else filter(None, [out])
        for document in whole:
            validator(name)(json.loads(document))


class Raftlog:
    """Command lines that end with the same options, such as the address of a cluster."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self._capsys, self._options = capsys, options

    def __call__(self, command: object = "", *arguments: object) -> Ran:
        """Run a command line; ``command`` is split as a shell does. A document that it prints has
        to be as declared.
        """
        words = [*shlex.split(str(command)), *map(str, arguments), *self._options]
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err, err
        if "--json" in words:
            check_documents(words, out)
        return Ran(ended.value.code or 0, out, err)

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def succeed(self, command: object, *arguments: object) -> Ran:
        return self(command, *arguments).showed()

    @property
    def address(self) -> str:
        return self._options[-1]

    def by(self, *options: str) -> Raftlog:
        return Raftlog(self._capsys, *options)


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
def at(raftlog: Raftlog, cluster: LocalCluster) -> Raftlog:
    """Command lines that ask the controllers."""
    return raftlog.by("--bootstrap-controller", cluster.bootstrap_controllers)


@pytest.fixture
def through(raftlog: Raftlog, cluster: LocalCluster) -> Raftlog:
    """Command lines that ask the brokers."""
    return raftlog.by("--bootstrap-server", cluster.bootstrap_servers)


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
    """Controller 1 and brokers 2 to 4, as processes of their own."""
    with running(tmp_path_factory.mktemp("cluster") / "c", brokers=3) as made:
        yield made
