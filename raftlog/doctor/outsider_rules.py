"""Findings about nodes that are no voters and cannot follow either."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.doctor.evidence import Evidence
from raftlog.doctor.finding import Finding, Severity


def removed_ahead(seen: Evidence) -> Iterator[Finding]:
    """A node was removed from the voters while its epoch was above that of the others.

    Each leader refuses it (UNKNOWN_LEADER_EPOCH), and it can give up no epoch in which it may have
    voted. Of a voter that is ahead the others take the epoch, so that one comes back by itself.
    """
    leader = seen.leader
    if leader is None or not leader.voters:
        return
    voters = {(voter.replica_id, voter.replica_directory_id) for voter in leader.voters}
    for one in seen.answers:
        if (
            one.cluster_id != leader.cluster_id
            or one.leader_epoch <= leader.leader_epoch
            or one.leader_id != -1
            or not one.directory_id
            or not voters.isdisjoint({(one.node_id, one.directory_id), (one.node_id, "")})
        ):
            continue
        yield Finding(
            "REMOVED_AHEAD",
            Severity.DEGRADED,
            f"Node {one.node_id} is no voter, and in epoch {one.leader_epoch}; the leader's is"
            f" {leader.leader_epoch}.",
            "It follows nobody, and cannot be added, until the others' epochs have passed its own."
            " The quorum does not need it.",
            "Stop it. If it is to come back, give it an empty directory and add it again:"
            " docs/operations.md, Replacing a controller's disk, from step 3 on.",
            "raftlog storage format -c FILE --no-initial-controllers",
        )


RULES = (removed_ahead,)
