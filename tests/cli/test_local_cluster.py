"""Local clusters: their files and ports, and processes that outlive a command."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import cast

import pytest
import typer
from command_runs import run_text

from raftlog.cli.command import Answer as Started
from raftlog.cli.exits import FailedError
from raftlog.client.quorum_queries import Answer, Quorum
from raftlog.endpoint import LANE_PORT_OFFSET
from raftlog.errors import ConfigError
from raftlog.local import commands, processes
from raftlog.local.cluster import LocalCluster, LocalStatus, free_ports
from raftlog.local.processes import Daemons, wait_until
from raftlog.node.config.load import load_config
from raftlog.node.storage.directory import read_identity
from raftlog.wire.quorum.v1 import quorum_pb2

start_quorum: Callable[..., Started[LocalStatus]] = partial(
    commands.start, cast(typer.Context, SimpleNamespace(obj="controller"))
)


def test_generate_writes_valid_configurations_and_formats(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path / "c", controllers=3, brokers=2, settings={"broker.session.timeout.ms": 5000}
    )
    cluster.generate()
    assert [node.name for node in cluster.nodes] == [
        "controller-1",
        "controller-2",
        "controller-3",
        "broker-4",
        "broker-5",
    ]
    assert len({port for node in cluster.nodes for port in (node.port, node.http_port)}) == 10
    for node in cluster.nodes:
        config = load_config(cluster.config_path(node.name), environment={})
        assert config.role == node.role
        assert config.node_id == node.node_id
        assert config.listener.port == node.port
        identity = read_identity(config.directory)
        assert (identity.cluster_id, identity.node_id) == (cluster.cluster_id, node.node_id)
    assert (
        load_config(
            cluster.config_path("controller-1"), environment={}
        ).settings.broker_session_timeout_ms
        == 5000
    )


def test_reopened_local_cluster_is_the_same_and_can_grow(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    first.generate()
    second = LocalCluster(tmp_path / "c")
    second.generate()
    assert (second.cluster_id, second.nodes) == (first.cluster_id, first.nodes)
    added = second.add_broker()
    assert (added.name, LocalCluster(tmp_path / "c").brokers) == ("broker-2", [added])
    with pytest.raises(ConfigError, match="no node 'broker-9'"):
        second.node("broker-9")


def test_local_cluster_counts_ports_from_its_base(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=2, brokers=0, base_port=20500)
    cluster.generate()
    added = cluster.add_broker()
    assert [node.port for node in cluster.nodes] == [20500, 20501, added.port]
    assert {added.port, added.http_port} == {20504, 20505}


@pytest.mark.parametrize(("base_port", "nodes"), [(20600, None), (None, 3)])
def test_start_refuses_another_shape_when_the_directory_holds_a_cluster(
    tmp_path: Path, base_port: int | None, nodes: int | None
) -> None:
    """[it went on with the old cluster, and ignored --base-port]"""
    LocalCluster(tmp_path / "c", controllers=2, brokers=0, base_port=20500).generate()
    with pytest.raises(
        ConfigError, match=r"of 2 controllers with ports from 20500.* --delete --dir"
    ):
        start_quorum(controllers=nodes, base_port=base_port, directory=tmp_path / "c", timeout=1)


IN_ORDER = """\
import random
from raftlog.local.cluster import free_ports
random.sample = lambda blocks, count: blocks
print(free_ports(150), flush=True)
input()
"""


def test_free_ports_exclude_those_of_previous_calls_and_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[Nodes of two clusters received one port, or that of a lane, and did not start.]"""
    monkeypatch.setattr("random.sample", lambda blocks, count: blocks)
    with Popen([sys.executable, "-c", IN_ORDER], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        taken = [json.loads(other.stdout.readline())] + [free_ports(50) for _ in range(3)]
        other.communicate("\n")
    used = [port + lane for ports in taken for port in ports for lane in (0, LANE_PORT_OFFSET)]
    assert len(set(used)) == 600
    with socket.socket() as free:
        free.bind(("127.0.0.1", taken[-1][0]))


def test_node_that_exits_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    cluster.generate()
    path = cluster.config_path("controller-1")
    path.write_text(path.read_text() + "nonsense = 1\n")
    cluster.log_path("controller-1").write_text("the last word of its life before\n")
    cluster.start_controllers()
    with pytest.raises(FailedError, match="nonsense: unknown key") as ended:
        cluster.wait_ready(["controller-1"], 120)
    assert "life before" not in str(ended.value)
    with pytest.raises(FailedError, match="nonsense: unknown key"):
        cluster.wait_leader(120)


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf',"
        " flush=True); time.sleep(600)"
    ),
]


