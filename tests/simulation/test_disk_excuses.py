"""Injected disk errors excuse one stop of a process, and no other error."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.errors import CorruptLogError, StorageError
from raftlog.node.storage.api import NodeIdentity
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig
from simulation.twins.disk import SimDisk, SimLogStore
from simulation.twins.disk_hardware import Chunks
from simulation.twins.partition_disk import ReplicaChunks, SimPartitionDisk

KEY = (b"t" * 16, 0)


def _controller_disk() -> SimDisk:
    return SimDisk(NodeIdentity("cluster", 1, "dir-1"), random.Random(1))


def _chunk() -> bytes:
    return batch.encode([RecordData(20, 0, b"record")], base_offset=0, epoch=1, timestamp_ms=0)


def test_injected_error_excuses_one_stop_and_no_other_error() -> None:
    disk = _controller_disk()
    disk.fail_next("flush")
    error = disk.take_failure("flush")
    assert error is not None
    assert not disk.excuses(StorageError(str(error)))
    assert disk.excuses(error)
    assert not disk.excuses(error)


def _damage_vote(disk: SimDisk) -> None:
    disk.flip_bit(random.Random(1), "vote")


def _damage_log(disk: SimDisk) -> None:
    disk.durable = Chunks([0], [_chunk()])
    disk.live = disk.durable.copy()
    disk.flip_bit(random.Random(1), "log")


@pytest.mark.parametrize("damage", [_damage_vote, _damage_log])
def test_damage_excuses_its_readers_while_it_exists(damage: Callable[[SimDisk], None]) -> None:
    disk = _controller_disk()
    assert not disk.excuses(CorruptLogError("a batch"))
    damage(disk)
    for _ in range(2):
        with pytest.raises(CorruptLogError) as met:
            disk.open().recover()
        assert not disk.excuses(StorageError("I/O error"))
        assert disk.excuses(met.value)
        disk.crash(random.Random(1))
    disk.vote_is_corrupt = False
    disk.durable.clear()
    disk.live.clear()
    assert not disk.excuses(CorruptLogError("a batch"))


def test_damage_to_a_deleted_replica_is_not_an_excuse() -> None:
    disk = SimPartitionDisk("disk", random.Random(1))
    disk.durable = {KEY: ReplicaChunks([0], [_chunk()])}
    disk.live = {KEY: disk.durable[KEY].copy()}
    disk.flip_bit(random.Random(1))
    with pytest.raises(CorruptLogError) as met:
        disk.open().recover()
    assert disk.excuses(met.value)
    disk.durable, disk.live = {}, {}
    assert not disk.excuses(CorruptLogError("a batch"))


def test_defect_after_an_injected_disk_error_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """An injected disk error, then one of the store's own, which is not excused."""
    append: Any = SimLogStore.append

    def broken(self: SimLogStore, chunk: bytes, base_offset: int, end_offset: int) -> None:
        if self._disk.faults.get("eio_append"):
            raise self._commit.fail(StorageError("append: a defect"))
        append(self, chunk, base_offset, end_offset)

    monkeypatch.setattr(SimLogStore, "append", broken)
    outcome = run_swarm(1, SwarmConfig(brokers=0, safety_s=10.0, faults={"disk_error": 0.5}))
    assert "stopped without a reason: append: a defect" in str(outcome.failure)
    assert outcome.faults["eio_append"] >= 1
