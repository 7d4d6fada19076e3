"""The pytest plug-in in its own runs of pytest; every block of docs/testing.md, and its example."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from command_runs import run_text
from inner_pytest import PYTEST, run_pytest
from test_account import two_tellers
from tiers import nightly

from raftlog.local import cluster as local
from raftlog.local.cluster import LocalCluster
from raftlog.local.processes import wait_until
from raftlog.testing import SeedFailedError, reaper, sweep
from raftlog.testing.cluster_session import ClusterSession
from raftlog.testing.plugin import SEEDS as DEFAULT_SEEDS
from raftlog.testing.plugin import seeds_of
from raftlog.testing.slate import Slate

PATIENCE_S = 60.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for the files of this test's clusters only."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    # What it has found out before.
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield place
    assert wait_until(lambda: not [*place.glob("raftlog-*")], PATIENCE_S), [*place.rglob("*")]
    assert reaper.pids_of(str(place)) == []


def run(directory: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_user.py").write_text(text)
    return run_pytest(directory, *arguments, "test_user.py", timeout_s=PATIENCE_S * 3)


EVERYTHING = """
import asyncio

import raftlog


def test_writes_all_kinds(raftlog_cluster):
    with raftlog_cluster.connect() as client:
        client.topics.create("orders", partitions=3, configs={"retention.ms": 5_000})
        client.configs.alter("cluster", set={"log.retention.ms": 86_400_000})
        client.configs.alter("client-metrics", "m", set={"metrics": "a"})
        client.kv.put("k", "1")
        client.kv.put("live", "x", lease_id=client.leases.grant(60).id)
        client.export_cursors.set("nightly", 3)
        client.hostnames.set("host-9", 9)
        client.produce("orders", "hello")
    async def left_open():
        await raftlog_cluster.connect_async().kv.put("left", "1")
    asyncio.run(left_open())


def empty(client):
    assert client.topics.list() == []
    assert client.kv.list() == []
    assert client.leases.list() == []
    assert client.export_cursors.list() == []
    assert "host-9" not in [one.hostname for one in client.hostnames.list()]
    assert client.configs.describe("cluster")["log.retention.ms"].is_default
    assert client.configs.describe("client-metrics", "m")["metrics"].value == ""
    brokers = client.brokers.list()
    assert [one.fenced for one in brokers] == [False] * 3


def test_sees_none_of_it_and_breaks_nodes(raftlog_cluster):
    client = raftlog_cluster.connect()
    empty(client)
    (leader,) = {raftlog_cluster.leader}
    raftlog_cluster.kill(leader)
    raftlog_cluster.pause(raftlog_cluster.brokers[0])
    raftlog_cluster.kill(raftlog_cluster.brokers[1])
    client.kv.put("k", "2")
    assert "active controller" in raftlog_cluster.log(leader)
    assert raftlog_cluster.address(leader) in raftlog_cluster.bootstrap_controllers


def test_finds_all_nodes_again(raftlog_cluster):
    client = raftlog_cluster.connect()
    empty(client)
    raftlog_cluster.pause(raftlog_cluster.brokers[0])
    raftlog_cluster.resume(raftlog_cluster.brokers[0])
    raftlog_cluster.kill(raftlog_cluster.brokers[0])
    raftlog_cluster.start(raftlog_cluster.brokers[0])
    client.kv.put("k", "3", acks="visible")


def test_does_what_cannot_be_undone(raftlog_cluster):
    client = raftlog_cluster.connect(controllers=raftlog_cluster.bootstrap_controllers)
    empty(client)
    assert len(client.quorum.describe().voters) == 3
    raftlog_cluster.kill(raftlog_cluster.brokers[0])
    client.brokers.unregister(min(one.id for one in client.brokers.list()))


def test_has_a_cluster_all_the_same(raftlog_cluster):
    empty(raftlog_cluster.connect())
