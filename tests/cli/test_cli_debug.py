"""Diagnostics of real nodes: debug bundle, log levels, builds, backups."""

import gzip
import io
import random
import tarfile
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster
from raftlog.node.storage.directory import PROBES, probe_sync_us
from raftlog.ops.bundle import Bundle


def test_bundle_is_read_offline(
    raftlog: Raftlog, cluster: LocalCluster, tmp_path: Path, at: Raftlog
) -> None:
    file = tmp_path / "b.tar.gz"
    made = at.succeed("debug bundle", file)
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
    seen = Bundle(file).survey()
    assert seen.leader is not None
    assert seen.brokers is not None
    assert raftlog("doctor --bundle", file).out.startswith("HEALTHY: cluster")
    told = raftlog("explain --all --bundle", file)
    assert "Now: HEALTHY" in told.out
    assert "leads epoch" in told.out
    assert at("debug bundle", file).code == 2, "nothing is overwritten"


@pytest.mark.parametrize(
    "parts", [{}, {"bundle.json": b"{}"}, {"bundle.json": b'{"format":9}'}, {"doctor.json": b"x"}]
)
def test_file_that_is_not_a_bundle_is_refused(tmp_path: Path, parts: dict[str, bytes]) -> None:
    file = tmp_path / "b.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for name, data in parts.items():
            info = tarfile.TarInfo(f"b/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(ConfigError, match=r"b\.tar\.gz"):
        Bundle(file)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b garbage", b"text"])
def test_garbage_is_refused_as_a_bundle(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "b.tar.gz"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is a directory: give the tar\.gz"):
        Bundle(tmp_path)
    with pytest.raises(ConfigError, match="not a debug bundle"):
        Bundle(file)


ABOUT = b'{"format":2,"created_ms":1,"version":"1","from_ms":0,"to_ms":9,"nodes":[]}'
DOCTOR = b'{"nodes":[],"at_ms":1}'
LOG = b'{"changes":[],"writes_ms":[]}'
DEEP = b"[" * 100_000


def bundle_of(file: Path, **parts: bytes) -> Path:
    """A bundle in which these parts replace its own, by name without suffix."""
    with tarfile.open(file, "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in ({"bundle": ABOUT, "doctor": DOCTOR, "log": LOG} | parts).items():
            info = tarfile.TarInfo(f"b/{name if '/' in name else f'{name}.json'}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file


EVENT = b'{"seq":1,"at_ms":1,"node_id":1,"role":"broker","kind":"lao_stalled","details":%s}\n'
NODE = ABOUT.replace(b'"nodes":[]', b'"nodes":[{"name":"n","role":"broker","node_id":1}]')
CHANGE = b'{"writes_ms":[],"changes":[[1,1,1,"",0,0,"X","%s","k",%s,%s]]}'


@pytest.mark.parametrize(
    "parts",
    [
        {"bundle": DEEP},
        {"doctor": DEEP},
        {"log": b'{"late":"","x":' + DEEP},
        {
            "doctor": DOCTOR.replace(
                b"1}", b'1,"brokers":{"brokers":' + 900 * b'{"a":' + b"1" + 902 * b"}"
            )
        },
        {"bundle": NODE, "nodes/n/events.jsonl": b'{"x":' + DEEP},
        {"log": CHANGE % (b"partition", b'"1"', b'"2"')},
        {"log": CHANGE % (b"broker", b'"{\\"a\\":1}"', b'"{\\"a\\":1}"')},
        {"log": b'{"changes":[],"writes_ms":["a"]}'},
    ],
)
def test_invalid_bundle_is_refused_in_one_line(
    raftlog: Raftlog, tmp_path: Path, parts: dict[str, bytes]
) -> None:
    """[deep JSON ended in a traceback of a thousand lines]"""
    ran = raftlog("explain --bundle", bundle_of(tmp_path / "b.tar.gz", **parts))
    assert (ran.code, len(ran.err.splitlines())) == (2, 1), ran.err
    assert "b.tar.gz" in ran.err
    assert len(ran.err) < 500


@pytest.mark.parametrize("details", [b'{"brokers":"x,2"}', b'{"offset":"a","brokers":5}', b"{}"])
@pytest.mark.parametrize("at_ms", [b"-1", b"1", b"9223372036854775807"])
def test_unknown_events_of_a_bundle_are_shown(
    raftlog: Raftlog, tmp_path: Path, details: bytes, at_ms: bytes
) -> None:
    event = (EVENT % details).replace(b'"at_ms":1', b'"at_ms":' + at_ms)
    wide = NODE.replace(b'"to_ms":9', b'"to_ms":9223372036854775807').replace(
        b'"from_ms":0', b'"from_ms":-2'
    )
    file = bundle_of(tmp_path / "b.tar.gz", bundle=wide, **{"nodes/n/events.jsonl": event})
    ran = raftlog("explain --bundle", file)
    assert (ran.code, ran.err) == (0, "")
    assert "the lowest acknowledged offset" in ran.out


def test_bundle_with_headers_other_than_files_is_not_read(tmp_path: Path) -> None:
    """[a header of 11 MB, compressed, made 2.5 GB]"""
    file = tmp_path / "b.tar.gz"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    file.write_bytes(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT)))
    with pytest.raises(ConfigError, match="it contains entries that are not files"):
        Bundle(file)


@pytest.mark.parametrize("damage", [slice(60, 80), slice(-30, None)])
def test_damaged_bundle_is_refused(tmp_path: Path, damage: slice) -> None:
    """[zlib's error about a corrupt stream ended in a traceback]"""
    file = bundle_of(tmp_path / "b.tar.gz", log=LOG + random.Random(7).randbytes(4_000))
    data = bytearray(file.read_bytes())
    data[damage] = b"\xff" * 20 if damage.start > 0 else b""
    file.write_bytes(data)
    with pytest.raises(ConfigError, match="not a debug bundle"):
        Bundle(file)


def test_log_levels_of_one_node_and_of_all_are_set(cluster: LocalCluster, at: Raftlog) -> None:
    name = cluster.brokers[0].name
    at.succeed(f"cluster loglevel debug --node {name} --for 1h")
    shown = {row["node"]: row for row in at("cluster loglevel --json").json["nodes"]}
    assert set(shown) == {node.name for node in cluster.nodes}
    assert shown[name]["level"] == "debug"
    assert shown[name]["until_ms"]
    assert {row["level"] for node, row in shown.items() if node != name} == {"info"}
    at.succeed("cluster loglevel configured")
    shown = {row["node"]: row for row in at("cluster loglevel --json").json["nodes"]}
    assert shown[name] == {"node": name, "level": "info", "until_ms": None, "failure": None}
    assert at("cluster loglevel loud").code != 0
    assert at("cluster loglevel debug --node broker-99").code == 2


def test_backup_describes_itself(raftlog: Raftlog, cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "state.checkpoint"
    made = raftlog("backup", file, "--json", "--controller", cluster.bootstrap_controllers)
    found = raftlog("backup inspect --json", file).json
    assert {name: found[name] for name in made.json} == made.json
    assert found["counts"]["brokers"] == len(cluster.brokers)
    assert "complete and verified" in raftlog("backup inspect", file).out
    cut = tmp_path / "cut"
    cut.write_bytes(file.read_bytes()[:-20])
    assert raftlog("backup inspect", cut).code == 3
    assert raftlog("backup inspect", tmp_path / "nothing").code == 2
    assert raftlog("backup", file, "other").code == 2


def test_disk_benchmark_leaves_the_directory_unchanged(tmp_path: Path) -> None:
    took, failure = probe_sync_us(tmp_path)
    assert (len(took), failure) == (PROBES, "")
    assert took == sorted(took)
    assert not list(tmp_path.iterdir())
    assert probe_sync_us(tmp_path / "nothing")[1]
