"""What the doctor advises, as one types it for the cluster that `raftlog local` runs here: its
configurations have names, and FILE is none of them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from raftlog.ops.quorum_findings import Finding

LOCAL_DIRECTORY = "RAFTLOG_LOCAL_DIRECTORY"
"""Environment variable that `raftlog local env` exports: where the cluster lives."""


class _Node(msgspec.Struct):
    port: int


class _Cluster(msgspec.Struct):
    nodes: list[_Node]


def as_typed_here(findings: Sequence[Finding], addresses: Collection[str]) -> list[Finding]:
    """The same findings; if the addresses that were asked are of the local cluster, with commands
    that start its nodes.
    """
    directory = os.environ.get(LOCAL_DIRECTORY, "")
    if not directory or not _runs(Path(directory), addresses):
        return list(findings)
    suffix = f" --dir {shlex.quote(directory)}"
    typed = {
        "raftlog controller run -c FILE": f"raftlog local start{suffix}",
        "raftlog broker run -c FILE": f"raftlog local start{suffix}",
    }
    return [replace(one, command=typed.get(one.command, one.command)) for one in findings]


def _runs(directory: Path, addresses: Collection[str]) -> bool:
    try:
        found = msgspec.json.decode((directory / "cluster.json").read_bytes(), type=_Cluster)
    except (OSError, msgspec.DecodeError):
        return False
    return any(f"127.0.0.1:{node.port}" in addresses for node in found.nodes)
