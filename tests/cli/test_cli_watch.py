"""``raftlog watch`` and ``raftlog log dump --follow``, on a running cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from command_lines import Raftlog

import raftlog as library
from raftlog.cli.watch import line
from raftlog.client.watch import Change
from raftlog.local.cluster import LocalCluster
from raftlog.outcome import Token

PATIENCE_S = 60


@contextmanager
def running(cluster: LocalCluster, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "raftlog", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "RAFTLOG_BOOTSTRAP_SERVER": cluster.bootstrap_servers,
            "RAFTLOG_BOOTSTRAP_CONTROLLER": cluster.bootstrap_controllers,
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_changes_one_a_line_until_ctrl_c_and_how_to_go_on(
    raftlog: Raftlog, cluster: LocalCluster
) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    assert raftlog("topics", "create", "seen", *at, "--acks", "visible").code == 0

    def alter(value: int) -> None:
        command = ("configs", "alter", "topic", "seen", "--set", f"retention.ms={value}", *at)
        assert raftlog(*command).code == 0

    with running(cluster, "watch", "topics/seen", "configs/topic/seen", "--initial") as process:
        assert process.stdout is not None
        # It is under way once it has told what there is.
        assert " topics/seen is id " in process.stdout.readline()
        alter(1000)
        alter(2000)
        first, second = process.stdout.readline(), process.stdout.readline()
        assert " configs/topic/seen/retention.ms created: 1000" in first
        assert " configs/topic/seen/retention.ms 1000 → 2000" in second
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGINT
    since = err.split()[-1]
    assert err == f"raftlog: to go on: --since {since}\n"
    # The controller may have written a PROGRESS record meanwhile: the token is behind that, and
    # behind nothing else.
    last, told = int(second.split()[0]), Token.parse(since).offset
    window = ("--from", last + 1, "--until", told + 1)
    quorum = ("--bootstrap-controller", cluster.bootstrap_controllers)
    dumped = raftlog("log", "dump", *window, "--json", *quorum).out if told != last else ""
    passed = [json.loads(line)["type"] for line in dumped.splitlines()]
    assert passed == ["PROGRESS"] * (told - last)
    alter(3000)
    later = raftlog("watch", "configs", "--since", since, "--max-changes", "1", "--json", *at)
    assert later.code == 0
    assert (later.json["path"], later.json["before"], later.json["after"]) == (
        "configs/topic/seen/retention.ms", "2000", "3000"
    )  # fmt: skip
    assert later.json["token"].endswith(f"-{later.json['offset']}")
    assert raftlog("watch", "topics", "--timeout", "0.3", *at).out == ""


def test_the_log_as_it_grows(raftlog: Raftlog, cluster: LocalCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    assert raftlog("topics", "create", "followed-1", *at).code == 0
    with running(cluster, "log", "dump", "--follow", "--type", "TOPIC", "--json") as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["record"]["name"] != "followed-1":
            pass
        assert raftlog("topics", "create", "followed-2", *at).code == 0
        assert json.loads(process.stdout.readline())["record"]["name"] == "followed-2"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("topic/orders",), 1, "did you mean 'topics/orders'?"),
        (("topics", "--since", "7"), 2, "is no token"),
        (("topics", "--since", "0-1-2", "--initial"), 2, "not both"),
    ],
)
def test_what_makes_no_sense_is_said(
    raftlog: Raftlog, cluster: LocalCluster, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = raftlog("watch", *arguments, "--bootstrap-server", cluster.bootstrap_servers)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_follow_reads_a_running_cluster_alone(raftlog: Raftlog) -> None:
    assert raftlog("log", "dump", "--follow", "--until", "5").code == 2
    assert raftlog("log", "dump", "--follow", "-e", "somewhere").code == 2


def test_a_line_says_who() -> None:
    change = Change(
        "broker", "4", "brokers/4", {"fenced": False}, {"fenced": True}, 7, 61_000,
        "User:ann", False, Token(0, 1, 7),
    )  # fmt: skip
    assert line(change) == "      7 00:01:01 brokers/4 fenced: false → true by User:ann"


# --- ``raftlog produce`` and ``raftlog consume`` -------------------------------------------------


RAW = b"\xff\xfe\x80 \xe2\x82\xac"
TEXT = "\N{EURO SIGN} 5"


def command(cluster: LocalCluster, *words: str, given: bytes = b"") -> bytes:
    """Run a command with pipes for its streams."""
    line = [sys.executable, "-m", "raftlog", *words]
    at = ["--bootstrap-server", cluster.bootstrap_servers]
    return subprocess.run([*line, *at], input=given, capture_output=True, check=True).stdout


def test_records_come_out_as_they_went_in(raftlog: Raftlog, cluster: LocalCluster) -> None:
    """[ff fe 80 came out as ef bf bd, in text and in JSON]"""
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    assert raftlog("topics", "create", "raw", *at).code == 0
    command(cluster, "produce", "raw", "--key-separator", ":", given=RAW + b":" + RAW + b"\n")
    with library.connect(cluster.bootstrap_servers) as client:
        client.produce("raw", TEXT, key=None, headers={"a": "b", "raw": RAW, "none": None})
        client.produce("raw", None, headers=[("a", b""), ("a", b"1")])
        read = list(client.consume("raw", offset="earliest", idle_timeout_s=0.5))
    assert [(one.key, one.value) for one in read] == [
        (RAW, RAW),
        (None, TEXT.encode()),
        (None, None),
    ]
    assert [one.headers for one in read] == [
        (),
        (("a", b"b"), ("raw", RAW), ("none", None)),
        (("a", b""), ("a", b"1")),
    ]
    all_ = ("consume", "raw", "--from-beginning", "--max-messages", "3")
    assert command(cluster, *all_) == b"\n".join([RAW, TEXT.encode(), b"", b""])
    first, second, third = map(json.loads, command(cluster, *all_, "--json").splitlines())
    exact = {"key": None, "key_base64": b64encode(RAW).decode()}
    assert first.items() >= (exact | {"value": None, "value_base64": exact["key_base64"]}).items()
    assert second.items() >= {"key_base64": None, "value": TEXT, "value_base64": None}.items()
    assert second["headers"] == [
        {"key": "a", "value": "b", "value_base64": None},
        {"key": "raw", "value": None, "value_base64": exact["key_base64"]},
        {"key": "none", "value": None, "value_base64": None},
    ]
    assert (third["value"], third["value_base64"]) == (None, None)
