"""The census of a log that is not empty."""

from __future__ import annotations

from replay.errors import ReplayError
from replay.kernels.census import Census, census
from replay.kernels.passes import Rows


def counted(log: Rows) -> Census:
    """Return the census of a log. Raises ReplayError if the log is empty."""
    return something(census(log))


def something(found: Census) -> Census:
    """Return a census of records. Raises ReplayError if there are none."""
    if not found.records:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return found
