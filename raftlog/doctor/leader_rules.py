"""Findings about the leader: why there is none."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.doctor.absence import START, ended_first, lost_voters
from raftlog.doctor.evidence import Evidence, NodeSeen, Reach
from raftlog.doctor.finding import Finding, Severity
from raftlog.words import nodes

_NO_WRITES = (
    "Nothing can be written. Brokers serve reads until they have been without contact for"
    " broker.fencing.timeout.ms (12 s by default), then they fence themselves."
)


def nobody_answers(seen: Evidence) -> Iterator[Finding]:
    """No controller says anything."""
    unexplained = [node for node in seen.nodes if not node.fails_for_tls]
    if seen.answers or not unexplained:
        return
    reasons = "; ".join(
        f"{node.endpoint} {node.reach}" + (f" ({node.failure})" if _tells_more(node) else "")
        for node in unexplained
    )
    if any(node.reach is Reach.OTHER for node in unexplained):
        yield Finding(
            "NOBODY_ANSWERS",
            Severity.DOWN,
            f"No controller answers: {reasons}.",
            "Nothing is known of the cluster: what answers is no controller, or lets nobody in.",
            "Give the addresses on which controllers serve gRPC (listeners in their"
            " configuration), and the certificate or token that they ask for: raftlog certs"
            " inspect says until when it is valid.",
            "raftlog doctor --bootstrap-controller HOST:PORT",
        )
        return
    yield Finding(
        "NOBODY_ANSWERS",
        Severity.DOWN,
        f"No controller answers: {reasons}.",
        _NO_WRITES,
        "Check the addresses, then start the controllers.",
        START,
    )


def no_leader(seen: Evidence) -> Iterator[Finding]:
    """Controllers answer, and none of them leads."""
    best = seen.best
    if best is None or seen.leader is not None:
        return
    voters = list(seen.voters())
    alive = [
        voter.replica_id
        for voter, node in voters
        if node is not None and node.description and voter.replica_id not in seen.replaced
    ]
    needed = len(voters) // 2 + 1
    if not voters:
        yield Finding(
            "NO_VOTERS",
            Severity.DOWN,
            "No leader: the nodes that answer know no voters.",
            "Nothing can be written.",
            "Give one controller a voter set when it is formatted, then let the others join.",
            "raftlog storage format -c FILE --standalone",
        )
        return
    count = f"{len(alive)} of {len(voters)} voters answer{'s' if len(alive) == 1 else ''}"
    if len(alive) < needed:
        lost = lost_voters(seen, [node for _, node in voters if node and not node.description])
        missing = [voter.replica_id for voter, _ in voters if voter.replica_id not in alive]
        short = needed - len(alive)
        some = "one" if short == 1 else str(short)
        whom = nodes(missing) if short == len(missing) else f"{some} of {nodes(missing)}"
        yield Finding(
            "NO_QUORUM",
            Severity.DOWN,
            f"No leader: {count}, {needed} are needed{'; ' + lost if lost else ''}.",
            _NO_WRITES,
            f"Start {whom}{ended_first(seen, missing)}. If their disks are gone for good:"
            " docs/operations.md, A quorum lost for good.",
            START,
        )
        return
    ask = max(one.leader_epoch for one in seen.answers)
    yield Finding(
        "ELECTION",
        Severity.DOWN,
        f"No leader: {count}, which is enough; an election is under way in epoch {ask}.",
        "Nothing can be written until it ends, which takes a second at most.",
        "Look again. If this stays, the voters cannot reach each other: compare the REACHES column"
        " of each.",
        "raftlog doctor --watch",
    )


def _tells_more(node: NodeSeen) -> bool:
    return node.reach is Reach.OTHER and bool(node.failure)


RULES = (nobody_answers, no_leader)
