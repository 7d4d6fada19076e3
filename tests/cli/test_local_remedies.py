"""The doctor's commands, as they are typed for a local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.config.sources import LOCAL_DIRECTORY
from raftlog.ops.doctor import with_local_commands
from raftlog.ops.quorum_findings import Finding, Severity

ADDRESSES = ["127.0.0.1:9093", "127.0.0.1:9094"]
FOUND = [
    Finding("VOTER_DOWN", Severity.DEGRADED, "", "", "", "raftlog controller run -c FILE"),
    Finding("BROKER_FENCED", Severity.DEGRADED, "", "", "", "raftlog broker run -c FILE"),
    Finding("CLOCKS_DIFFER", Severity.NOTICE, "", "", "", "timedatectl"),
]


def cluster(directory: Path, port: int) -> Path:
    directory.mkdir()
    (directory / "cluster.json").write_text(f'{{"nodes": [{{"port": {port}, "name": "c"}}]}}')
    return directory


def test_of_the_local_cluster_the_scripts_start_what_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[an operator copied `raftlog controller run -c FILE`, and there was no FILE]"""
    directory = cluster(tmp_path / "my cluster", 9094)
    monkeypatch.setenv(LOCAL_DIRECTORY, str(directory))
    assert [one.command for one in with_local_commands(FOUND, ADDRESSES)] == [
        f"raftlog local start --dir '{directory}'",
        f"raftlog local start --dir '{directory}'",
        "timedatectl",
    ]


def test_of_another_cluster_they_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_local_commands(FOUND, ADDRESSES) == FOUND
    monkeypatch.setenv(LOCAL_DIRECTORY, str(cluster(tmp_path / "other", 19_999)))
    assert with_local_commands(FOUND, ADDRESSES) == FOUND
    monkeypatch.setenv(LOCAL_DIRECTORY, str(tmp_path / "gone"))
    assert with_local_commands(FOUND, ADDRESSES) == FOUND
