"""Why a voter asks for an election: told to operators, and used by no rule."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class CampaignReason(StrEnum):
    """In the order in which they are looked for."""

    NONE = ""
    LEADER_GONE = "leader gone"
    """Its process is gone: its links broke, and its port refuses connections."""
    LEADER_RESIGNED = "leader resigned"
    """It said itself that it leads no more: a stop, a transfer, a disk that is full."""
    FETCH_TIMEOUT = "fetch timeout"
    """It has answered no fetch for the fetch timeout: it hangs, or the network is cut."""
    ASKED_BY_ANOTHER = "another voter asked"
    """Another voter hears no leader either."""
    COLD_START = "cold start"
    """No leader was known when the node started."""
    ELECTION_TIMEOUT = "election timeout"
    """No leader was known for the election timeout."""


def campaign_reason(node: Node) -> CampaignReason:
    """Why ``node`` is about to ask for pre-votes."""
    role, before = node.role.name, node.campaign_reason
    if role == "follower":
        if node.hurry:
            gone = node.lost_leader == node.leader_id
            return CampaignReason.LEADER_GONE if gone else CampaignReason.LEADER_RESIGNED
        timer = node.role.election_timer
        timed_out = timer is None or node.now >= timer
        return CampaignReason.FETCH_TIMEOUT if timed_out else CampaignReason.ASKED_BY_ANOTHER
    if before:
        # Its election was lost, or another's: the reason is still the first one.
        return before
    return CampaignReason.ELECTION_TIMEOUT if node.knew_leader else CampaignReason.COLD_START
