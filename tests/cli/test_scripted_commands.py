"""Commands in shell scripts: closed streams, pipes, bytes and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.cli.streams import UNREAD
from raftlog.local.cluster import LocalCluster

PATIENCE_S = 60
RAFTLOG = f"{sys.executable} -m raftlog"


@pytest.fixture
def environment(cluster: LocalCluster) -> dict[str, str]:
    return os.environ | {
        "RAFTLOG_BOOTSTRAP_SERVER": cluster.bootstrap_servers,
        "RAFTLOG_BOOTSTRAP_CONTROLLER": cluster.bootstrap_controllers,
    }


def shell(line: str, environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and stderr of a command line."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], env=environment, check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(("reader", "code"), [("| true", UNREAD), ("> /dev/full", 6)])
def test_records_with_unreported_outcome_fail_the_command(
    environment: dict[str, str], reader: str, code: int
) -> None:
    """[Each was a traceback of a callback, and the exit code 0.]"""
    assert shell(f"{RAFTLOG} topics create unsaid", environment)[0] == 0
    try:
        ended, said = shell(f"seq 500 | {RAFTLOG} produce unsaid {reader}", environment)
    finally:
        assert shell(f"{RAFTLOG} topics delete unsaid", environment)[0] == 0
    assert ended == code
    assert len(said.splitlines()) == (code == 6)


@pytest.mark.parametrize("command", ["produce told", "kv put told -"])
def test_missing_input_is_not_empty_input(environment: dict[str, str], command: str) -> None:
    assert shell(f"{RAFTLOG} {command} <&-", environment) == (
        2,
        "raftlog: standard input is closed: there is nothing to read\n",
    )


def test_unreportable_result_is_not_success(environment: dict[str, str]) -> None:
    lost = "raftlog: standard output is closed: its output is lost\n"
    assert shell(f"{RAFTLOG} kv put made 1 >&-", environment) == (UNREAD, lost)
    assert shell(f"{RAFTLOG} kv get made >&-", environment) == (UNREAD, lost)
    assert shell(f"{RAFTLOG} kv put made 2 --expected-offset -1 2>/dev/full", environment)[0] == 1
    assert shell(f"{RAFTLOG} kv delete made", environment)[0] == 0


def test_json_is_valid_on_an_ascii_terminal(environment: dict[str, str]) -> None:
    """[A traceback and exit code 1, after a change that was made.]"""
    ascii_only = environment | {"PYTHONIOENCODING": "ascii"}
    line = f"{RAFTLOG} configs alter topic déjà --set min.insync.replicas=1 --json"
    code, said = shell(line, ascii_only)
    assert (code, said.count("UNKNOWN_TOPIC_OR_PARTITION")) == (1, 1)
    assert shell(f"{RAFTLOG} kv put made héllo", environment) == (0, "")
    try:
        done = subprocess.run(
            [*RAFTLOG.split(), "kv", "get", "made", "--json"], env=ascii_only, check=True,
            capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
    finally:
        assert shell(f"{RAFTLOG} kv delete made", environment)[0] == 0
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["key_value"]["value"] == "héllo"


def test_value_is_raw_bytes_and_name_is_text(environment: dict[str, str]) -> None:
    assert shell(f"{RAFTLOG} kv put made $'\\xffx'", environment) == (0, "")
    try:
        got = subprocess.check_output([*RAFTLOG.split(), "kv", "get", "made"], env=environment)
    finally:
        assert shell(f"{RAFTLOG} kv delete made", environment)[0] == 0
    assert got == b"\xffx"
    assert shell(f"{RAFTLOG} topics create $'\\xffx'", environment) == (
        2,
        "raftlog: topics[0].name='\\udcffx': not valid UTF-8 (surrogates not allowed)\n",
    )


def test_watch_resumes_with_the_change_that_was_not_read(environment: dict[str, str]) -> None:
    """[It went on after it: the change was lost.]"""
    words = [*RAFTLOG.split(), "watch", "kv/read/*", "--json"]
    put = f"{RAFTLOG} kv put read"
    assert shell(f"{put}/before 1", environment) == (0, "")
    with subprocess.Popen(
        [*words, "--initial"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        initial = process.stdout.readline()
        assert shell(f"{put}/first 1", environment) == (0, "")
        first = process.stdout.readline()
        process.stdout.close()
        assert shell(f"{put}/second 1", environment) == (0, "")
        assert process.wait(PATIENCE_S) == UNREAD
        token = process.stderr.read().split()[-1]
    try:
        since = [*words, "--since", token, "--max-changes", "1", "--timeout", "30"]
        second = subprocess.check_output(since, env=environment, text=True)
    finally:
        assert shell(f"{RAFTLOG} kv delete --prefix read/", environment)[0] == 0
    told = [json.loads(line)["path"] for line in (initial, first, second)]
    assert told == ["kv/read/before", "kv/read/first", "kv/read/second"]


def test_locked_command_ends_when_the_lock_command_is_terminated(
    environment: dict[str, str], raftlog: Raftlog, tmp_path: Path
) -> None:
    """[At SIGTERM the command went on, and others had the lock after its time.]"""
    told = tmp_path / "told"
    runs = f"echo $$ > {told}.new && mv {told}.new {told} && exec sleep 600"
    command = [sys.executable, "-m", "raftlog", "kv", "lock", "job", "--", "sh", "-c", runs]
    with subprocess.Popen(command, env=environment) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not told.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
    pid = int(told.read_text())
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        left = False
    else:
        left = True
    assert not left
    servers = environment["RAFTLOG_BOOTSTRAP_SERVER"]
    listed = raftlog("kv list locks/job/ --read strict --json --bootstrap-server", servers)
    assert listed.json["items"] == []
