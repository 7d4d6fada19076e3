"""A census that an answer can be made of."""

from __future__ import annotations

from replay.errors import ReplayError
from replay.kernels.census import Census, census
from replay.kernels.passes import Rows


def counted(log: Rows) -> Census:
    """Of a log. Raises ReplayError if there is nothing in it."""
    found = census(log)
    if not found.records:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return found
