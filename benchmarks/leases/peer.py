"""The same measurements for etcd: three members, its Go client and its own recipes
(``etcd/main.go``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.leases.ours import CLIENTS, LEASES
from benchmarks.members import Members

SOURCE = Path(__file__).parent / "etcd" / "main.go"
LIMIT_S = 600.0


def leases(home: Path, seconds: float) -> dict[str, Any]:
    """Run all steps on one fresh cluster. ``home``: PEERS_HOME. Raises CalledProcessError."""
    program = _built(home / "etcd")
    with Members(home / "etcd") as members:
        addresses = members.leader_first()
        command = [
            *(str(program), "-endpoints", ",".join(addresses)),
            *("-pids", ",".join(map(str, members.pids)), "-seconds", str(seconds)),
            *("-leases", str(LEASES), "-clients", str(CLIENTS)),
        ]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=sys.stderr, timeout=LIMIT_S
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _built(etcd: Path) -> Path:
    """Return the program, built in the module created by the peer's own scripts, which names the
    client.
    """
    source, program = etcd / "src" / "cmd" / "leases", etcd / "bin" / "leases"
    source.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, source)
    subprocess.run(
        ["go", "build", "-o", str(program), "./cmd/leases"],
        cwd=etcd / "src",
        check=True,
        stdout=sys.stderr,
    )
    return program
