"""Findings about the leader: why there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from raftlog.doctor.absence import START, ended_first, lost_voters
from raftlog.doctor.evidence import Evidence, NodeSeen, Reach
from raftlog.doctor.finding import Finding, Severity
from raftlog.words import named, nodes

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
    if best is None or seen.leader is not None or seen.heard_leader[0] >= 0:
        return
    voters = list(seen.voters())
    alive = [
        voter.replica_id
        for voter, node in voters
        if node is not None and node.description and voter.replica_id not in seen.replaced
    ]
    majority = len(voters) // 2 + 1
    needed = min((one.votes_needed for one in seen.answers if one.votes_needed), default=majority)
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
        founds = needed > majority
        yield Finding(
            "NO_QUORUM",
            Severity.DOWN,
            f"No leader: {count}, {needed} are needed{' to found a quorum' if founds else ''}"
            f"{'; ' + lost if lost else ''}.",
            _NO_WRITES,
            f"Start {whom}{ended_first(seen, missing)}."
            + (
                " All configured voters must be up once before a new quorum writes anything:"
                " docs/operations.md, Formatting."
                if founds
                else " If their disks are gone for good: docs/operations.md, A quorum lost for"
                " good."
            ),
            START,
        )
        return
    if apart := list(_apart(seen, needed)):
        yield Finding(
            "VOTERS_APART",
            Severity.DOWN,
            f"No leader: {count}, but they do not reach each other: {named(apart)}.",
            _NO_WRITES,
            "Each address is the one that was dialed: compare it with the listeners of that node,"
            " and look at the network between them.",
            "raftlog quorum describe --replication",
        )
        return
    ask = max(one.leader_epoch for one in seen.answers)
    yield Finding(
        "ELECTION",
        Severity.DOWN,
        f"No leader: {count}, which is enough; an election is under way in epoch {ask}.",
        "Nothing can be written until it ends, which takes a second at most.",
        "Look again. If this stays, look at the logs of the voters.",
        "raftlog doctor --watch",
    )


def _apart(seen: Evidence, needed: int) -> Iterator[str]:
    """Whom the voters that answer do not reach, where none of them reaches enough to be elected."""
    ids = [voter.replica_id for voter, _ in seen.voters()]
    answers = [one for one in seen.answers if one.node_id in ids]
    lost = {
        one.node_id: [voter for voter in one.voters if voter.unreachable_reason] for one in answers
    }
    if any(len(ids) - len(of) >= needed for of in lost.values()):
        return
    by: dict[tuple[int, str], list[int]] = defaultdict(list)
    for node_id, of in lost.items():
        for voter in of:
            by[voter.replica_id, voter.unreachable_reason].append(node_id)
    for (node_id, reason), whom in sorted(by.items()):
        yield f"node {node_id} does not answer {nodes(whom)} ({reason})"


def leader_unseen(seen: Evidence) -> Iterator[Finding]:
    """Followers hear a leader, which does not answer here."""
    leader_id, hears = seen.heard_leader
    if leader_id < 0:
        return
    where = next((node for _, node in seen.voters() if node and node.node_id == leader_id), None)
    how = f"{where.reach} here ({where.endpoint})" if where else "was not asked"
    yield Finding(
        "LEADER_UNSEEN",
        Severity.DEGRADED,
        f"Node {leader_id} leads, as {nodes(hears)} {'hears' if len(hears) == 1 else 'hear'} it,"
        f" and {how}.",
        "What the leader alone knows is not known here: brokers, partitions, LAO. The cluster may"
        " serve all the same.",
        "Look again. If this stays, look at the load of that node, and at the network from here.",
        "raftlog doctor --watch",
    )


def writes_refused(seen: Evidence) -> Iterator[Finding]:
    """The leader accepts no writes."""
    if seen.leader is not None and seen.leader.writes_refused:
        yield Finding(
            "WRITES_REFUSED",
            Severity.DOWN,
            f"Every write is refused: {seen.leader.writes_refused}.",
            "Nothing can be written. Reads are served.",
            "Free space on these disks, or give the nodes larger ones. docs/operations.md, A disk"
            " fills up.",
            "raftlog quorum describe --replication",
        )


def _tells_more(node: NodeSeen) -> bool:
    return node.reach is Reach.OTHER and bool(node.failure)


RULES = (nobody_answers, no_leader, leader_unseen, writes_refused)