def test_child_that_exits_leaves_no_zombie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = Daemons(tmp_path)
    pid = daemons.start("sleeper", SLEEPER, dict(os.environ))
    started = processes._started

    def ends(pid: int) -> int:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return started(pid)

    monkeypatch.setattr(processes, "_started", ends)
    assert daemons.wait_gone("sleeper", 10.0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_python_exits_without_a_warning_about_daemons(tmp_path: Path) -> None:
    """Whether the daemon has ended or outlives the command."""
    program = f"""
import os, pathlib, sys
from raftlog.local.processes import Daemons
daemons = Daemons(pathlib.Path({str(tmp_path)!r}))
print(daemons.start("sleeper", {SLEEPER!r}, dict(os.environ)))
ended = daemons.start("ended", [sys.executable, "-c", ""], dict(os.environ))
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
"""
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    ran = run_text(command, check=True)
    os.kill(int(ran.stdout), signal.SIGKILL)
    assert ran.stderr == ""


def test_stop_sends_sigterm_and_then_sigkill(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    daemons.start("sleeper", SLEEPER, dict(os.environ))
    daemons.start("deaf", DEAF, dict(os.environ))
    assert wait_until(lambda: "deaf" in daemons.tail("deaf"), 60)
    pids = [pid for pid in (daemons.pid("sleeper"), daemons.pid("deaf")) if pid is not None]
    assert len(pids) == 2
    assert daemons.stop(["sleeper", "deaf"], 1.0) == ["deaf"]
    assert [daemons.pid("sleeper"), daemons.pid("deaf")] == [None, None]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list(tmp_path.glob("*.pid"))


def test_another_opener_recognizes_the_process_and_can_stop_it(tmp_path: Path) -> None:
    ours = Daemons(tmp_path)
    pid = ours.start("sleeper", SLEEPER, dict(os.environ))
    theirs = Daemons(tmp_path)
    assert theirs.pid("sleeper") == pid
    assert theirs.signal("sleeper", signal.SIGSTOP)
    assert ours.stop(["sleeper"], 60) == []
    assert theirs.pid("sleeper") is None


def test_reused_pid_is_not_taken_for_the_node(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    (tmp_path / "other.pid").write_text(f'{{"pid": {os.getpid()}, "started": 1}}')
    assert daemons.pid("other") is None
    assert not daemons.signal("other", signal.SIGKILL)
    (tmp_path / "broken.pid").write_text("")
    assert daemons.pid("broken") is None


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replace the nodes of local clusters: these answers describe the quorum. Return the names of
    the nodes that are stopped.
    """

    def replace(*answers: Answer, ready: bool = True) -> list[str]:
        stopped: list[str] = []
        fakes: dict[str, Callable[..., object]] = {
            "quorum": lambda self, timeout_s=2.0: Quorum(answers),
            "start": lambda self, name: 1,
            "stop": lambda self, names, timeout_s=10.0: stopped.extend(names),
        }
        if ready:
            fakes["ready"] = lambda self, name, timeout_s=1.0: (True, "")
        for name, fake in fakes.items():
            monkeypatch.setattr(LocalCluster, name, fake)
        return stopped

    return replace


OUTSIDE = Answer(
    "127.0.0.1:1", quorum_pb2.DescribeQuorumResponse(node_id=9, role="leader", leader_epoch=4)
)


def test_leader_outside_counts_as_ready(tmp_path: Path, led: Callable[..., list[str]]) -> None:
    """Voters can be added manually: the cluster is up whoever leads it."""
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=0)
    cluster.generate()
    led(OUTSIDE)
    assert cluster.wait_leader_id(1) == 9
    with pytest.raises(ConfigError, match="no node 'controller-9'"):
        cluster.wait_leader(1)


def test_start_leaves_nodes_running_whoever_leads(
    tmp_path: Path, led: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command must not stop its nodes because a voter leads that it does not know."""
    stopped = led(OUTSIDE)
    started = start_quorum(controllers=1, base_port=None, directory=tmp_path / "c", timeout=5)
    assert stopped == []
    started.show()
    assert "controller 9 leads cluster" in capsys.readouterr().out


def test_waiting_node_is_left_running_unless_the_cluster_is_new(
    tmp_path: Path, led: Callable[..., list[str]]
) -> None:
    """It may be the only survivor of a lost majority, or no voter yet."""
    stopped = led(ready=False)
    start: Callable[..., object] = partial(
        start_quorum, controllers=1, base_port=None, directory=tmp_path / "c", timeout=0.2
    )
    with pytest.raises(FailedError) as first:
        start()
    assert stopped == ["controller-1"]
    assert "goes on" not in str(first.value)
    with pytest.raises(FailedError, match="keep running; run raftlog doctor") as again:
        start(names=["controller-1"])
    assert stopped == ["controller-1"], "of the first start alone"
    assert again.value.exit == first.value.exit
