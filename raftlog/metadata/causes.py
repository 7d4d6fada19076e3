"""Why a broker is fenced or not, and why a host is mapped: the one thing that decisions ask, and
the one table of the texts of before.

From metadata.version 6 on a BrokerRegistrationChangeRecord and a HostnameRecord say their cause,
and their ``reason`` is for people alone. Below, and in all logs that were written before, the
reason is all there is: whoever decides something reads the cause of it by :func:`cause_of` or
:func:`hostname_cause_of`, at the time it is asked for. Nothing that is stored changes by that, nor
does any state hash.
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


OLD_TEXTS: dict[str, Cause] = {
    "registered": Cause.REGISTERED,
    "caught up": Cause.CAUGHT_UP,
    "active without heartbeats": Cause.ACTIVE_WITHOUT_HEARTBEATS,
    "session timed out": Cause.SESSION_TIMED_OUT,
    "process gone: its listener refuses connections": Cause.PROCESS_GONE,
    "metadata lag above broker.metadata.lag.max.ms": Cause.METADATA_LAG,
    "asked to be fenced": Cause.ASKED_TO_BE_FENCED,
    "the log was restored or recovered": Cause.LOG_TAKEN_BACK,
    "controlled shutdown": Cause.CONTROLLED_SHUTDOWN,
    "active without heartbeats, controlled shutdown": Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS,
}
"""Every reason that a build below metadata.version 6 writes: part of the format, and never
reworded. Another text has no cause.
"""
OLD_TEXT_OF: dict[Cause, str] = {cause: text for text, cause in OLD_TEXTS.items()}
"""What is written for a cause below that level."""
OLD_HOSTNAME_TEXTS: dict[str, HostnameCause] = {
    "registered": HostnameCause.BY_REGISTRATION,
    "set by hand": HostnameCause.BY_HAND,
    "its broker has registered from another host since": HostnameCause.STALE,
}
"""The same of HostnameRecords."""
OLD_HOSTNAME_TEXT_OF: dict[HostnameCause, str] = {
    cause: text for text, cause in OLD_HOSTNAME_TEXTS.items()
}
"""What is written for such a cause below that level."""

UNVOUCHED = frozenset(
    {Cause.ACTIVE_WITHOUT_HEARTBEATS, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS}
)
"""Unfenced whatever it had applied: LAO does not vouch for such a broker."""
SHUT_DOWN = frozenset({Cause.CONTROLLED_SHUTDOWN, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS})
"""Its process stops in order."""
PLANNED = SHUT_DOWN | {Cause.ASKED_TO_BE_FENCED}
"""Fenced because it wanted to be."""


def cause_of(said: int, reason: str) -> Cause:
    """The cause of a record or an entity: the one that it says, else that of its text.

    Raises ValueError for an unknown number.
    """
    return Cause(said) if said else OLD_TEXTS.get(reason, Cause.UNSPECIFIED)


def hostname_cause_of(said: int, reason: str) -> HostnameCause:
    """The same of a HostnameRecord or a mapping."""
    return (
        HostnameCause(said) if said else OLD_HOSTNAME_TEXTS.get(reason, HostnameCause.UNSPECIFIED)
    )


def cause_name(kind: type[IntEnum], cause: int) -> str | None:
    """The name of a cause, as the Parquet form has it, and the number of one that this build does
    not know. None: it is not said.
    """
    if not cause:
        return None
    known = {each.value: each.name for each in kind}
    return known.get(cause, str(cause))
