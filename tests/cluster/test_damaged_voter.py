"""Voters whose data is damaged while they are down."""

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from random import Random

import pytest
from cluster_kit import (
    PATIENCE_S,
    ControllerProcess,
    Load,
    committed_image,
    controllers_of,
    lost,
    raftlog,
    says,
    until,
    until_true,
)
from test_quorum_life import Quorum, quorum, quorum_in

from raftlog.client.quorum_queries import ask_quorum
from raftlog.local.cluster import free_ports
from raftlog.node.storage.directory import read_identity
from raftlog.node.storage.wal import FULL, HEADER, Put, operations, pieces

sys.path.append(str(Path(__file__).parents[1] / "hostile"))
from damage.bases import Base
from damage.wounds import drawn, inflict

__all__ = ["quorum"]

CASES = int(os.environ.get("HEALED_CASES", "20"))
SEED = int(os.environ.get("HEALED_SEED", "1"))
GAP_S = 5.0
"""Bound of a pause of writes on a machine that has much else to do."""


def flip_wal(directory: Path) -> None:
    """Change a byte of the first record of the write-ahead log."""
    wal = max((directory / "log").glob("*.log"))
    content = bytearray(wal.read_bytes())
    content[40] ^= 0xFF
    wal.write_bytes(content)


def lose_vote(directory: Path) -> None:
    (directory / "quorum-state.json").unlink()


def spoil_vote(directory: Path) -> None:
    (directory / "quorum-state.json").write_bytes(bytes(8192))


def spoil_identity(directory: Path) -> None:
    meta = directory / "meta.json"
    meta.write_bytes(meta.read_bytes().replace(b"cluster_id", b"cluster_ib"))


def lose_identity(directory: Path) -> None:
    (directory / "meta.json").unlink()


def lose_manifest(directory: Path) -> None:
    next((directory / "log").glob("MANIFEST-*")).unlink()


@pytest.fixture(scope="module")
def voters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    """Three voters that run. Each test has a node of its own to damage, which is back at the end."""
    with quorum_in(tmp_path_factory.mktemp("voters")) as made:
        asyncio.run(made.start())
        yield made


@asynccontextmanager
async def loaded(quorum: Quorum) -> AsyncIterator[Load]:
    """Write to three voters; none of it is lost."""
    async with controllers_of(quorum.endpoints) as client:
        load = Load(client, prefix="healed", writers=4, pause_s=0.01)
        await load.more(50)
        yield load
        await load.more(50)
        await load.stop()
    assert lost(load.acknowledged, await committed_image(quorum.endpoints)) == []


def directory_of(node: ControllerProcess) -> Path:
    return node.config.parent / f"data-{node.id}"


def set_aside(node: ControllerProcess) -> list[Path]:
    return sorted((directory_of(node) / "damaged").glob("*"))


async def back(quorum: Quorum, node: ControllerProcess) -> str:
    """Start the node, and wait until it is a voter with its directory; return the directory id."""
    before, begun = node.log.stat().st_size, time.monotonic()
    node.start()

    async def counts() -> bool:
        assert node.process is not None
        said = node.log.read_text()[before:]
        assert node.process.poll() is None, said
        if "controller started" not in said:
            return False
        # A Fetch of the process before would say nothing of this one.
        up_ms = (time.monotonic() - begun) * 1000
        leader = (await ask_quorum(quorum.endpoints, 2.0)).leader
        own = read_identity(directory_of(node)).directory_id
        return leader is not None and any(
            (one.replica_id, one.replica_directory_id) == (node.id, own)
            and 0 <= one.last_caught_up_age_ms < min(up_ms, 2_000)
            for one in leader.voters
        )

    await until_true(counts, f"node {node.id} is a voter again")
    return read_identity(directory_of(node)).directory_id


