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
    environment: dict[str, str], through: Raftlog, reader: str, code: int
) -> None:
    """[Each was a traceback of a callback, and the exit code 0.]"""
    through.succeed(f"topics create unsaid-{code}")
    ended, said = shell(f"seq 500 | {RAFTLOG} produce unsaid-{code} {reader}", environment)
    assert ended == code
    assert len(said.splitlines()) == (code == 6)


@pytest.mark.parametrize("command", ["produce told", "kv put told -"])
def test_missing_input_is_not_empty_input(environment: dict[str, str], command: str) -> None:
    assert shell(f"{RAFTLOG} {command} <&-", environment) == (
        2,
        "raftlog: standard input is closed: there is nothing to read\n",
    )


def test_unreportable_result_is_not_success(environment: dict[str, str], through: Raftlog) -> None:
    lost = "raftlog: standard output is closed: its output is lost\n"
    assert shell(f"{RAFTLOG} kv put made 1 >&-", environment) == (UNREAD, lost)
    assert shell(f"{RAFTLOG} kv put made 2 --expected-offset -1 2>/dev/full", environment)[0] == 1
    through("kv get made --read latest").showed("1")
    through.succeed("kv delete made")


def test_json_is_valid_on_an_ascii_terminal(environment: dict[str, str], through: Raftlog) -> None:
    """[A traceback and exit code 1, after a change that was made.]"""
    ascii_only = environment | {"PYTHONIOENCODING": "ascii"}
    line = f"{RAFTLOG} configs alter topic déjà --set min.insync.replicas=1 --json"
    code, said = shell(line, ascii_only)
    assert (code, said.count("UNKNOWN_TOPIC_OR_PARTITION")) == (1, 1)
    through.succeed("kv put made héllo --acks visible")
    got = subprocess.check_output([*RAFTLOG.split(), "kv", "get", "made", "--json"], env=ascii_only)
    assert got.isascii()
    assert json.loads(got)["key_value"]["value"] == "héllo"
    through.succeed("kv delete made")


def test_value_is_raw_bytes_and_name_is_text(environment: dict[str, str], through: Raftlog) -> None:
    through.succeed("kv put --acks visible made", "\udcffx")
    assert subprocess.check_output([*RAFTLOG.split(), "kv", "get", "made"], env=environment) == (
        b"\xffx"
    )
    through.succeed("kv delete made")
    assert through("topics create", "\udcffx").refused(2).err == (
        "raftlog: topics[0].name='\\udcffx': not valid UTF-8 (surrogates not allowed)\n"
    )


def test_watch_resumes_with_the_change_that_was_not_read(
    environment: dict[str, str], through: Raftlog
) -> None:
    """[It went on after it: the change was lost.]"""
    through.succeed("kv put read/before 1")
    with subprocess.Popen(
        [*RAFTLOG.split(), "watch", "kv/read/*", "--json", "--initial"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        told = [process.stdout.readline()]
        through.succeed("kv put read/first 1")
        told.append(process.stdout.readline())
        process.stdout.close()
        through.succeed("kv put read/second 1")
        assert process.wait(PATIENCE_S) == UNREAD
        token = process.stderr.read().split()[-1]
    told.append(through("watch kv/read/* --json --max-changes 1 --timeout 30 --since", token).out)
    paths = [f"kv/read/{name}" for name in ("before", "first", "second")]
    assert [json.loads(line)["path"] for line in told] == paths
    through.succeed("kv delete --prefix read/")


def test_locked_command_ends_when_the_lock_command_is_terminated(
    environment: dict[str, str], through: Raftlog, tmp_path: Path
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
    assert through("kv list locks/job/ --read strict --json").json["items"] == []