"""


def test_plugin_isolates_tests_from_each_other(tmp_path: Path, temporary: Path) -> None:
    ran = run(tmp_path, EVERYTHING, "-W", "error")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


@pytest.mark.nightly
def test_each_worker_of_xdist_has_a_cluster(tmp_path: Path, temporary: Path) -> None:
    text = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_alone(raftlog_cluster, number, tmp_path_factory, worker_id):
    (tmp_path_factory.getbasetemp().parent / f"seen-{worker_id}").write_text(raftlog_cluster.bootstrap_servers)
    client = raftlog_cluster.connect()
    assert client.kv.list() == []
    for count in range(20):
        client.kv.put("same", str(count), acks="visible")
    assert client.kv.get("same").text == "19"
"""
    ran = run(tmp_path, text, "-n", "2", "--basetemp", str(tmp_path / "base"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout
    addresses = [one.read_text().split(",") for one in (tmp_path / "base").glob("seen-*")]
    assert len(addresses) == 2
    assert not {*addresses[0]} & {*addresses[1]}


WAITS = """
import pathlib, time

def test_waits(raftlog_cluster):
    raftlog_cluster.pause(raftlog_cluster.brokers[0])
    pathlib.Path("ready").write_text("")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "number", [nightly(signal.SIGINT), signal.SIGKILL, nightly(signal.SIGTERM)]
)
def test_interrupted_run_leaves_no_files_or_processes(
    number: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "test_user.py").write_text(WAITS)
    process = subprocess.Popen(
        [*PYTEST, "test_user.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ready = tmp_path / "ready"
    assert wait_until(lambda: ready.exists() or process.poll() is not None, PATIENCE_S)
    assert ready.exists(), process.communicate()[0]
    assert len(reaper.pids_of(str(temporary))) == 6
    # As a terminal does: to all processes of the group.
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)


@pytest.mark.nightly
def test_crashed_worker_leaves_nothing_and_is_replaced(tmp_path: Path, temporary: Path) -> None:
    text = """
import os

def test_crashes(raftlog_cluster):
    os._exit(3)

def test_continues(raftlog_cluster):
    raftlog_cluster.connect().kv.put("k", "1")
"""
    ran = run(tmp_path, text, "-n", "1")
    assert "1 failed, 1 passed" in ran.stdout


@pytest.mark.nightly
def test_paused_cluster_does_not_hang_at_the_end(tmp_path: Path, temporary: Path) -> None:
    text = """
def test_pauses_all(raftlog_cluster):
    client = raftlog_cluster.connect(timeout_s=1)
    client.kv.put("k", "1")
    for name in (*raftlog_cluster.controllers, *raftlog_cluster.brokers):
        raftlog_cluster.pause(name)
"""
    began = time.monotonic()
    ran = run(tmp_path, text)
    assert ran.returncode == 0, ran.stdout
    assert time.monotonic() - began < 30


@pytest.mark.nightly
def test_event_loops_of_pytest_asyncio_and_anyio_work(tmp_path: Path, temporary: Path) -> None:
    text = """
import pytest

@pytest.fixture(scope="module", params=["asyncio"])
def anyio_backend(request):
    return request.param

@pytest.fixture
async def client(raftlog_cluster):
    async with raftlog_cluster.connect_async() as client:
        yield client

@pytest.mark.anyio
@pytest.mark.parametrize("number", range(3))
async def test_has_a_loop_of_its_own(client, raftlog_cluster, number):
    assert await client.kv.list() == []
    await client.kv.put("k", "1")
    assert raftlog_cluster.leader
"""
    ran = run(tmp_path, text, "-W", "error")
    assert "3 passed" in ran.stdout, ran.stdout
    # pytest-asyncio, with loops of the session and of functions.
    text = text.replace("@pytest.mark.anyio", '@pytest.mark.asyncio(loop_scope="session")')
    text = text.replace(
        "@pytest.fixture\n",
        "import pytest_asyncio\n@pytest_asyncio.fixture(loop_scope='session', scope='function')\n",
    )
    arguments = [*PYTEST[:-2], "-o", "asyncio_default_fixture_loop_scope=function", "test_user.py"]
    (tmp_path / "test_user.py").write_text(text)
    ended = run_text(arguments, cwd=tmp_path, timeout=PATIENCE_S)
    assert "3 passed" in ended.stdout, ended.stdout


def test_run_without_the_fixtures_imports_nothing(tmp_path: Path) -> None:
    text = """
import sys

def test_of_somebody_else():
    own = [name for name in sys.modules if name.split(".")[0] in ("raftlog", "simulation", "controller", "broker", "grpc", "google", "structlog")]
    assert sorted(own) == ["raftlog", "raftlog.testing", "raftlog.testing.plugin"]
"""
    ran = run(tmp_path, text, "-W", "error")
    assert ran.returncode == 0, ran.stdout


def test_missing_extra_is_reported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['rocksdict'] = None\n")
    ran = run(tmp_path, "def test_it(raftlog_cluster): pass\n")
    assert ran.returncode != 0
    assert "raftlog.testing needs rocksdict: pip install 'raftlog[testing]'" in ran.stdout


# --- seeds ---------------------------------------------------------------------------------------


SEEDS = """
def test_seed(raftlog_seed):
    assert raftlog_seed != 7, "seed of trouble"
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "1 failed, 19 passed"), (("--raftlog-seeds", "7-8"), "1 failed, 1 passed")],
)
def test_plugin_runs_the_given_seeds(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = run(tmp_path, SEEDS, *arguments)
    assert said in ran.stdout
    assert "test_user.py::test_seed[7]" in ran.stdout


def test_whole_story_is_shown_with_a_failure(tmp_path: Path) -> None:
    text = """
import asyncio
from raftlog.testing import simulated

async def main(cluster):
    for number in range(100):
        cluster.note(f"step {number}")
    assert cluster.seed != 4, "trouble"

def test_it(raftlog_seed):
    simulated(main, seed=raftlog_seed, faults={})
"""
    ran = run(tmp_path, text, "--raftlog-seeds", "4-4")
    assert "raftlog: story of seed 4" in ran.stdout
    assert ran.stdout.count("step 5\n") == 1
    assert ran.stdout.count("step 99\n") == 2
    assert "AssertionError: trouble" in ran.stdout
    # Of all frames those of the test alone.
    assert "def simulated(" not in ran.stdout


@pytest.mark.parametrize("text", ["", "0", "-1", "3-", "5-3", "x"])
def test_invalid_number_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="a number of seeds, or FIRST-LAST"):
        seeds_of(text)


