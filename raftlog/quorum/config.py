"""The configuration of a node of the quorum: itself, its peers, and its timeouts."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.endpoint import Voter

__all__ = ["QuorumConfig", "Voter"]

ELECTION_TIMEOUT_MS = 1000
ELECTION_JITTER_MAX_MS = 200
ELECTION_BACKOFF_MAX_MS = 40
FETCH_TIMEOUT_MS = 1000
FETCH_MAX_WAIT_MS = 400
FETCH_MAX_BYTES = 8 << 20
REQUEST_TIMEOUT_MS = 1000
MAX_LEADER_PRIORITY = 1000
"""Highest controller.quorum.leader.priority."""


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """Identity and timing of one node.

    ``voters`` is the set to begin with: it counts until the log or a snapshot names one
    (VotersRecord), and tells where to look for the quorum. It may be empty: then this node is an
    observer, until the log names it. ``bootstrap_servers`` (host:port) are where to look besides;
    who they are is not known. As peers their ids are -2, -3, ... in this order
    (``bootstrap_peers``).

    The election timer is drawn uniformly from [election_timeout_ms, election_timeout_ms +
    election_jitter_max_ms); it serves cold starts and failed elections. A follower that hears
    nothing from its leader for fetch_timeout_ms starts a pre-vote; half the jitter on top keeps two
    followers from doing so in the same instant. A leader that a majority has not fetched from for
    1.5 x fetch_timeout_ms resigns (check-quorum), so that a leader cut off stops claiming success.
    """

    cluster_id: str
    node_id: int
    directory_id: str
    voters: tuple[Voter, ...]
    election_timeout_ms: int = ELECTION_TIMEOUT_MS
    election_jitter_max_ms: int = ELECTION_JITTER_MAX_MS
    fetch_timeout_ms: int = FETCH_TIMEOUT_MS
    election_backoff_max_ms: int = ELECTION_BACKOFF_MAX_MS
    """A refused or split election is tried again after 10 ms to this, spread by node rank."""
    fetch_max_wait_ms: int = FETCH_MAX_WAIT_MS
    high_watermark_linger_ms: int = 20
    """Time for which a replica's fetch stays parked when only the high watermark has changed.

    No other node waits for that: commits need the replica's next acknowledgement, brokers ask the
    leader. It is sent with the next data or round, or after this; at once, as in KIP-1166, it would
    double the messages of every write. 0: at once.
    """
    fetch_max_bytes: int = FETCH_MAX_BYTES
    fetch_snapshot_max_bytes: int = 1 << 20
    """Largest part of a snapshot that is requested, in bytes."""
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    max_metadata_version: int = 1
    """The highest metadata.version this program knows; the leader hears it in every Fetch."""
    endpoint: str = ""
    """Where the others reach this node (``raftlog.endpoint.endpoints_text``); empty: as the voter
    set has it.
    """
    is_spare: bool = False
    """True if this node offers itself as a voter while it observes."""
    leader_priority: int = 0
    """controller.quorum.leader.priority."""
    bootstrap_servers: tuple[str, ...] = ()
    """controller.quorum.bootstrap.servers."""
    configured_voters: tuple[Voter, ...] = ()
    """controller.quorum.voters: another address of a voter that does not answer at its own."""

    @property
    def bootstrap_peers(self) -> tuple[Voter, ...]:
        """The bootstrap servers as peers to fetch from while no voter is known."""
        return tuple(
            Voter(-2 - number, endpoint) for number, endpoint in enumerate(self.bootstrap_servers)
        )
