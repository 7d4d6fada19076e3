"""Why a broker is fenced or not, and why a host is mapped, as BrokerRegistrationChangeRecord and
HostnameRecord say it. Decisions ask for the cause; the ``reason`` beside it is for people alone.
"""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    """``BrokerCause`` of records.proto, which says what each one is."""

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
    """``HostnameCause`` of records.proto, which says what each one is."""

    UNSPECIFIED = 0
    BY_REGISTRATION = 1
    BY_HAND = 2
    STALE = 3


UNVOUCHED = frozenset(
    {Cause.ACTIVE_WITHOUT_HEARTBEATS, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS}
)
"""Unfenced whatever it had applied: LAO does not vouch for such a broker."""
SHUT_DOWN = frozenset({Cause.CONTROLLED_SHUTDOWN, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS})
"""Its process stops in order."""
PLANNED = SHUT_DOWN | {Cause.ASKED_TO_BE_FENCED}
"""Fenced because it wanted to be."""


def cause_name(kind: type[IntEnum], cause: int) -> str | None:
    """The name of a cause, as the Parquet form has it, and the number of one that this build does
    not know. None: it is not said.
    """
    if not cause:
        return None
    known = {each.value: each.name for each in kind}
    return known.get(cause, str(cause))