# --- starts that fail ----------------------------------------------------------------------------


def test_taken_ports_are_replaced(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the nodes start, the ports of the first attempt belong to another cluster: its nodes
    answer there, and report ready.
    """
    original, tries = local.free_ports, []
    other = ClusterSession(brokers=1, controllers=1)
    first = other.clean()

    def free_ports(count: int) -> list[int]:
        tries.append(count)
        if len(tries) == 1:
            return [node.port for node in first.nodes] + [node.http_port for node in first.nodes]
        return original(count)

    monkeypatch.setattr(local, "free_ports", free_ports)
    session = ClusterSession(controllers=1, brokers=1)
    try:
        second = session.clean()
        assert len(tries) == 2
        assert {node.port for node in second.nodes}.isdisjoint(node.port for node in first.nodes)
        assert len(session.replaced) == 1
    finally:
        session.end()
        other.end()


@pytest.mark.nightly
def test_failed_start_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "program", lambda *_: [sys.executable, "-c", "exit(3)"])
    session = ClusterSession()
    with pytest.raises(Exception, match="controller-1 is not running"):
        session.clean()
    session.end()


def test_incomplete_cleaning_replaces_the_cluster(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ClusterSession(controllers=1, brokers=1)
    try:
        before = session.clean()
        with_key = Slate(before.bootstrap_servers, before.bootstrap_controllers)
        with_key._client.kv.put("k", "1")
        with_key.close()

        async def nothing(*_: object) -> None:
            pass

        monkeypatch.setattr("raftlog.testing.slate._undo", nothing)
        after = session.clean()
        assert after.cluster_id != before.cluster_id
        assert session.replaced == ["a test has left changes behind: keys"]
        pids = reaper.pids_of(str(temporary))
        assert len(pids) == 2
    finally:
        session.end()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


ROOT = Path(__file__).parents[2]


PAGE = (ROOT / "docs" / "testing.md").read_text()
FINDS = (0,)
"""Seeds with which the mistake of the example is found."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def pytest_of(directory: Path, *arguments: str) -> str:
    ended = run_pytest(directory, "-W", "error", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_programs_of_the_page_pass_with_a_few_seeds(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text("\n".join(blocks("python")))
    assert "7 passed" in pytest_of(tmp_path, "--raftlog-seeds", "3")


def test_other_blocks_of_the_page_are_correct() -> None:
    install, commands = blocks("console")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install == "$ pip install 'raftlog[testing]'\n"
    assert "testing" in project["optional-dependencies"]
    counts = []
    for line in commands.splitlines():
        arguments = line.removeprefix("$ pytest test_page.py -k two_programs").split()
        assert arguments[:-1] in ([], ["--raftlog-seeds"])
        counts.append(len(seeds_of(arguments[-1] if arguments else str(DEFAULT_SEEDS))))
    assert counts == [20, 40, 1]
    assert "def test_two_programs_" in "\n".join(blocks("python"))
    (story,) = blocks("text")
    for line in story.splitlines():
        assert re.fullmatch(r" {1,4} ?\d+\.\d{3} [\w]{2,11} +\S.*", line), line
    assert (
        sum(map(len, (blocks(kind) for kind in ("python", "console", "text"))))
        == PAGE.count("```") // 2
    )


def test_page_and_its_code_fit_into_80_columns() -> None:
    prose = [line for line in PAGE.splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 80] == []


def test_example_fails_when_only_the_lock_is_trusted() -> None:
    with pytest.raises(SeedFailedError, match=r"\A1 of 1 seeds failed: 0\n") as failed:
        sweep(partial(two_tellers, guarded=False), FINDS)
    assert re.search(r"(ann|bob) +pause for \d+", failed.value.story)
    assert "kv.alter(" in failed.value.story


def test_corrected_example_passes_where_the_other_fails() -> None:
    assert len(sweep(partial(two_tellers, guarded=True), FINDS)) == len(FINDS)


@pytest.mark.nightly
def test_example_passes_as_users_run_it(tmp_path: Path) -> None:
    directory = shutil.copytree(ROOT / "examples" / "testing", tmp_path / "example")
    assert "202 passed" in pytest_of(directory, "--raftlog-seeds", "200", ".")


@pytest.mark.nightly
def test_five_of_twenty_seeds_find_the_mistake() -> None:
    with pytest.raises(SeedFailedError) as failed:
        sweep(partial(two_tellers, guarded=False), range(20))
    found = re.match(r"(\d+) of 20 seeds failed", str(failed.value))
    assert found
    assert int(found[1]) >= 5
