"""The configuration of a quorum node: its identity, its peers, and its timeouts."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.endpoint import Voter

__all__ = ["QuorumConfig", "Voter"]

ELECTION_TIMEOUT_MS = 1000
ELECTION_JITTER_MAX_MS = 200
ELECTION_BACKOFF_MAX_MS = 40
FETCH_TIMEOUT_MS = 600
FETCH_MAX_WAIT_MS = 200
FETCH_MAX_BYTES = 8 << 20
REQUEST_TIMEOUT_MS = 1000
MAX_LEADER_PRIORITY = 1000
"""Highest value of controller.quorum.leader.priority."""


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """Identity and timing of one node.

    ``voters`` is the initial voter set: it applies until the log or a snapshot contains one
    (VotersRecord), and names the addresses at which to look for the quorum. If it is empty, this
    node is an observer until the log names it as a voter. ``bootstrap_servers`` (host:port) are
    further addresses to try; which nodes answer there is unknown. As peers they have the ids -2,
    -3, ... in this order (``bootstrap_peers``).

    The election timer is drawn uniformly from [election_timeout_ms, election_timeout_ms +
    election_jitter_max_ms); it serves cold starts and failed elections. A follower that hears
    nothing from its leader for fetch_timeout_ms starts a pre-vote; up to half the jitter is added,
    so that two followers do not start one at the same instant. A leader from which no majority has
    fetched for 1.5 x fetch_timeout_ms resigns (check-quorum), so that a partitioned leader stops
    claiming success.
    """

    cluster_id: str
    node_id: int
    directory_id: str
    voters: tuple[Voter, ...]
    election_timeout_ms: int = ELECTION_TIMEOUT_MS
    election_jitter_max_ms: int = ELECTION_JITTER_MAX_MS
    fetch_timeout_ms: int = FETCH_TIMEOUT_MS
    election_backoff_max_ms: int = ELECTION_BACKOFF_MAX_MS
    """Longest pause before a refused or split election is repeated. The shortest is 10 ms; the
    pauses are spread by node rank.
    """
    fetch_max_wait_ms: int = FETCH_MAX_WAIT_MS
    high_watermark_linger_ms: int = 20
    """Longest time for which a replica's Fetch stays parked when only the high watermark has
    changed; 0: answer at once.

    No other node waits for that response: commits need only the replica's next acknowledgement, and
    brokers fetch from the leader. The new high watermark is sent with the next data or round, or
    after this time. Answering at once, as in KIP-1166, would double the messages of every write.
    """
    fetch_max_bytes: int = FETCH_MAX_BYTES
    fetch_snapshot_max_bytes: int = 1 << 20
    """Largest part of a snapshot, in bytes, for which one request asks."""
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    max_metadata_version: int = 1
    """Highest metadata.version that this program supports; every Fetch reports it to the leader."""
    endpoint: str = ""
    """Endpoints at which other nodes reach this node (``raftlog.endpoint.endpoints_text``); if
    empty, its endpoint in the voter set.
    """
    is_spare: bool = False
    """Whether this node offers itself as a voter while it is an observer."""
    leader_priority: int = 0
    bootstrap_servers: tuple[str, ...] = ()
    configured_voters: tuple[Voter, ...] = ()
    """The voters in controller.quorum.voters: alternative addresses for voters that do not answer
    at those in the voter set.
    """

    @property
    def bootstrap_peers(self) -> tuple[Voter, ...]:
        """The bootstrap servers as peers to fetch from while no voter is known."""
        return tuple(
            Voter(-2 - number, endpoint) for number, endpoint in enumerate(self.bootstrap_servers)
        )
