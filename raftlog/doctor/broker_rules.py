"""Findings about the brokers and their partitions, as the active controller sees them."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.config.settings import Settings
from raftlog.doctor.evidence import Evidence
from raftlog.doctor.finding import Finding, Severity
from raftlog.metadata.causes import Cause
from raftlog.plural import counted
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.words import brokers, span

_START_IT = ("Start it, or look at its log.", "raftlog broker run -c FILE")
_BY_CAUSE: dict[int, tuple[str, str]] = {
    Cause.SESSION_TIMED_OUT: (
        "It hangs, or its machine or network is gone: look at these. End a process that hangs, and"
        " start it.",
        "raftlog brokers list",
    ),
    Cause.METADATA_LAG: (
        "It does not apply the log: look at its CPU, memory and log. It is let in again by itself.",
        "raftlog brokers list",
    ),
}
"""What to do, and the next command. None that takes anything away [an operator in a hurry copies
it]."""
SESSION_TIMEOUT_MS = Settings.broker_session_timeout_ms
"""Of a leader that does not say its own."""
HELD_BACK_MS = 1_000
"""LAO moves with each write; standing still for so long is worth a line."""


def brokers_unknown(seen: Evidence) -> Iterator[Finding]:
    """There is a leader, and it does not describe the brokers."""
    if seen.leader is not None and seen.brokers is None and seen.brokers_failure:
        yield Finding(
            "BROKERS_UNKNOWN",
            Severity.DEGRADED,
            f"The leader, node {seen.leader.node_id}, does not describe the brokers:"
            f" {seen.brokers_failure}.",
            "A leader that has just been elected folds its log first, and decides nothing yet.",
            "Look again in a second; if this stays, look at its log.",
            "raftlog doctor --watch",
        )


def fenced(seen: Evidence) -> Iterator[Finding]:
    """Brokers that are registered and do not serve."""
    for one in _of(seen):
        if one.state in (pb.ACTIVE, pb.STOPPING):
            continue
        heard = one.last_contact_age_ms
        last = f"; last heard {span(heard)} ago" if heard >= 0 else ""
        if heard < 0 and one.state_age_is_at_least:
            last = "; this leader has not heard of it"
        at_least = "more than " if one.state_age_is_at_least else ""
        why = f": {one.reason}" if one.reason else ""
        remedy, command = _BY_CAUSE.get(one.cause, _START_IT)
        yield Finding(
            "BROKER_FENCED",
            Severity.DEGRADED,
            f"Broker {one.broker_id} ({one.endpoint}) is fenced for {at_least}"
            f"{span(one.state_age_ms)}{why}{last}.",
            "It leads nothing and is in no ISR; writes do not wait for it.",
            f"{remedy} If it will not come back: docs/operations.md, A broker is fenced.",
            command,
        )


def unregistered(seen: Evidence) -> Iterator[Finding]:
    """Brokers that partitions count on, and that are not registered."""
    if missing := _unregistered(seen):
        are = "is" if len(missing) == 1 else "are"
        yield Finding(
            "BROKER_UNREGISTERED",
            Severity.DEGRADED,
            f"{brokers(missing).capitalize()} {are} not registered, and replicas are assigned"
            " there.",
            "What is acknowledged in these partitions is on fewer disks, until the replicas are"
            " moved or the broker is back.",
            "Start the broker, which registers itself, or move its replicas to others.",
            "raftlog partitions reassign --help",
        )


def silent(seen: Evidence) -> Iterator[Finding]:
    """Brokers that serve, as far as is known, and have been silent for half of their session: who
    is busy does not miss two heartbeats.
    """
    told = seen.brokers.broker_session_timeout_ms if seen.brokers is not None else 0
    session_ms = told or SESSION_TIMEOUT_MS
    for one in _of(seen):
        if one.state == pb.ACTIVE and one.last_contact_age_ms > session_ms // 2:
            yield Finding(
                "BROKER_SILENT",
                Severity.NOTICE,
                f"Broker {one.broker_id} ({one.endpoint}) was last heard"
                f" {span(one.last_contact_age_ms)} ago.",
                f"If it stays silent, it is fenced {span(session_ms)} after it was last heard."
                " Until then writes with acks=acknowledged or visible wait for it.",
                "Look at its process, its machine and the network.",
                "raftlog brokers list",
            )


def lao_stalled(seen: Evidence) -> Iterator[Finding]:
    """The lowest acknowledged offset stands still or is unknown."""
    found = seen.brokers
    if found is None or found.held_back_ms < HELD_BACK_MS:
        return
    consequence = (
        "Plain reads show the state of then on every broker; writes with acks=acknowledged or"
        " visible wait."
    )
    if found.lowest_acknowledged_offset < 0:
        yield Finding(
            "LAO_UNKNOWN",
            Severity.DEGRADED,
            f"The lowest acknowledged offset is unknown for {span(found.held_back_ms)}:"
            f" {found.lao_unknown_reason}.",
            consequence,
            "A leader that has just been elected waits for the first reports of its brokers: look"
            " again. If this stays, they do not reach it; their /readyz and logs say why.",
            "raftlog brokers list",
        )
    elif found.held_back_by:
        behind = found.high_watermark - 1 - found.lowest_acknowledged_offset
        yield Finding(
            "LAO_HELD_BACK",
            Severity.DEGRADED,
            f"{brokers(found.held_back_by).capitalize()} {_s('hold', len(found.held_back_by))} the"
            f" lowest acknowledged offset at {found.lowest_acknowledged_offset}, {behind} behind,"
            f" for {span(found.held_back_ms)}.",
            consequence,
            "Look at the disk and the load of that broker; a broker that cannot follow is fenced"
            " when its session ends.",
            "raftlog brokers list",
        )


def partitions(seen: Evidence) -> Iterator[Finding]:
    """Partitions that are not served as they should be."""
    if seen.brokers is None:
        return
    counts = seen.brokers.partitions
    if counts.offline:
        yield Finding(
            "PARTITIONS_OFFLINE",
            Severity.DOWN,
            f"{counted(counts.offline, 'partition')} of {counts.total} {_have(counts.offline)} no"
            " leader: no member of the ISR serves.",
            "Nothing can be produced to them, or consumed.",
            "Start a broker of their ISR. Only if its disk is lost: an unclean election.",
            "raftlog partitions elect --help",
        )
    if counts.under_min_isr:
        yield Finding(
            "PARTITIONS_NOT_WRITABLE",
            Severity.DOWN,
            f"{counted(counts.under_min_isr, 'partition')} of {counts.total}"
            f" {_have(counts.under_min_isr)} fewer replicas in sync than min.insync.replicas.",
            "Producers with acks=all are refused there, with NOT_ENOUGH_REPLICAS; consumers are"
            " served.",
            "Start the brokers of their replicas: column OFFLINE.",
            "raftlog topics describe",
        )
    elif counts.under_replicated and not _inactive(seen) and not _unregistered(seen):
        yield Finding(
            "PARTITIONS_UNDER_REPLICATED",
            Severity.DEGRADED,
            f"{counted(counts.under_replicated, 'partition')} of {counts.total}"
            f" {_have(counts.under_replicated)} fewer replicas in sync than there should be, and no"
            " broker is fenced.",
            "What is acknowledged there is on fewer disks, and fewer brokers can take over.",
            "Wait, if a broker has just been started: it catches up. Else look at its disk, its log"
            " and the network between brokers.",
            "raftlog topics describe",
        )
    if counts.recovering:
        yield Finding(
            "PARTITIONS_RECOVERING",
            Severity.DEGRADED,
            f"{counted(counts.recovering, 'partition')} {_s('recover', counts.recovering)} under an"
            " unclean leader.",
            "Acknowledged records may be missing there.",
            "Wait, then compare with what was produced.",
            "raftlog topics describe",
        )


def none_registered(seen: Evidence) -> Iterator[Finding]:
    """A quorum without brokers."""
    if seen.brokers is not None and not seen.brokers.brokers:
        yield Finding(
            "NO_BROKERS",
            Severity.NOTICE,
            "No broker is registered.",
            "Nobody reads; every write is acknowledged and visible at once.",
            "Start a broker, if there should be one.",
            "raftlog broker run -c FILE",
        )


def _inactive(seen: Evidence) -> bool:
    return any(one.state not in (pb.ACTIVE, pb.STOPPING) for one in _of(seen))


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _s(verb: str, count: int) -> str:
    return f"{verb}s" if count == 1 else verb


def _unregistered(seen: Evidence) -> list[int]:
    return [] if seen.brokers is None else list(seen.brokers.unregistered_replica_ids)


def _of(seen: Evidence) -> list[pb.DescribedBroker]:
    return [] if seen.brokers is None else list(seen.brokers.brokers)


RULES = (brokers_unknown, partitions, lao_stalled, fenced, unregistered, silent, none_registered)
