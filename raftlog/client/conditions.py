"""Conditions of a write on what the log has now."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

T = TypeVar("T")
OFFSET_MAX = (1 << 63) - 1


class Absent(int):
    """Type of ABSENT: an int, so that it goes wherever an offset does, but no other -1 is one."""

    def __reduce__(self) -> str:
        return "ABSENT"

    def __repr__(self) -> str:
        return "raftlog.ABSENT"


ABSENT: Final[int] = Absent(-1)
"""Expected offset of an entity that must not exist."""


class Unconditional(Enum):
    """Type of UNCONDITIONAL."""

    UNCONDITIONAL = "unconditional"


UNCONDITIONAL: Final = Unconditional.UNCONDITIONAL
"""Default of every ``expected`` argument: the write has no condition.

A type of its own: None is often the result of a read or write without an offset, and a write on it
is refused.
"""
Expected = int | Unconditional
"""An offset, ABSENT or UNCONDITIONAL."""


def expected_offset(expected: Expected, argument: str) -> int | None:
    """Return the condition as the wire has it, None for UNCONDITIONAL.

    Raises TypeError for anything else than an integer, ValueError for a negative one. Both name the
    argument.
    """
    if expected is UNCONDITIONAL:
        return None
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise TypeError(
            f"{argument} is an offset, raftlog.ABSENT or raftlog.UNCONDITIONAL, not"
            f" {type(expected).__name__}: {expected!r:.80}"
        )
    if not isinstance(expected, Absent) and not 0 <= expected <= OFFSET_MAX:
        raise ValueError(
            f"{argument}={expected}: an offset from 0 on; raftlog.ABSENT for what must not be there"
        )
    return expected


def expected_values(expected: Mapping[str, T] | Unconditional) -> Mapping[str, T]:
    """Return the expected values by key, none for UNCONDITIONAL. Raises TypeError for None."""
    if expected is UNCONDITIONAL:
        return {}
    if not isinstance(expected, Mapping):
        raise TypeError(
            "expected is a mapping of keys to values or raftlog.UNCONDITIONAL, not"
            f" {type(expected).__name__}: {expected!r:.80}"
        )
    return expected
