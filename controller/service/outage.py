"""Says why nobody leads, as far as this node can see: in its log, to clients that it refuses, and
to whoever asks whether it is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from controller.service.node import ControllerNode
from raftlog.quorum.description import QuorumDescription
from raftlog.replica.peer_reach import PeerReach

log = structlog.get_logger(__name__)

FIRST_S = 1.0
"""An election takes less; what lasts longer is worth a line."""
AGAIN_S = 30.0
FOUNDING = " to found a quorum: a configured voter set begins with the votes of all"


class OutageWatch:
    """Looks at each tick whether this node knows a leader.

    ``node.directory.outage`` has the reason for the answers of this node while it knows none.
    """

    def __init__(
        self, node: ControllerNode, told: Callable[[str], None] = lambda reason: None
    ) -> None:
        """``told``: of each reason that is said, and of nothing (empty) when a leader is known."""
        self._node, self._told = node, told
        self._since: float | None = None
        self._say_at = 0.0
        self._said = False

    def tick(self, now: float) -> None:
        """See ``Chore``."""
        node = self._node
        if knows_leader(node.replica.core.role, node.leader_id):
            node.directory.outage = ""
            self._over(now)
            return
        if self._since is None:
            self._since, self._say_at, self._said = now, now + FIRST_S, False
        seen, reach = node.replica.describe(now), node.replica.peer_reach()
        reason = outage_text(seen, node.quorum.node_id, reach)
        node.directory.outage = reason
        if now >= self._say_at:
            self._say_at, self._said = now + AGAIN_S, True
            log.warning("no leader", reason=reason, for_ms=round((now - self._since) * 1000))
            self._told(reason)

    def _over(self, now: float) -> None:
        since, self._since = self._since, None
        if since is not None and self._said:
            self._told("")
            log.info("a leader is known again", after_ms=round((now - since) * 1000))


def knows_leader(role: str, leader_id: int) -> bool:
    """Whether the node leads, or follows a leader; one that asks for votes remembers who led."""
    return role == "leader" or (leader_id >= 0 and role in ("follower", "observer"))


def outage_text(seen: QuorumDescription, node_id: int, peers: Sequence[PeerReach]) -> str:
    """One sentence: how many voters this node can reach, how many are needed, and what is wrong
    with the others.
    """
    voters = [voter.node_id for voter in seen.voter_set]
    if not voters:
        return f"no leader is known in epoch {seen.epoch}: this node knows no voters yet"
    needed = seen.votes_needed or len(voters) // 2 + 1
    by_id = {peer.node_id: peer for peer in peers}
    missing = [by_id.get(one, PeerReach(one, "not dialed yet")) for one in voters if one != node_id]
    missing = [peer for peer in missing if not peer.is_reached]
    reached = len(voters) - len(missing)
    text = (
        f"no leader is known in epoch {seen.epoch}:"
        f" {reached} of {len(voters)} voters can be reached"
    )
    if reached < needed:
        text += f", {needed} are needed"
        if needed > len(voters) // 2 + 1:
            text += FOUNDING
    else:
        text += ", which is enough for an election"
    if missing:
        text += "; " + "; ".join(_lost(peer) for peer in missing)
    return text


def _lost(peer: PeerReach) -> str:
    return f"node {peer.node_id} for {peer.for_ms / 1000:.1f} s: {peer.reason}"
