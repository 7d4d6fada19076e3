"""Records as people see them: one line each, bytes as text, and nothing that is cut in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from command_lines import Raftlog

from raftlog.local.cluster import LocalCluster
from raftlog.metadata.record_text import config_text, fields_text, one_line, value_text
from raftlog.text import columns_of

FIELDS = {"key": "a/b", "value": b"x" * 3_000, "lease_id": 0, "reason": "caught up", "racks": []}


def test_fields_are_whole_where_nothing_limits_them() -> None:
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
def test_bytes_are_text_where_none_of_them_controls_a_terminal(value: bytes, text: str) -> None:
    assert value_text(value) == text


def test_text_is_quoted_where_it_could_be_taken_for_something_else() -> None:
    fields = {"a": "0x00", "b": b"0x00", "c": b"\x00", "d": 'x y="', "e": "x"}
    assert fields_text(fields) == 'a="0x00" b="0x00" c=0x00 d="x y=\\"" e=x'


def drawn_fields(rng: Random) -> dict[str, Any]:
    """Fields of all kinds, with characters that are wide, combining, quoted or not printable."""

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


def test_line_keeps_to_its_room_and_says_what_it_lacks() -> None:
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


def test_config_is_told_as_a_change() -> None:
    fields = {"resource_type": 2, "resource_name": "orders", "name": "retention.ms", "value": "9"}
    assert config_text(fields) == "topic orders: retention.ms=9"
    del fields["value"]
    assert config_text(fields | {"resource_name": ""}) == "topic: retention.ms deleted"


def test_one_line_ends_with_the_size_of_all_where_it_is_shortened() -> None:
    assert one_line("a" * 20, 20) == "a" * 20
    assert one_line("ä" * 21, 20) == "ä" * 10 + "… 42 bytes"
    assert one_line("\x1b[31m", None) == "\\x1b[31m"


def test_dump_has_one_line_a_record_on_a_terminal_and_all_of_it_in_a_pipe(
    raftlog: Raftlog, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = ("--bootstrap-server", cluster.bootstrap_servers)
    value = "wörld " * 400
    written = raftlog("kv", "put", "dumped", value, *brokers, "--json").json
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
    assert raftlog("kv", "delete", "dumped", *brokers).code == 0
