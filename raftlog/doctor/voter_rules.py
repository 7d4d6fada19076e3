"""Findings about voters: gone, replaced, run twice, behind, or too few to bear a failure."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.doctor.absence import (
    START,
    gone_voters,
    heard,
    how_many_left,
    lost_voters,
    unanswering,
)
from raftlog.doctor.evidence import Evidence, NodeSeen, Reach
from raftlog.doctor.finding import Finding, Severity
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from raftlog.words import named, span

BEHIND_MS = 10_000
"""A voter whose log was complete so long ago is behind; a slow disk alone is milliseconds."""


def missing_voters(seen: Evidence) -> Iterator[Finding]:
    """There is a leader, and some voter does not answer."""
    if seen.leader is None:
        return
    for node, age_ms in unanswering(seen):
        if heard(age_ms) and not node.fails_for_tls:
            slow = node.reach is Reach.SILENT
            how = f"has not answered within {node.waited_ms} ms" if slow else node.reach
            yield Finding(
                "NODE_SLOW",
                Severity.NOTICE,
                f"Node {node.node_id} {how}, but fetches from the leader"
                f" (last {span(age_ms)} ago).",
                "None: it replicates.",
                "If this stays, look at its load, and at the network from here.",
                f"raftlog quorum describe --bootstrap-controller {node.endpoint}",
            )
    gone = gone_voters(seen)
    if not gone:
        return
    yield Finding(
        "VOTER_DOWN",
        Severity.DEGRADED,
        f"{lost_voters(seen, gone, capital=True)}.",
        f"{how_many_left(seen)}.",
        f"{_revive(gone)} If its disk is lost: docs/operations.md, Replacing a controller's disk.",
        _to_revive(gone),
    )


def _revive(gone: list[NodeSeen]) -> str:
    """What to do about voters that are gone, by how they are gone."""
    reaches = {node.reach for node in gone}
    said = []
    if Reach.REFUSES in reaches:
        said.append("Start what does not run.")
    if Reach.SILENT in reaches:
        said.append(
            "What does not answer hangs, or its machine or network is gone: look at these. End a"
            " process that hangs (kill -9 loses nothing), and start it."
        )
    if Reach.UNRESOLVED in reaches:
        said.append("Where a host name does not resolve, look at the name servers from here.")
    if Reach.OTHER in reaches:
        said.append(
            "Where another program answers, find it on that machine, and end it, or give the node"
            " another port; then start the node."
        )
    return " ".join(said)


def _to_revive(gone: list[NodeSeen]) -> str:
    """The next command; who holds a port has to be known before a node can be started there."""
    taken = [node for node in gone if node.reach is Reach.OTHER and not node.fails_for_tls]
    if len(taken) == len(gone):
        return f"ss -ltnp 'sport = :{taken[0].endpoint.rpartition(':')[2]}'"
    return START


def other_directories(seen: Evidence) -> Iterator[Finding]:
    """A node has the id of a voter, and not its data directory."""
    for node_id, voter in seen.replaced.items():
        yield Finding(
            "VOTER_REPLACED",
            Severity.DEGRADED,
            f"Node {node_id} runs with another data directory than the voter has, which is"
            f" {voter.replica_directory_id}: it follows as an observer.",
            f"It does not count. {how_many_left(seen)}.",
            "If that directory is there (a disk that is not mounted), stop the node and start it"
            " with it. If it is lost: docs/operations.md, Replacing a controller's disk, from"
            " step 2 on.",
            f"raftlog quorum remove-voter --voter-id {node_id}",
        )
    yield from _twins(seen)


def _twins(seen: Evidence) -> Iterator[Finding]:
    leader = seen.leader
    if leader is None:
        return
    for voter in leader.voters:
        twins = [
            one
            for one in leader.observers
            if one.replica_id == voter.replica_id
            and voter.replica_directory_id not in ("", one.replica_directory_id)
            and heard(one.last_fetch_age_ms)
        ]
        if twins and voter.replica_id not in seen.replaced and _lives(leader, voter):
            yield Finding(
                "NODE_ID_TWICE",
                Severity.DEGRADED,
                f"Two nodes run as node {voter.replica_id}: the voter"
                f"{f' at {voter.endpoint}' if voter.endpoint else ''}, and one"
                f" {named([_twin(one) for one in twins])}.",
                "The second follows as an observer, and does not count. Where it should be another"
                " voter, that one is missing.",
                "Stop the second, and give it a node.id and a directory of its own; on its machine"
                " ss -tnp shows the process to which a port belongs.",
                "raftlog quorum describe --replication",
            )


def _twin(one: pb.ReplicaState) -> str:
    where = f"that connects from {one.connected_from}, " if one.connected_from else ""
    return f"{where}with data directory {one.replica_directory_id}"


def _lives(leader: pb.DescribeQuorumResponse, voter: pb.ReplicaState) -> bool:
    return voter.replica_id == leader.node_id or heard(voter.last_fetch_age_ms)


def behind(seen: Evidence) -> Iterator[Finding]:
    """A voter answers, and its log is not complete."""
    leader = seen.leader
    if leader is None:
        return
    up = {
        voter.replica_id
        for voter, node in seen.voters()
        if node is not None and node.description and voter.replica_id not in seen.replaced
    }
    for voter in leader.voters:
        lag = leader.log_end_offset - voter.log_end_offset
        since = voter.last_caught_up_age_ms
        if voter.replica_id not in up or voter.replica_id == leader.node_id:
            continue
        if since == -1 or since > BEHIND_MS:
            last = f"it had all of them {span(since)} ago"
            if since == -1:
                last = f"it has not had all of them since node {leader.node_id} leads"
            yield Finding(
                "VOTER_BEHIND",
                Severity.DEGRADED,
                f"Node {voter.replica_id} lacks {max(0, lag)} records of the leader's log; {last}.",
                "It counts for elections, but not for what is written now.",
                "Wait if it has just been started; else look at its disk and at the network.",
                "raftlog quorum describe --replication",
            )


def fragile(seen: Evidence) -> Iterator[Finding]:
    """The voter set bears no failure."""
    voters = len(list(seen.voters()))
    if seen.leader is not None and voters in (1, 2):
        yield Finding(
            "NO_REDUNDANCY",
            Severity.NOTICE,
            f"The quorum has {voters} voter{'s' if voters > 1 else ''}.",
            "The failure of any of them stops all writes; a lost disk loses the log"
            + (" of one voter." if voters > 1 else "."),
            "Add voters until there are three or five.",
            "raftlog quorum add-voter -c FILE",
        )


RULES = (missing_voters, other_directories, behind, fragile)
