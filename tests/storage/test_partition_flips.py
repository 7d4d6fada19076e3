"""A changed byte in any file of the partition replicas is found, by an error that names the place,
or harmless: never served, no hang.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from partition_kit import KEYS, flush, open_rocks_partitions
from prober import Prober
from storage_kit import make_chunk
from tiers import nightly

PROBER = Path(__file__).with_name("partition_prober.py")
FLIPS = int(os.environ.get("RAFTLOG_FLIPS", "4"))
"""In each file that matters."""
NOT_DATA = ("LOG", "LOCK", "IDENTITY", "OPTIONS", "rocksdict-config")
"""Files (by prefix) whose content nobody depends on."""


@pytest.fixture
def prober() -> Iterator[Prober]:
    made = Prober(PROBER)
    yield made
    made.close()


async def make_directory(parent: Path, state: str) -> Path:
    """``closed``: in order. ``killed``: as a killed process left it, part of it in the WAL."""
    running = parent / "running"
    for epoch in (1, 2):
        store = open_rocks_partitions(running)
        store.recover()
        for base in range(30 * (epoch - 1), 30 * epoch, 3):
            for key in KEYS:
                store.append(
                    key, make_chunk(base, 1, 2, epoch=epoch, body=b"x" * 150), base, base + 3
                )
        await flush(store)
        if epoch == 2:
            shutil.copytree(running, parent / "killed")
        store.close()
    running.rename(parent / "closed")
    return parent / state


@pytest.mark.parametrize("state", [nightly("closed"), "killed"])
async def test_a_flipped_byte_is_found_or_harmless(
    tmp_path: Path, prober: Prober, state: str
) -> None:
    image = await make_directory(tmp_path, state)
    scratch = tmp_path / "scratch"
    rng = Random(f"flips {state}")
    shutil.copytree(image, scratch)
    sound = prober.open(scratch, "undamaged")
    assert [one[1] for one in sound.values()] == [60] * len(KEYS), sound
    detected: Counter[str] = Counter()
    flips = 0
    for path in sorted(path for path in image.rglob("*") if path.is_file() and path.stat().st_size):
        content, kind = path.read_bytes(), path.suffix or path.name.partition("-")[0]
        size, matters = len(content), not path.name.startswith(NOT_DATA)
        # Both ends, and one of each stretch of equal length.
        count = FLIPS if matters else 1
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
            what = f"{state}: {path.relative_to(image)} at {position} of {size}, mask {mask:#x}"
            found = prober.open(scratch, what)
            flips += 1
            if "error" in found:
                assert (
                    victim.name in found["text"]
                    or "partitions" in found["text"]
                    or "topic" in found["text"]
                ), f"{what}: {found}"
                detected[kind] += 1
            else:
                assert found == sound, f"{what}: {found} instead of {sound}"
    print(f"{state}: {flips} flips, found: {dict(detected)}")
    assert {".json", "CURRENT", "MANIFEST", ".sst"} | (
        {".log"} if state == "killed" else set()
    ) <= set(detected)
