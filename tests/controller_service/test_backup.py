"""Backups of one committed offset while writes go on."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from quorum_world import World, alter
from scenarios import simulated

from raftlog.client.log_reader import LogReader, committed_state
from raftlog.errors import ConfigError, CorruptLogError, FatalError, StorageError
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import header_of, load
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.ops import backup as module
from raftlog.ops.backup import backup, write_backup

LONG = "x" * 30_000
"""A value so long that a backup takes several fetches."""
BEFORE = 400


def reader_of(world: World, first: int = 0) -> LogReader:
    endpoints = list(world.bootstrap)
    return LogReader(
        world.network.transport_for("backup"),
        endpoints[first:] + endpoints[:first],
        rng=random.Random(4),
    )


def state_at(world: World, end_offset: int) -> Image:
    images = []
    for node in world.nodes.values():
        builder = ImageBuilder(Image())
        replica = node.service.replica
        while builder.offset + 1 < end_offset:
            builder.apply_chunk(replica.read(builder.offset + 1, end_offset, 1 << 20))
        images.append(builder.snapshot())
    assert len({image.state_hash for image in images}) == 1
    return images[0]


@pytest.mark.parametrize("first", [0, 1, 2])
@simulated
async def test_backup_under_writes_is_the_state_at_its_offset(tmp_path: Path, first: int) -> None:
    world = World()
    await world.active()
    for i in range(BEFORE):
        await world.client.call(alter(f"before{i}", LONG))
    stop = asyncio.Event()
    written = 0

    async def writes() -> None:
        nonlocal written
        while not stop.is_set():
            await world.client.call(alter(f"during{written}", "x" * 1000))
            written += 1

    writing = asyncio.ensure_future(writes())
    await asyncio.sleep(0.02)
    before = written
    reader = reader_of(world, first)
    file = tmp_path / "backup.checkpoint"
    summary = await backup(reader, file)
    reader.close()
    assert written > before, "nobody wrote meanwhile"
    stop.set()
    await writing
    end = summary.header.end_offset
    await world.until(lambda: all(n.service.image.offset >= end for n in world.up()))
    header, image = load([file.read_bytes()])
    expected = state_at(world, header.end_offset)
    generation = world.nodes[1].service.node.committed_generation
    assert (header.cluster_id, header.generation) == ("c", generation)
    assert generation > 0
    assert (header.end_offset, header.epoch) == (expected.offset + 1, expected.epoch)
    assert header == summary.header
    assert image.state_hash == expected.state_hash == summary.state_hash
    assert image.configs[(16, f"before{BEFORE - 1}")] == {"match": LONG}
    assert os.listdir(tmp_path) == ["backup.checkpoint"]
    assert file.stat().st_size == summary.bytes
    assert not world.network.handler_failures


@simulated
async def test_backup_survives_the_death_of_the_active_controller(tmp_path: Path) -> None:
    world = World()
    node = await world.active()
    for i in range(30):
        await world.client.call(alter(f"k{i}", "x" * 10_000))
    reader = reader_of(world)
    state = asyncio.ensure_future(committed_state(reader))
    await asyncio.sleep(0.001)
    assert not state.done()
    node.kill()
    info, image = await state
    assert image.offset + 1 >= info.high_watermark
    for i in range(30):
        assert image.configs[(16, f"k{i}")] == {"match": "x" * 10_000}


def an_image() -> Image:
    return Image(offset=6, epoch=2, timestamp_ms=3)


def header(image: Image) -> SnapshotHeader:
    return header_of(image, cluster_id="c", generations=(1,))


def test_backup_is_never_overwritten_and_a_failed_one_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        write_backup(tmp_path / "no" / "b", an_image(), header(an_image()))
    assert os.listdir(tmp_path) == []
    file = tmp_path / "b"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        write_backup(file, an_image(), header(an_image()))
    assert file.read_text() == "mine"
    assert os.listdir(tmp_path) == ["b"]


def flip(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-1], lambda data: b""])
def test_corrupt_backup_is_detected_before_the_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    honest = module._pieces_of
    monkeypatch.setattr(module, "_pieces_of", lambda file: [damage(b"".join(honest(file)))])
    with pytest.raises(CorruptLogError):
        write_backup(tmp_path / "b", an_image(), header(an_image()))
    assert os.listdir(tmp_path) == []


def test_image_that_differs_from_its_hash_is_not_backed_up(tmp_path: Path) -> None:
    image = Image(offset=6, epoch=2, timestamp_ms=3, state_hash=9)
    with pytest.raises(FatalError, match="state hash"):
        write_backup(tmp_path / "b", image, header(image))
    assert os.listdir(tmp_path) == []
