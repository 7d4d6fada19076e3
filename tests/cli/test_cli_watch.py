"""``raftlog watch``, ``produce`` and ``consume``, and records as lines of text."""

import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from command_lines import Raftlog

import raftlog as library
from raftlog.cli.watch import line
from raftlog.client.watch import Change
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.record_text import config_text, fields_text, one_line, value_text
from raftlog.outcome import Token
from raftlog.text import columns_of

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


def test_watch_prints_changes_and_how_to_resume(
    raftlog: Raftlog, cluster: LocalCluster, at: Raftlog, through: Raftlog
) -> None:
    through.succeed("topics create seen --acks visible")

    def alter(value: int) -> None:
        command = ("configs", "alter", "topic", "seen", "--set", f"retention.ms={value}", *through)
        raftlog.succeed(*command)

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
    assert err == f"raftlog: to continue: --since {since}\n"
    # The controller may have written a PROGRESS record meanwhile: the token is behind that, and
    # behind nothing else.
    last, told = int(second.split()[0]), Token.parse(since).offset
    window = ("--from", last + 1, "--until", told + 1)
    dumped = at("log dump", *window, "--json").out if told != last else ""
    passed = [json.loads(line)["type"] for line in dumped.splitlines()]
    assert passed == ["PROGRESS"] * (told - last)
    alter(3000)
    later = through.succeed("watch configs --since", since, "--max-changes", "1", "--json")
    assert (later.json["path"], later.json["before"], later.json["after"]) == (
        "configs/topic/seen/retention.ms", "2000", "3000"
    )  # fmt: skip
    assert later.json["token"].endswith(f"-{later.json['offset']}")
    assert through("watch topics --timeout 0.3").out == ""


def test_log_follow_prints_new_records(cluster: LocalCluster, through: Raftlog) -> None:
    through.succeed("topics create followed-1")
    with running(cluster, "log", "dump", "--follow", "--type", "TOPIC", "--json") as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["record"]["name"] != "followed-1":
            pass
        through.succeed("topics create followed-2")
        assert json.loads(process.stdout.readline())["record"]["name"] == "followed-2"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("topic/orders", 1, "did you mean 'topics/orders'?"),
        ("topics --since 7", 2, "is not a token"),
        ("topics --since 0-1-2 --initial", 2, "not both"),
    ],
)
def test_watch_command_refuses_invalid_arguments(
    raftlog: Raftlog, cluster: LocalCluster, arguments: str, code: int, said: str
) -> None:
    ran = raftlog("watch", *arguments.split(), "--bootstrap-server", cluster.bootstrap_servers)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_follow_reads_running_clusters_only(raftlog: Raftlog) -> None:
    assert raftlog("log dump --follow --until 5").code == 2
    assert raftlog("log dump --follow -e somewhere").code == 2


def test_watch_line_names_the_principal() -> None:
    change = Change(
        "broker", "4", "brokers/4", {"fenced": False}, {"fenced": True}, 7, 61_000,
        "User:ann", False, Token(0, 1, 7),
    )  # fmt: skip
    assert line(change) == "      7 00:01:01 brokers/4 fenced: false → true by User:ann"


RAW = b"\xff\xfe\x80 \xe2\x82\xac"
TEXT = "\N{EURO SIGN} 5"


def command(cluster: LocalCluster, *words: str, given: bytes = b"") -> bytes:
    """Run a command with pipes for its streams."""
    line = [sys.executable, "-m", "raftlog", *words]
    at = ["--bootstrap-server", cluster.bootstrap_servers]
    return subprocess.run([*line, *at], input=given, capture_output=True, check=True).stdout


def test_record_bytes_are_unchanged_by_output(cluster: LocalCluster, through: Raftlog) -> None:
    through.succeed("topics create raw")
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


FIELDS = {"key": "a/b", "value": b"x" * 3_000, "lease_id": 0, "reason": "caught up", "racks": []}


def test_fields_are_whole_without_a_limit() -> None:
    assert fields_text(FIELDS) == f'key=a/b value={"x" * 3_000} lease_id=0 reason="caught up"'


