"""Conditions of a write on what the log has now."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

T = TypeVar("T")
ABSENT = -1
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

    Raises TypeError, which names the argument, for anything else than an integer.
    """
    if expected is UNCONDITIONAL:
        return None
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise TypeError(
            f"{argument} is an offset, raftlog.ABSENT or raftlog.UNCONDITIONAL, not"
            f" {type(expected).__name__}: {expected!r:.80}"
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