@pytest.mark.parametrize(
    "damage", [spoil_identity, lose_identity, lose_vote, spoil_vote, lose_manifest]
)
@pytest.mark.nightly
async def test_damaged_voter_rejoins(quorum: Quorum, damage: Callable[[Path], None]) -> None:
    _, second, third = quorum.nodes
    await quorum.start()
    async with loaded(quorum) as load:
        before = read_identity(directory_of(third)).directory_id
        await asyncio.to_thread(third.kill)
        await load.more(20)
        damage(directory_of(third))
        load.longest_gap_s = 0.0
        assert await back(quorum, third) != before
        assert load.longest_gap_s < GAP_S
        (kept,) = set_aside(third)
        if damage not in (spoil_identity, lose_identity):
            assert read_identity(kept).directory_id == before
        told = await asyncio.to_thread(raftlog, "explain --json", *quorum.at)
        assert "LOG_DAMAGED" in told.out

    # With two of three down nobody else can say what is committed: nothing is changed.
    before = read_identity(directory_of(third)).directory_id
    for node in (second, third):
        await asyncio.to_thread(node.kill)
    spoil_vote(directory_of(third))
    # Behind what the log has of the first damage: it may have said the same.
    said = third.log.stat().st_size
    third.start()
    stays = "the damaged directory is unchanged for now"
    await asyncio.to_thread(until, lambda: stays in third.log.read_text()[said:], stays)
    assert set_aside(third) == [kept]
    assert (directory_of(third) / "quorum-state.json").read_bytes() == bytes(8192)
    assert read_identity(directory_of(third)).directory_id == before
    # A stop ends the wait, in order.
    await asyncio.to_thread(third.stop)
    second.start()
    assert await back(quorum, third) != before


def spoil_record(directory: Path, offset: int) -> None:
    """Change a byte of the write with this offset in the write-ahead log."""
    wal = max((directory / "log").glob("*.log"))
    content = bytearray(wal.read_bytes())
    found = -1
    for at, kind, behind in pieces(bytes(content)):
        if kind == FULL and behind > 0:
            for one in operations(bytes(content[at + HEADER.size : behind])):
                if isinstance(one, Put) and found < one.offset <= offset:
                    found, place = one.offset, at
    content[place + 30] ^= 0xFF
    wal.write_bytes(content)


async def test_damaged_log_is_repaired_in_place_from_an_intact_majority(voters: Quorum) -> None:
    third = voters.nodes[2]
    async with loaded(voters) as load:
        before = read_identity(directory_of(third)).directory_id
        await asyncio.to_thread(third.kill)
        await load.more(20)
        flip_wal(directory_of(third))
        load.longest_gap_s = 0.0
        assert await back(voters, third) == before
        assert load.longest_gap_s < GAP_S
        (kept,) = set_aside(third)
        assert [one.name for one in kept.iterdir()] == ["log"]
        told = await asyncio.to_thread(raftlog, "explain --json", *voters.at)
        assert "LOG_DAMAGED" in told.out
        assert "has been repaired" in told.out


def says_that(node: ControllerProcess, text: str) -> bool:
    return text in node.log.read_text()


def asked(node: ControllerProcess, path: str) -> tuple[int, str]:
    """Return the status and the page of a path on the node's HTTP port."""
    (address,) = re.findall(r'^http.listener = "(.*)"$', node.config.read_text(), re.MULTILINE)
    connection = HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", f"/{path}")
    response = connection.getresponse()
    return response.status, response.read().decode()


async def test_record_that_is_damaged_everywhere_is_waited_for(quorum: Quorum) -> None:
    await quorum.start()
    async with controllers_of(quorum.endpoints) as client:
        load = Load(client, prefix="nowhere", writers=1)
        await load.more(100)
        await load.stop()
    first, second, third = quorum.nodes
    for node in quorum.nodes:
        await asyncio.to_thread(node.kill)
    with first.config.open("a") as config:
        config.write(f'http.listener = "127.0.0.1:{free_ports(1)[0]}"\n')
    kept = third.config.parent / "kept"
    shutil.copytree(directory_of(third), kept)
    for node in quorum.nodes:
        spoil_record(directory_of(node), 60)
        node.start()
    waits = "are missing; every other controller has answered, and none has them intact"
    for node in quorum.nodes:
        says_so = partial(says_that, node, waits)
        await asyncio.to_thread(until, says_so, waits)
        assert set_aside(node) == []
    told = await asyncio.to_thread(raftlog, "doctor --json", *quorum.at)
    assert "No controller that answers has an intact log: " in told.out
    assert f"{first.endpoint} is repairing its log (offsets 60 to" in told.out
    ready, page = await asyncio.to_thread(asked, first, "readyz")
    assert (ready, "mending: offsets 60 to" in page) == (503, True)
    _, page = await asyncio.to_thread(asked, first, "metrics")
    assert 'raftlog_mending_missing_records{first="60"' in page
    assert f'raftlog_mending_controller_answers{{controller="{third.endpoint}"}} 1.0' in page
    await asyncio.to_thread(third.stop)
    gone = f"are missing; {third.endpoint} may have them, but did not answer"
    await asyncio.to_thread(until, partial(says_that, first, gone), gone)
    # The disk of the third is read again, or its data was copied before.
    shutil.rmtree(directory_of(third))
    kept.rename(directory_of(third))
    third.start()
    await quorum.wait_voters(1, 2, 3)
    for node in (first, second):
        assert len(set_aside(node)) == 1
    assert lost(load.acknowledged, await committed_image(quorum.endpoints)) == []


