"""``raftlog dev`` driven by a script, a terminal and a program."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, running, until
from command_runs import run_text
from tiers import nightly

import raftlog
from raftlog.local.cluster import LocalCluster, own_environment
from raftlog.local.processes import wait_until

DEV = [sys.executable, "-m", "raftlog", "dev"]
ROOT = Path(__file__).parents[2]
SHAPE = ["--nodes", "3", "--brokers", "2"]


def environment(home: Path) -> dict[str, str]:
    return own_environment() | {"HOME": str(home), "COLUMNS": "80"}


def run(
    home: Path, script: Sequence[str], *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return run_text(
        [*DEV, *options],
        input="".join(f"{line}\n" for line in script),
        env=environment(home) | variables,
        timeout=4 * PATIENCE_S,
    )


def answers(out: str) -> dict[str, str]:
    """Return the replies by line of the script."""
    parts = re.split(r"^raftlog> (.*)\n", out, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@contextmanager
def headless(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    dev = subprocess.Popen(
        [*DEV, "--headless", *options], stdout=subprocess.PIPE, text=True, env=environment(home)
    )
    try:
        assert dev.stdout is not None
        yield dev, json.loads(dev.stdout.readline())
    finally:
        dev.terminate()
        dev.wait(PATIENCE_S)
        assert dev.stdout is not None
        dev.stdout.close()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shape(line: str) -> str:
    """Return a line without its numbers, which differ from run to run."""
    return re.sub(r"\d+(?:\.\d+)?( ms| s)?", "N", line)


def test_readme_session_and_every_command_of_the_prompt_act_on_the_cluster(tmp_path: Path) -> None:
    """Variables for another cluster are ignored."""
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^\$ raftlog dev\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    shown = block[1].splitlines()
    script = [line.removeprefix("raftlog> ") for line in shown if line.startswith("raftlog> ")]
    assert len(script) == 6
    others = {"RAFTLOG_TLS_CA_FILE": "/none", "RAFTLOG_BOOTSTRAP_CONTROLLER": "127.0.0.1:1"}
    done = run(
        tmp_path,
        [
            *script, "sleep 3", "load off", "start", "raftlog doctor",
            "write a=1 b=2", "read a from 5", "pause 6", "read b", "write c=3", "lag", "resume",
            "read c", "cut leader", "status", "heal", "write d=4 committed", "load", "foo", "kill 9",
            "read a from 1", "cut 1 1", "raftlog kv get b", "kill 1", "kill 2", "kill 3", "write e=5",
        ],
        **others,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    printed = [shape(line) for line in done.stdout.splitlines()]
    assert [line for line in map(shape, shown) if line not in printed] == []
    said = answers(done.stdout)
    gap = r"killed controller-\d\nthe longest gap between committed writes was .*; controller-\d leads now\n"
    assert re.fullmatch(gap, said["kill leader"])
    assert re.fullmatch(r"controller-\d ready after .*\n", said["start"])
    assert said["raftlog doctor"].startswith("HEALTHY")
    assert said["write a=1 b=2"].count("visible on every unfenced broker, at offset") == 2
    assert said["read a from 5"].startswith("broker-5: a = 1  (state at offset ")
    assert said["pause 6"] == "paused broker-6; continue with: resume 6\n"
    assert re.fullmatch(
        r"broker-4: b = 2 .*\nbroker-5: b = 2 .*\ndown or paused, not queried: broker-6\n",
        said["read b"],
    )
    assert said["write c=3"] == "c: waiting for broker-6 to apply it\n"
    assert re.search(r"^LAO \d+ of \d+, held back by broker-6 for", said["lag"], re.MULTILINE)
    assert re.search("^c: visible on every unfenced broker", done.stdout, re.MULTILINE)
    assert re.search(
        r"cut controller-\d off from all others\nthe longest gap between committed writes was .*\n",
        said["cut leader"],
    )
    assert re.search(r"^controller-\d .* leader ", said["status"], re.MULTILINE)
    assert said["status"].count("cut: ") == 5
    assert said["heal"] == "healed the partitions\n"
    assert "committed on a majority of the controllers" in said["write d=4 committed"]
    assert said["load"].startswith("load off: ")
    assert said["foo"] == "'foo' is not a command of this prompt; try: help\n"
    assert said["kill 9"].startswith("kill: there is no '9'; the nodes are controller-1,")
    assert said["read a from 1"].startswith("read: brokers serve reads")
    assert said["cut 1 1"] == "cut: a node cannot be cut off from itself\n"
    assert said["raftlog kv get b"].startswith("2")
    lost = "no write can be committed: no majority of the controllers is connected"
    assert lost in said["kill 2"]
    assert said["write e=5"].startswith("e: waiting for the controllers\n")
    directory = re.search(r"data +(\S+), deleted at the end", done.stdout)
    assert directory is not None
    assert not Path(directory[1]).exists()


@pytest.mark.nightly
def test_dev_directory_keeps_the_cluster_for_the_next_start(tmp_path: Path) -> None:
    kept = ("--dir", str(tmp_path / "kept"))
    first = run(tmp_path, ["write k=v"], *SHAPE, *kept)
    assert "k: visible" in first.stdout
    refused = run(tmp_path, [], "--nodes", "1", *kept)
    assert refused.returncode == 2
    assert "contains a cluster of 3 controllers and 2 brokers" in refused.stderr
    with headless(tmp_path, *SHAPE, *kept) as (_, ready):
        with raftlog.connect(ready["bootstrap_servers"]) as client:
            found = client.kv.get("k", read="strict")
            assert found is not None
            assert found.value == b"v"
        again = run(tmp_path, [], *SHAPE, *kept)
        assert again.returncode == 2
        assert "is already running: controller-1" in again.stderr
    nothing = tmp_path / "other"
    nothing.mkdir()
    (nothing / "file").write_text("mine")
    for foreign in (nothing, nothing / "file"):
        refused = run(tmp_path, [], "--dir", str(foreign))
        assert (refused.returncode, (nothing / "file").read_text()) == (2, "mine")
        assert "is neither an empty directory nor the directory of a cluster" in refused.stderr


@pytest.mark.nightly
def test_local_clusters_started_together_use_different_ports(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        both = [headless(tmp_path, "--nodes", "1", "--brokers", "1") for _ in range(2)]
        ready = [one for _, one in pool.map(stack.enter_context, both)]
    ports = [node["endpoint"] for one in ready for node in one["nodes"]]
    assert len(set(ports)) == 4


@pytest.mark.parametrize("number", [nightly(signal.SIGTERM), signal.SIGKILL])
def test_no_process_outlives_dev_even_if_one_is_paused(tmp_path: Path, number: int) -> None:
    with headless(tmp_path, *SHAPE) as (dev, ready):
        pids = [node["pid"] for node in ready["nodes"]]
        assert len(pids) == 5
        os.kill(pids[-1], signal.SIGSTOP)
        dev.send_signal(number)
        code = dev.wait(PATIENCE_S)
    assert code == (0 if number == signal.SIGTERM else -number)
    assert wait_until(lambda: not any(map(runs, pids)), PATIENCE_S)
    assert Path(ready["directory"]).exists() == (number == signal.SIGKILL)


@pytest.mark.nightly
def test_secure_cluster_refuses_a_user_without_permissions(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        ["write k=v", "user alice", "write k=w", "user admin", "read k", "raftlog doctor"],
        *SHAPE,
        "--secure",
    )
    said = answers(done.stdout)
    assert "k: visible" in said["write k=v"]
    assert "CLUSTER_AUTHORIZATION_FAILED" in said["write k=w"]
    assert said["read k"].count("k = v") == 2
    assert said["raftlog doctor"].startswith("HEALTHY")


def test_terminal_has_completion_and_ctrl_d_ends_the_cluster(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable, [*DEV, *SHAPE], environment(tmp_path) | {"TERM": "xterm-256color"}
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown, seen = b"", 0

    def read_until(text: bytes, again: bytes = b"") -> None:
        nonlocal shown, seen
        deadline = time.monotonic() + PATIENCE_S
        while (at := shown.find(text, seen)) < 0:
            assert time.monotonic() < deadline, shown
            os.write(terminal, again)
            if select.select([terminal], [], [], 0.1)[0]:
                part = os.read(terminal, 65536)
                shown += part
                if b"\x1b[6n" in part:  # It asks where the cursor is.
                    os.write(terminal, b"\x1b[1;1R")
        seen = at + len(text)

    read_until(b"LAO ")
    os.write(terminal, b"wri\t")
    read_until(b"te")
    os.write(terminal, b" k=v\r")
    read_until(b"k: visible on every unfenced broker")
    os.write(terminal, b"\x03")
    read_until(b"Ctrl-D or quit stops the cluster.")
    os.write(terminal, b"sleep 1000\r")
    read_until(b"\x1b[?2004l")
    # A Ctrl-C that comes before the prompt has given the terminal back is for the next prompt.
    read_until(b"\x1b[?2004h", again=b"\x03")
    # A terminal drops a Ctrl-D that is typed between two prompts, so wait until the last Ctrl-C, which
    # may have begun another prompt, is processed.
    os.write(terminal, b"help\r")
    read_until(b"A NODE is 2")
    read_until(b"\x1b[?2004h")
    os.write(terminal, b"\x04")
    read_until(b"stopping the cluster")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert (tmp_path / ".local/state/raftlog/dev_history").read_text().count("+write k=v") == 1


@pytest.mark.nightly
def test_isolating_two_nodes_leaves_the_others_connected(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path / "c", controllers=3, brokers=0, cuttable=True)
    with running(made) as cluster:
        leader = cluster.wait_leader(PATIENCE_S)
        follower = next(node for node in cluster.controllers if node != leader)
        cluster.cut(follower.name, [node.name for node in cluster.controllers])
        alone = "1 of 3 voters can be reached"
        until(lambda: alone in cluster.ready(follower.name)[1], alone)
        assert cluster.leader() == leader, "a majority goes on"
        cluster.heal()
        cluster.wait_ready([follower.name], PATIENCE_S)
