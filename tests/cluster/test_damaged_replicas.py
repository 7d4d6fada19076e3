"""Brokers with damaged partition replicas, which refuse to start."""

import asyncio
from pathlib import Path

import pytest
from cluster_kit import one_message, raftlog, says

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.local.cluster import LocalCluster
from raftlog.node.storage.opening import open_partition_store

BROKER = "broker-2"
TOPIC_ID = b"t" * 16


async def fill(directory: Path) -> None:
    """Write two replicas with some data, and close them in order."""
    store = open_partition_store(directory, asyncio.get_running_loop())
    store.recover()
    for base in range(20):
        chunk = batch.encode(
            [RecordData(1, 0, b"x" * 500)], base_offset=base, epoch=1, timestamp_ms=1
        )
        for index in (0, 1):
            store.append((TOPIC_ID, index), chunk, base, base + 1)
    store.close()


@pytest.fixture
def broker(tmp_path: Path) -> tuple[Path, Path]:
    """Return a broker's configuration and directory; no controller runs."""
    cluster = LocalCluster(tmp_path / "c", controllers=1, brokers=1)
    cluster.generate()
    asyncio.run(fill(cluster.data_path(BROKER)))
    return cluster.config_path(BROKER), cluster.data_path(BROKER)


def test_flipped_bytes_are_detected_before_anything_is_served(broker: tuple[Path, Path]) -> None:
    config, directory = broker
    (table,) = (directory / "partitions").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x20
    table.write_bytes(content)
    ran = raftlog("broker run -c", config).refused(3)
    says(one_message(ran), f"partition [01] of topic {TOPIC_ID.hex()}|block checksum mismatch")
