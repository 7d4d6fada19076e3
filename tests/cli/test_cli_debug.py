"""What helps others to help, of real nodes: the bundle, log levels, builds, and a backup's content."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.cli.bundle import Bundle
from raftlog.cli.local import LocalCluster
from raftlog.config.load import load_config
from raftlog.errors import ConfigError
from raftlog.storage.sync_probe import PROBES, probe_sync_us


def test_a_bundle_is_read_without_the_cluster(
    raftlog: Raftlog, cluster: LocalCluster, tmp_path: Path
) -> None:
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    file = tmp_path / "b.tar.gz"
    made = raftlog("debug", "bundle", file, *at)
    assert made.code == 0, made.err
    assert made.out.startswith(f"{file}: {len(cluster.nodes)} nodes")
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        log = b"".join(
            tar.extractfile(one).read()
            for one in tar.getmembers()
            if one.name.endswith("/log.jsonl")
        )
    for node in cluster.nodes:
        for part in ("node.json", "events.jsonl", "log.jsonl", "metrics.txt"):
            assert f"nodes/{node.name}/{part}" in names
    assert b"controller started" in log
    seen = Bundle(file).seen()
    assert seen.leader is not None
    assert seen.brokers is not None
    assert raftlog("doctor", "--bundle", file).out.startswith("HEALTHY: cluster")
    told = raftlog("explain", "--bundle", file, "--all")
    assert "Now: HEALTHY" in told.out
    assert "leads epoch" in told.out
    assert raftlog("debug", "bundle", file, *at).code == 2, "nothing is overwritten"


@pytest.mark.parametrize(
    "parts", [{}, {"bundle.json": b"{}"}, {"bundle.json": b'{"format":9}'}, {"doctor.json": b"x"}]
)
def test_what_is_no_bundle(tmp_path: Path, parts: dict[str, bytes]) -> None:
    file = tmp_path / "b.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for name, data in parts.items():
            info = tarfile.TarInfo(f"b/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(ConfigError, match=r"b\.tar\.gz"):
        Bundle(file)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b garbage", b"text"])
def test_garbage_is_no_bundle(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "b.tar.gz"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is a directory: give the file"):
        Bundle(tmp_path)
    with pytest.raises(ConfigError, match="no debug bundle"):
        Bundle(file)


def test_log_levels_of_one_node_and_of_all(raftlog: Raftlog, cluster: LocalCluster) -> None:
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    name = cluster.brokers[0].name
    assert raftlog("loglevel", "debug", "--node", name, "--for", "1h", *at).code == 0
    shown = {row["node"]: row for row in raftlog("loglevel", "--json", *at).json}
    assert set(shown) == {node.name for node in cluster.nodes}
    assert shown[name]["level"] == "debug"
    assert shown[name]["until_ms"]
    assert {row["level"] for node, row in shown.items() if node != name} == {"info"}
    assert raftlog("loglevel", "configured", *at).code == 0
    shown = {row["node"]: row for row in raftlog("loglevel", "--json", *at).json}
    assert shown[name] == {"node": name, "level": "info", "until_ms": None, "failure": None}
    assert raftlog("loglevel", "loud", *at).code != 0
    assert raftlog("loglevel", "debug", "--node", "broker-99", *at).code == 2


def test_builds_are_told(raftlog: Raftlog, cluster: LocalCluster) -> None:
    at = ("--bootstrap-controller", cluster.bootstrap_controllers)
    quorum = raftlog("quorum", "describe", "--json", *at).json
    assert all(node["version"] for node in quorum["nodes"])
    brokers = raftlog(
        "cluster", "describe", "--json", "--bootstrap-server", cluster.bootstrap_servers
    )
    assert all(broker["version"] for broker in brokers.json["brokers"])


def test_a_backup_says_what_is_in_it(
    raftlog: Raftlog, cluster: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "state.checkpoint"
    made = raftlog("backup", file, "--json", "--controller", cluster.bootstrap_controllers)
    found = raftlog("backup", "inspect", file, "--json").json
    assert {name: found[name] for name in made.json} == made.json
    assert found["counts"]["brokers"] == len(cluster.brokers)
    assert "whole and verified" in raftlog("backup", "inspect", file).out
    cut = tmp_path / "cut"
    cut.write_bytes(file.read_bytes()[:-20])
    assert raftlog("backup", "inspect", cut).code == 3
    assert raftlog("backup", "inspect", tmp_path / "nothing").code == 2
    assert raftlog("backup", file, "other").code == 2


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    took, failure = probe_sync_us(tmp_path)
    assert (len(took), failure) == (PROBES, "")
    assert took == sorted(took)
    assert not list(tmp_path.iterdir())
    assert probe_sync_us(tmp_path / "nothing")[1]


def test_http_without_a_host_is_on_loopback(tmp_path: Path) -> None:
    file = tmp_path / "n.toml"
    file.write_text(
        'process.roles = ["controller"]\nnode.id = 1\ncluster.id = "c"\nlog.dirs = ["d"]\n'
        'controller.quorum.voters = ["1@127.0.0.1:9093"]\nhttp.listener = ":9193"\n'
    )
    found = load_config(file, environment={}).http_listener
    assert found is not None
    assert found.address == "127.0.0.1:9193"
