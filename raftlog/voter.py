"""A voter of the quorum, as configurations, records and snapshots name it (KIP-853)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voter:
    """One voter of the set.

    ``directory_id`` empty: not known yet, any directory of that node counts (kraft.version 0).

    ``endpoint`` is host:port, or ``NAME://host:port`` of each of several listeners, with commas
    between them (``raftlog.endpoint``).
    """

    node_id: int
    endpoint: str
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class VotersAt:
    """The voter set in force from ``offset`` on: the offset of its VotersRecord, or the end of the
    snapshot that holds it.
    """

    offset: int
    voters: tuple[Voter, ...]
