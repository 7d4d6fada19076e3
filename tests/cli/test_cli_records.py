"""``raftlog produce`` and ``raftlog consume``: bytes stay what they are."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode

from command_lines import Raftlog

import raftlog as library
from raftlog.local.cluster import LocalCluster

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
