"""A changed byte in any file of a data directory is found, by an error that names the place, or
harmless: never served, no hang.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kill_writer import snapshot_of
from prober import Prober
from storage_kit import (
    IDENTITY,
    flush,
    make_chunk,
    open_rocks,
    without_zeros_ahead,
    write_vote,
)

from raftlog.endpoint import Voter
from raftlog.errors import FatalError
from raftlog.node.storage.api import LogStore, SnapshotId, VoteState
from raftlog.node.storage.directory import format_storage
from raftlog.node.storage.files import Bootstrap, write_vote_file

PROBER = Path(__file__).with_name("flip_prober.py")
FLIPS = int(os.environ.get("RAFTLOG_FLIPS", "4"))
"""In each file that matters."""
NOT_DATA = ("LOG", "LOCK", "lock", "IDENTITY", "OPTIONS", "rocksdict-config")
"""Files (by prefix) whose content nobody depends on."""
SHAPES = ("closed-whole", "killed")
"""``whole``: the log begins at 0, there are three snapshots; else it begins at the end of the first
of them.
"""


async def _snapshot(store: LogStore, end_offset: int, epoch: int) -> SnapshotId:
    made = SnapshotId(end_offset, epoch)
    store.store_snapshot(made, 0, snapshot_of(made))
    done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()
    store.freeze_snapshot(made, done.set_result)
    async with asyncio.timeout(60):
        assert await done is None
    return made


async def make_directory(parent: Path, *, whole: bool) -> dict[str, Path]:
    """A closed store and the same as a killed process left it, with something of everything."""
    closed, killed = parent / "closed", parent / "killed"
    voters = (Voter(1, "one:1", "d1"), Voter(2, "two:2", "d2"))
    format_storage(closed, IDENTITY, bootstrap=Bootstrap(voters, 2))
    write_vote_file(closed, VoteState(3))
    end = 0
    for epoch in (1, 2, 3):
        store = open_rocks(closed)
        store.recover()
        for _ in range(12):
            store.append(make_chunk(end, 1, 2, epoch=epoch, body=b"x" * 150), end, end + 3)
            end += 3
        await flush(store)
        if epoch < 3:
            made = await _snapshot(store, end, epoch)
            if epoch == 1 and not whole:
                store.advance_log_start(made)
        else:
            await _snapshot(store, end - 6, epoch)
            await write_vote(store, VoteState(5, 2, "d2", 2))
            shutil.copytree(closed, killed)
            without_zeros_ahead(killed / "log")
        store.close()
    return {"closed": closed, "killed": killed}


@pytest.fixture
def prober() -> Iterator[Prober]:
    made = Prober(PROBER)
    yield made
    made.close()


def harmless(found: dict[str, Any], sound: dict[str, Any], victim: Path) -> bool:
    """Whether all that is served is what it was: only the damaged snapshot may be missing, or be
    refused by who gets it.
    """
    if victim.suffix != ".checkpoint":
        return found == sound
    name = str(SnapshotId(int(victim.name[:20]), int(victim.name[21:31])))
    assert name in sound["snapshots"]
    rest = {one: content for one, content in sound["snapshots"].items() if one != name}
    refused = {**rest, name: "refused by who fetches it"}
    # Without the newest snapshot, the voters are those of the one before and of the log behind
    # that.
    same = {**found, "snapshots": 0, "voters_since": 0} == {
        **sound,
        "snapshots": 0,
        "voters_since": 0,
    }
    return same and found["snapshots"] in (sound["snapshots"], rest, refused)


def names_the_place(found: dict[str, Any], directory: Path, victim: Path) -> bool:
    """Whether an error helps to find what is damaged: an offset, the file, or (RocksDB does not say
    more) the log's directory.
    """
    text = found["text"]
    return (
        found["offset"] >= 0
        or victim.name in text
        or (victim.parent.name == "log" and f"{directory / 'log'}" in text)
    )


@pytest.mark.parametrize(
    ("shape", "flips"),
    [("killed", 1), *(pytest.param(shape, FLIPS, marks=pytest.mark.nightly) for shape in SHAPES)],
)
async def test_a_flipped_byte_is_found_or_harmless(
    tmp_path: Path, prober: Prober, shape: str, flips: int
) -> None:
    state, _, whole = shape.partition("-")
    image = (await make_directory(tmp_path, whole=bool(whole)))[state]
    scratch = tmp_path / "scratch"
    rng = Random(f"flips {shape}")
    shutil.copytree(image, scratch)
    sound = prober.open(scratch, "undamaged")
    assert "error" not in sound["node"], sound
    assert "error" not in sound["reader"], sound
    assert len(sound["node"]["snapshots"]) == 3
    detected: Counter[str] = Counter()
    tried = 0
    for path in sorted(path for path in image.rglob("*") if path.is_file() and path.stat().st_size):
        content, kind = path.read_bytes(), path.suffix or path.name.partition("-")[0]
        size, matters = len(content), not path.name.startswith(NOT_DATA)
        # Both ends, one of each stretch of equal length, and, for a good measure, its first bytes.
        count = flips if matters else 1
        positions = {
            0,
            size - 1,
            *(
                rng.randrange(size * i // count, size * (i + 1) // count + 1) % size
                for i in range(count)
            ),
        }
        for position in sorted(positions):
            mask = rng.choice((1 << rng.randrange(8), rng.randrange(1, 256)))
            shutil.copytree(image, scratch)
            victim = scratch / path.relative_to(image)
            victim.write_bytes(
                content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]
            )
            what = f"{shape}: {path.relative_to(image)} at {position} of {size}, mask {mask:#x}"
            found = prober.open(scratch, what)
            tried += 1
            for who in ("node", "reader"):
                seen = found[who]
                if "error" in seen:
                    assert names_the_place(seen, scratch, victim), f"{what}: {who}: {seen}"
                    detected[kind] += 1
                else:
                    assert harmless(seen, sound[who], victim), (
                        f"{what}: {who} has {seen} instead of {sound[who]}"
                    )
                    if seen != sound[who]:
                        detected[kind] += 1
    print(f"{shape}: {tried} flips, found: {dict(detected)}")
    wanted = {".json", ".checkpoint", "CURRENT", "MANIFEST", ".sst"} | (
        {".log"} if state == "killed" else set()
    )
    assert wanted <= set(detected)
