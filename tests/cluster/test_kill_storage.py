"""kill -9 in the middle of group commits, two hundred times on one log: what was acknowledged is there, and the log is well-formed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import kill_child
from kill_child import CLUSTER_ID, NODE_ID, open_checked

from raftlog.storage.api import NodeIdentity
from raftlog.storage.meta_file import format_storage

KILLS = int(os.environ.get("RAFTLOG_STORAGE_KILLS", "200"))
MAX_ACKNOWLEDGEMENTS = 25


def test_every_acknowledged_batch_survives_every_kill(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    format_storage(directory, NodeIdentity(CLUSTER_ID, NODE_ID, "d"))
    rng = random.Random(200)
    acknowledged, unacknowledged_kept = 0, 0
    with subprocess.Popen(
        [sys.executable, kill_child.__file__, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for _ in range(KILLS):
            nursery.stdin.write(f"{rng.randint(1, MAX_ACKNOWLEDGEMENTS)} {rng.uniform(0, 0.003)}\n")
            nursery.stdin.flush()
            found, now_acknowledged = map(int, nursery.stdout.readline().split())
            assert found >= acknowledged
            unacknowledged_kept += found > acknowledged
            acknowledged = now_acknowledged
        nursery.stdin.close()
    # The kills did come in the middle of something.
    assert unacknowledged_kept > KILLS // 20

    async def all_of_it() -> int:
        store, end = open_checked(directory, 0, asyncio.get_running_loop())
        store.close()
        return end

    assert asyncio.run(all_of_it()) >= acknowledged
