"""kill -9 in the middle of group commits: every acknowledged offset is there again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from storage_kit import IDENTITY, open_rocks, whole

from raftlog import batch
from raftlog.storage.meta_file import format_storage

KILLS = 10
WRITER = Path(__file__).with_name("kill_writer.py")


def write_until_killed(directory: Path, acknowledgements: int) -> int:
    """Let a writer run until it has acknowledged so often; kill it; return the last offset it acknowledged."""
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        seen = []
        for line in writer.stdout:
            seen.append(line)
            if len(seen) == acknowledgements:
                writer.kill()
        assert seen, writer.stderr.read()
    # The last line may be torn by the kill.
    return max(int(line) for line in seen if line.endswith("\n"))


async def test_every_acknowledged_offset_survives_kill_9(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    rng = Random(9)
    content = b""
    for _ in range(KILLS):
        acknowledged = write_until_killed(directory, rng.randint(1, 400))
        store = open_rocks(directory)
        found = store.recover()
        assert found.end_offset >= acknowledged
        now = whole(store, found.end_offset)
        assert now.startswith(content), "what was there before is there still"
        content = now
        assert list(batch.headers(now, expect_offset=0))[-1].end_offset == found.end_offset
        store.close()
