"""Whether any last bytes give a record its checksum: CRC32C, undone over bytes that nobody knows.

The CRC takes one byte in by ``state = (state >> 8) ^ TABLE[(state ^ byte) & 0xFF]``. The top bytes
of TABLE's entries all differ, so the top byte of the new state says which entry it was. Without
that entry, and shifted back, it is the state before but for the low byte, which the unknown byte
went into. Each step back makes one more of the low bytes unknown: after four nothing is known.
"""

from __future__ import annotations

import google_crc32c

CRC_BYTES = 4
"""So many unknown bytes can give any checksum."""
_MASK = 0xFFFFFFFF
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected: the lowest bit is the highest power."""


def _entry(state: int) -> int:
    for _ in range(8):
        state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
    return state


_ENTRY_BY_TOP_BYTE = {entry >> 24: entry for entry in map(_entry, range(256))}


def can_complete(crc: int, known: bytes, missing: int) -> bool:
    """Whether there are ``missing`` bytes such that ``known`` and these have this checksum.

    Where ``known`` has changed since, they exist by chance: with a probability of ``2 ** (8 *
    missing - 32)``.
    """
    before: int = google_crc32c.value(known) ^ _MASK
    wanted = crc ^ _MASK
    for _ in range(missing):
        wanted = ((wanted ^ _ENTRY_BY_TOP_BYTE[wanted >> 24]) << 8) & _MASK
    return (wanted ^ before) >> (8 * missing) == 0


def is_one_bit(crc: int, known: bytes, missing: int) -> bool:
    """Whether ``known`` and ``missing`` bytes of a single one among zeros have this checksum."""
    difference: int = google_crc32c.value(known + bytes(missing)) ^ crc
    one = _POLYNOMIAL
    for _ in range(8 * missing):
        if one == difference:
            return True
        one = (one >> 1) ^ (_POLYNOMIAL if one & 1 else 0)
    return False
