"""The causes of fencing, unfencing and mapping hosts, in BrokerRegistrationChangeRecord and
HostnameRecord. Decisions use the cause; the ``reason`` beside it is for people alone.
"""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    """``BrokerCause`` of records.proto, which explains each one."""

    UNSPECIFIED = 0
    REGISTERED = 1
    CAUGHT_UP = 2
    ACTIVE_WITHOUT_HEARTBEATS = 3
    SESSION_TIMED_OUT = 4
    PROCESS_GONE = 5
    METADATA_LAG = 6
    ASKED_TO_BE_FENCED = 7
    LOG_TAKEN_BACK = 8
    CONTROLLED_SHUTDOWN = 9
    CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS = 10


class HostnameCause(IntEnum):
    """``HostnameCause`` of records.proto, which explains each one."""

    UNSPECIFIED = 0
    BY_REGISTRATION = 1
    BY_HAND = 2
    STALE = 3


UNVOUCHED = frozenset(
    {Cause.ACTIVE_WITHOUT_HEARTBEATS, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS}
)
"""Causes of unfencing whatever the broker had applied: LAO does not vouch for it."""
SHUT_DOWN = frozenset({Cause.CONTROLLED_SHUTDOWN, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS})
"""Causes of fencing a broker whose process stops in order."""
PLANNED = SHUT_DOWN | {Cause.ASKED_TO_BE_FENCED}
"""Causes of fencing a broker at its own request."""


def cause_name(kind: type[IntEnum], cause: int) -> str | None:
    """Return the name of a cause, as in the Parquet form, or the number of an unknown one. None: no
    cause is stated.
    """
    if not cause:
        return None
    known = {each.value: each.name for each in kind}
    return known.get(cause, str(cause))