async def test_voter_with_a_restored_directory_rejoins(voters: Quorum, tmp_path: Path) -> None:
    second = voters.nodes[1]
    async with loaded(voters) as load:
        await asyncio.to_thread(second.kill)
        shutil.copytree(directory_of(second), tmp_path / "older")
        before = await back(voters, second)
        await load.more(20)
        await asyncio.to_thread(second.kill)
        shutil.rmtree(directory_of(second))
        shutil.copytree(tmp_path / "older", directory_of(second))
        load.longest_gap_s = 0.0
        assert await back(voters, second) != before
        assert load.longest_gap_s < GAP_S
        (kept,) = set_aside(second)
        assert read_identity(kept).directory_id == before
        says(second.log, "the data directory was restored from an older copy")


@pytest.mark.nightly
async def test_second_process_on_a_copied_directory_exits(quorum: Quorum, tmp_path: Path) -> None:
    third = quorum.nodes[2]
    (tmp_path / "twin").mkdir()
    settings = third.config.read_text().partition("listeners")[2].partition("\n")[2]
    twin = ControllerProcess(
        tmp_path / "twin", 3, free_ports(1)[0], cluster_id="life", settings=settings
    )
    await quorum.start()
    async with loaded(quorum) as load:
        before = read_identity(directory_of(third)).directory_id
        shutil.copytree(directory_of(third), directory_of(twin))
        twin.start()
        assert twin.process is not None
        assert await asyncio.to_thread(twin.process.wait, PATIENCE_S) == 2
        says(twin.log, "the data directory is in use elsewhere")
        assert set_aside(twin) == []
        await load.more(20)
        leader = await quorum.wait_voters(1, 2, 3)
        assert [one.endpoint for one in leader.voters] == quorum.endpoints
        assert leader.voters[2].replica_directory_id == before


@pytest.mark.nightly
@pytest.mark.timeout(60 + 30 * CASES)
async def test_any_damage_is_repaired_or_harmless(quorum: Quorum) -> None:
    """Damage as :mod:`damage.wounds` draws it, of a follower or of the leader, one after the other."""
    rng, healed, harmless = Random(SEED), 0, 0
    slowest_s = 0.0
    await quorum.start()
    async with loaded(quorum) as load:
        load.longest_gap_s = 0.0
        for _ in range(CASES):
            node = rng.choice(quorum.nodes)
            directory = directory_of(node)
            for kept in set_aside(node):
                kept.rename(node.config.parent / kept.name)
            before = read_identity(directory)
            await asyncio.to_thread(node.kill)
            wound = drawn(Base("killed", "controller", directory, ()), rng)
            inflict(wound, directory)
            begun = time.monotonic()
            if await back(quorum, node) == before.directory_id:
                harmless += 1
            else:
                healed += 1
                slowest_s = max(slowest_s, time.monotonic() - begun)
    print(
        f"\n{CASES} damages: {healed} healed (the slowest after {slowest_s:.1f} s), {harmless}"
        f" harmless; longest pause of writes {load.longest_gap_s:.2f} s;"
        f" {len(load.acknowledged)} writes, none lost"
    )
    assert healed > 0
    assert load.longest_gap_s < GAP_S
