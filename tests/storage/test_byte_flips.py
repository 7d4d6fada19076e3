"""A changed byte in any file of a data directory is detected by an error that names the place, or
harmless: never served, no hang.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flip_prober import Prober
from partition_kit import KEYS, open_rocks_partitions
from partition_kit import flush as flush_partitions
from storage_kit import (
    IDENTITY,
    flush,
    make_chunk,
    make_snapshot,
    open_rocks,
    without_zeros_ahead,
    write_vote,
)

from raftlog.endpoint import Voter
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.node.storage.directory import format_storage
from raftlog.node.storage.files import Bootstrap, write_vote_file

FLIPS = int(os.environ.get("RAFTLOG_FLIPS", "4"))
"""Number of flips in each file."""
NOT_DATA = ("LOG", "LOCK", "lock", "IDENTITY", "OPTIONS", "rocksdict-config")
"""Prefixes of files whose content no reader depends on."""
STATES = ("closed", "killed")
SHAPES = ("closed-whole", "killed")
"""``whole``: the log begins at 0, with three snapshots; else at the first one's end."""


async def make_directory(parent: Path, *, whole: bool) -> dict[str, Path]:
    """Make a closed store and a copy as a killed process leaves it, with something of everything."""
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
            assert await make_snapshot(store, SnapshotId(end, epoch)) is None
            if epoch == 1 and not whole:
                store.advance_log_start(SnapshotId(end, epoch))
        else:
            assert await make_snapshot(store, SnapshotId(end - 6, epoch)) is None
            await write_vote(store, VoteState(5, 2, "d2", 2))
            shutil.copytree(closed, killed)
            without_zeros_ahead(killed / "log")
        store.close()
    return {"closed": closed, "killed": killed}


async def make_partitions(parent: Path) -> dict[str, Path]:
    """Make partition replicas: closed, and as a killed process leaves them."""
    running, killed = parent / "running", parent / "killed"
    for epoch in (1, 2):
        store = open_rocks_partitions(running)
        store.recover()
        for base in range(30 * (epoch - 1), 30 * epoch, 3):
            chunk = make_chunk(base, 1, 2, epoch=epoch, body=b"x" * 150)
            for key in KEYS:
                store.append(key, chunk, base, base + 3)
        await flush_partitions(store)
        if epoch == 2:
            shutil.copytree(running, killed)
        store.close()
    return {"closed": running, "killed": killed}


def harmless(found: dict[str, Any], sound: dict[str, Any], victim: Path) -> bool:
    """Return whether all served is unchanged; a damaged snapshot may be missing or refused."""
    if victim.suffix != ".checkpoint":
        return found == sound
    name = str(SnapshotId(int(victim.name[:20]), int(victim.name[21:31])))
    assert name in sound["snapshots"]
    rest = {one: content for one, content in sound["snapshots"].items() if one != name}
    refused = {**rest, name: "refused by who fetches it"}
    # Without the newest snapshot, the voters are those of the one before and of the log after
    # that.
    same = {**found, "snapshots": 0, "voters_since": 0} == {
        **sound,
        "snapshots": 0,
        "voters_since": 0,
    }
    return same and found["snapshots"] in (sound["snapshots"], rest, refused)


def names_the_place(found: dict[str, Any], directory: Path, victim: Path) -> bool:
    """Return whether an error names the place: an offset, the file, or the log's directory."""
    text = found["text"]
    return (
        found["offset"] >= 0
        or victim.name in text
        or (victim.parent.name == "log" and f"{directory / 'log'}" in text)
    )


def flipped(image: Path, scratch: Path, name: str, flips: int) -> Iterator[tuple[Path, str]]:
    """Copy the image to ``scratch`` for each flip; yield the changed file, and a description."""
    rng = Random(f"flips {name}")
    for path in sorted(path for path in image.rglob("*") if path.is_file() and path.stat().st_size):
        content, size = path.read_bytes(), path.stat().st_size
        # Both ends, and one of each stretch of equal length.
        count = 1 if path.name.startswith(NOT_DATA) else flips
        stretches = (
            rng.randrange(size * i // count, size * (i + 1) // count + 1) % size
            for i in range(count)
        )
        for position in sorted({0, size - 1, *stretches}):
            mask = rng.choice((1 << rng.randrange(8), rng.randrange(1, 256)))
            shutil.copytree(image, scratch)
            victim = scratch / path.relative_to(image)
            victim.write_bytes(
                content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]
            )
            yield victim, f"{path.relative_to(image)} at {position} of {size}, mask {mask:#x}"


def check_flips(
    image: Path,
    kind: str,
    flips: int,
    is_harmless: Callable[[dict[str, Any], dict[str, Any], Path], bool],
    is_named: Callable[[dict[str, Any], Path, Path], bool],
) -> dict[str, Any]:
    """Flip bytes, and compare each reader's findings with the undamaged image; return the latter."""
    scratch, prober = image.with_name("scratch"), Prober(kind)
    try:
        shutil.copytree(image, scratch)
        sound = prober.open(scratch, "undamaged")
        assert not [one for one in sound.values() if "error" in one], sound
        detected: Counter[str] = Counter()
        for victim, what in flipped(image, scratch, image.name, flips):
            for who, seen in prober.open(scratch, what).items():
                if "error" in seen:
                    assert is_named(seen, scratch, victim), f"{what}: {who}: {seen}"
                else:
                    assert is_harmless(seen, sound[who], victim), (
                        f"{what}: {who} has {seen} instead of {sound[who]}"
                    )
                detected[victim.suffix or victim.name.partition("-")[0]] += seen != sound[who]
    finally:
        prober.close()
    print(f"{kind} {image.name}, found: {dict(detected)}")
    wanted = {".json", "CURRENT", "MANIFEST", ".sst", *([".log"] if image.name == "killed" else [])}
    assert wanted <= {suffix for suffix, count in detected.items() if count}
    assert kind != "log" or detected[".checkpoint"]
    return sound


@pytest.mark.parametrize(
    ("shape", "flips"),
    [("killed", 1), *(pytest.param(shape, FLIPS, marks=pytest.mark.nightly) for shape in SHAPES)],
)
async def test_flipped_byte_of_a_log_is_detected(tmp_path: Path, shape: str, flips: int) -> None:
    state, _, whole = shape.partition("-")
    image = (await make_directory(tmp_path, whole=bool(whole)))[state]
    sound = check_flips(image, "log", flips, harmless, names_the_place)
    assert len(sound["node"]["snapshots"]) == 3


@pytest.mark.parametrize(
    ("state", "flips"),
    [("killed", 1), *(pytest.param(state, FLIPS, marks=pytest.mark.nightly) for state in STATES)],
)
async def test_flipped_byte_of_partitions_is_detected_or_harmless(
    tmp_path: Path, state: str, flips: int
) -> None:
    image = (await make_partitions(tmp_path))[state]

    def is_named(found: dict[str, Any], directory: Path, victim: Path) -> bool:
        return any(name in found["text"] for name in (victim.name, "partitions", "topic"))

    sound = check_flips(
        image, "partitions", flips, lambda found, sound, _: found == sound, is_named
    )
    assert [one[1] for one in sound["broker"].values()] == [60] * len(KEYS)
