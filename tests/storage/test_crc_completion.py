"""A record that lacks its last bytes is told from one that has changed: by its checksum alone."""

from __future__ import annotations

from random import Random

import google_crc32c
import pytest

from raftlog.storage.wal import masked_crc, unmasked
from raftlog.storage.wal_repair import CRC_BYTES, can_complete, is_one_bit

TRIES = 4_000


def records(rng: Random, missing: int) -> list[tuple[int, bytes]]:
    """The checksums of random records, and what is left of these."""
    found = []
    for _ in range(TRIES):
        record = rng.randbytes(missing + rng.randrange(1, 600))
        found.append((google_crc32c.value(record), record[:-missing]))
    return found


@pytest.mark.parametrize("missing", range(1, CRC_BYTES))
def test_what_only_lacks_its_end_can_be_completed(missing: int) -> None:
    assert all(
        can_complete(crc, known, missing) for crc, known in records(Random(missing), missing)
    )


@pytest.mark.parametrize("missing", range(1, CRC_BYTES))
def test_what_has_changed_cannot(missing: int) -> None:
    """But for the few that chance completes: one of 256 if three bytes are missing, one of 65,536
    if two are.
    """
    rng = Random(missing)
    by_chance = 0
    for crc, known in records(rng, missing):
        changed = bytearray(known)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        by_chance += can_complete(crc, bytes(changed), missing)
    expected = TRIES / 256 if missing == CRC_BYTES - 1 else 0
    assert expected / 3 <= by_chance <= expected * 3


def test_one_missing_byte_is_found_as_by_trying_all_of_them() -> None:
    rng = Random(1)
    for _ in range(200):
        known, crc = rng.randbytes(rng.randrange(20)), rng.getrandbits(32)
        fitting = {google_crc32c.value(known + bytes([byte])) for byte in range(256)}
        assert can_complete(crc, known, 1) is (crc in fitting)
        assert all(can_complete(one, known, 1) for one in fitting)


def test_nothing_missing_is_the_checksum_itself_and_four_bytes_give_any() -> None:
    rng = Random(1)
    for _ in range(200):
        known, crc = rng.randbytes(rng.randrange(20)), rng.getrandbits(32)
        assert can_complete(google_crc32c.value(known), known, 0)
        assert not can_complete(crc, known, 0)
        assert can_complete(crc, known, CRC_BYTES)


def test_a_checksum_is_unmasked() -> None:
    rng = Random(1)
    for _ in range(200):
        record = rng.randbytes(rng.randrange(20))
        assert unmasked(masked_crc(record)) == google_crc32c.value(record)


@pytest.mark.parametrize("missing", [1, 8, 60, 500])
def test_one_bit_among_zeros_is_found_wherever_it_is(missing: int) -> None:
    for bit in range(8 * missing):
        tail = (1 << bit).to_bytes(missing, "big")
        assert is_one_bit(google_crc32c.value(b"known" + tail), b"known", missing)


def test_other_bytes_are_not_one_bit() -> None:
    rng = Random(1)
    assert not is_one_bit(google_crc32c.value(b"known" + bytes(8)), b"known", 8)
    for _ in range(200):
        missing = rng.randrange(8, 500)
        two = (1 << rng.randrange(8, 8 * missing) | 1).to_bytes(missing, "big")
        assert not is_one_bit(google_crc32c.value(b"known" + two), b"known", missing)
