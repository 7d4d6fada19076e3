"""Running command lines in this process, and a real controller and broker for those that need a
cluster.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog

from raftlog.cli.main import main
from raftlog.local.cluster import LocalCluster


@dataclass(frozen=True)
class Ran:
    code: int | str
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Raftlog(Protocol):
    """One command line, run to its end."""

    def __call__(self, *arguments: object) -> Ran: ...


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

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        return Ran(ended.value.code or 0, out, err)

    yield run
    root.handlers[:], root.level = handlers, level
    structlog.configure(**structured)


@contextmanager
def running(directory: Path, brokers: int, controllers: int = 1) -> Iterator[LocalCluster]:
    """So many controllers, from node 1 on, and behind them brokers, as processes of their own.

    All are ready.
    """
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
