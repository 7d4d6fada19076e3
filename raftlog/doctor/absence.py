"""Voters that are not there: which, for how long, and what is left without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from raftlog.doctor.evidence import Evidence, NodeSeen, Reach
from raftlog.words import clock, named, nodes, span

HEARD_MS = 2_000
"""A voter that the leader has heard so lately lives, whatever it says to us."""
START = "raftlog controller run -c FILE"


def unanswering(seen: Evidence) -> Iterator[tuple[NodeSeen, int]]:
    """Voters that were asked and do not answer, and when the leader last heard of each; -1: never,
    or nobody leads. A voter whose port refuses connections from here and from the leader has
    ended, however lately it was heard.
    """
    leader = seen.leader
    states = {voter.replica_id: voter for voter in (leader.voters if leader is not None else ())}
    for voter, node in seen.voters():
        leads = leader is not None and voter.replica_id == leader.node_id
        if node is not None and node.description is None and not leads:
            told = states.get(voter.replica_id)
            ended = node.reach is Reach.REFUSES and told and told.unreachable_reason
            yield node, -1 if told is None or ended else told.last_fetch_age_ms


def heard(age_ms: int) -> bool:
    """Whether the leader has heard of a voter lately; -1 is never."""
    return 0 <= age_ms < HEARD_MS


def gone_voters(seen: Evidence) -> list[NodeSeen]:
    """Voters that say nothing, neither to us nor to the leader."""
    return [node for node, age_ms in unanswering(seen) if not heard(age_ms)]


def voters_left(seen: Evidence) -> tuple[int, int]:
    """How many voters are neither gone nor replaced nor of another cluster, and how many there
    are.
    """
    total = len(list(seen.voters()))
    return total - len(gone_voters(seen)) - len(seen.strays) - len(seen.replaced), total


def how_many_left(seen: Evidence) -> str:
    """``2 of 3 voters are left: one more failure stops all writes``."""
    left, total = voters_left(seen)
    spare = left - (total // 2 + 1)
    count = f"{left} of {total} voters {'is' if left == 1 else 'are'} left"
    if spare < 0:
        return f"{count}, {total // 2 + 1} are needed"
    return (
        f"{count}: {spare} more may fail"
        if spare
        else f"{count}: one more failure stops all writes"
    )


def lost_voters(seen: Evidence, lost: list[NodeSeen], *, capital: bool = False) -> str:
    """``nodes 1 and 2 refuse connections since 04:54:25Z``, by what was found."""
    by: dict[Reach, list[NodeSeen]] = defaultdict(list)
    for node in lost:
        by[node.reach].append(node)
    said = [_found(seen, reach, several) for reach, several in by.items()]
    text = "; ".join(said)
    return text[0].upper() + text[1:] if capital else text


def _found(seen: Evidence, reach: Reach, lost: list[NodeSeen]) -> str:
    ids = [node.node_id for node in lost]
    since_ms = max(seen.unreachable_ms(one) for one in ids)
    since = f" since {clock(seen.at_ms - since_ms)} ({span(since_ms)})" if since_ms else ""
    why = f" ({lost[0].tls.text or lost[0].failure})" if reach is Reach.OTHER else ""
    if reach is Reach.UNRESOLVED:
        why = f" ({named([node.endpoint for node in lost])})"
    return f"{nodes(ids)} {str(reach) if len(ids) == 1 else _plural(reach)}{since}{why}"


def ended_first(seen: Evidence, missing: list[int]) -> str:
    """What to do before a process can be started that is there and says nothing."""
    silent = [
        node.node_id
        for node in seen.nodes
        if node.node_id in missing and node.reach is Reach.SILENT
    ]
    return f" (a process that hangs has to be ended first: {nodes(silent)})" if silent else ""


def _plural(reach: Reach) -> str:
    return {
        Reach.ANSWERS: "answer",
        Reach.REFUSES: "refuse connections",
        Reach.SILENT: "do not answer",
        Reach.UNRESOLVED: "do not resolve",
        Reach.OTHER: "give another answer",
    }[reach]