def test_long_value_is_shortened_with_its_size() -> None:
    assert fields_text(FIELDS, 70) == (
        'key=a/b value=xxxxxxxxxxxxx… 3,000 bytes lease_id=0 reason="caught up"'
    )
    assert fields_text({"voters": [{"id": 1}, {"id": 2}]}, 22) == "voters=[{id=1… 2 items"


def test_fields_without_room_are_counted() -> None:
    assert fields_text(FIELDS, 30) == "key=a/b lease_id=0 … 2 more"
    assert fields_text(FIELDS, 1) == "… 4 more"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"hello", "hello"),
        ("wörld".encode(), "wörld"),
        (b"\x00\x01", "0x0001"),
        (b"\xff", "0xff"),
        (b"two\nlines\n", "two\\nlines\\n"),
        ("\u202eevil".encode(), "0xe280ae6576696c"),
        (b"", ""),
    ],
)
def test_bytes_are_shown_as_text_unless_they_control_a_terminal(value: bytes, text: str) -> None:
    assert value_text(value) == text


def test_ambiguous_text_is_quoted() -> None:
    fields = {"a": "0x00", "b": b"0x00", "c": b"\x00", "d": 'x y="', "e": "x"}
    assert fields_text(fields) == 'a="0x00" b="0x00" c=0x00 d="x y=\\"" e=x'


def drawn_fields(rng: Random) -> dict[str, Any]:
    """Fields of all kinds, with wide, combining, quoted and unprintable characters."""

    def text() -> str:
        return "".join(rng.choices('ab0xé中e\u0301 ="\n\x1b\u202e', k=rng.randrange(60)))

    draws: list[Callable[[], Any]] = [
        lambda: rng.randrange(10 ** rng.randrange(1, 20)),
        text,
        lambda: text().encode(),
        lambda: rng.randbytes(rng.randrange(60)),
        lambda: [text() for _ in range(rng.randrange(4))],
    ]
    return {name: rng.choice(draws)() for name in "abcdefgh"[: rng.randrange(9)]}


def test_line_fits_its_width_and_reports_what_it_omits() -> None:
    rng = Random(7)
    shortened = 0
    for _ in range(2_000):
        fields, room = drawn_fields(rng), rng.randrange(12, 120)
        text = fields_text(fields, room)
        assert columns_of(text) <= room, (fields, room)
        assert "\n" not in text
        if text != fields_text(fields):
            shortened += 1
            assert "… " in text
    assert 500 < shortened < 2_000


def test_config_is_shown_as_a_change() -> None:
    fields = {"resource_type": 2, "resource_name": "orders", "name": "retention.ms", "value": "9"}
    assert config_text(fields) == "topic orders: retention.ms=9"
    del fields["value"]
    assert config_text(fields | {"resource_name": ""}) == "topic: retention.ms deleted"


def test_shortened_line_ends_with_the_full_size() -> None:
    assert one_line("a" * 20, 20) == "a" * 20
    assert one_line("ä" * 21, 20) == "ä" * 10 + "… 42 bytes"
    assert one_line("\x1b[31m", None) == "\\x1b[31m"


def test_dump_prints_short_lines_on_a_terminal_and_whole_records_into_a_pipe(
    raftlog: Raftlog, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, through: Raftlog
) -> None:
    value = "wörld " * 400
    written = through("kv put dumped --json", value).json
    offset = written["token"]["offset"]
    dump = ("log", "dump", "--bootstrap-controller", cluster.bootstrap_controllers)
    one = ("--from", offset, "--until", offset + 1)
    assert json.dumps(value, ensure_ascii=False) in raftlog(*dump, *one).out
    record = raftlog(*dump, *one, "--json").json["record"]
    assert bytes.fromhex(record["value"]).decode() == value
    monkeypatch.setenv("COLUMNS", "80")
    date, line = raftlog(*dump, *one).out.splitlines()
    assert date.endswith(" (UTC)")
    assert line.split()[3:5] == ["KEY_VALUE", "key=dumped"]
    assert "… 2,800 bytes" in line
    lines = raftlog(*dump, "--until", offset + 1).out.splitlines()
    assert [int(line.split()[0]) for line in lines if not line.endswith("(UTC)")] == [
        *range(offset + 1)
    ]
    assert max(map(columns_of, lines)) <= 80
    through.succeed("kv delete dumped")
