"""``raftlog`` on a disk whose syncs hang while the file ``HANG_FILE`` exists."""

import os
import time
from pathlib import Path

from raftlog.cli.main import main
from raftlog.node.storage import files
from raftlog.node.storage.rocks_adapter import RocksLog, RocksPartitions

POLL_S = 0.02


def _wait_for_disk() -> None:
    while Path(os.environ["HANG_FILE"]).exists():
        time.sleep(POLL_S)


def hang() -> None:
    """Let syncs of logs and replacements of small files wait for the disk."""
    sync, stage = RocksLog.sync, files.stage_checked
    sync_partitions = RocksPartitions.sync

    def slow_sync(self: RocksLog) -> None:
        _wait_for_disk()
        sync(self)
        _wait_for_disk()

    def slow_sync_of_partitions(self: RocksPartitions) -> None:
        _wait_for_disk()
        sync_partitions(self)
        _wait_for_disk()

    def slow_stage(*arguments: object) -> Path:
        _wait_for_disk()
        return stage(*arguments)  # type: ignore[arg-type]

    RocksLog.sync = slow_sync  # type: ignore[method-assign]
    RocksPartitions.sync = slow_sync_of_partitions  # type: ignore[method-assign,assignment]
    files.stage_checked = slow_stage  # type: ignore[assignment]


if __name__ == "__main__":
    hang()
    main()
