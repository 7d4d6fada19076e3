"""When the voter set may change, and by how much (KIP-853): one replica at a time, each change
committed before the next.

Why: docs/decisions/005-voters-in-the-log.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.errors import ConfigError
from raftlog.quorum.events import LogSpan
from raftlog.quorum.voters import VoterSet

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


def obstacle(node: Node) -> str:
    """Why this node may not propose another voter set now; empty if it may.

    A leader that has committed nothing of its own epoch may have a change in its log, or lack one,
    that another leader still has to undo or finish: two sets without a common voter could follow.
    """
    start_offset = node.role.start_offset
    if start_offset == -1:
        return "this node does not lead"
    if node.high_watermark <= start_offset:
        return "no record of this epoch is committed yet"
    if node.history.record_offset >= node.high_watermark:
        return f"the change of the voter set at {node.history.record_offset} is not committed yet"
    return ""


def refusal(node: Node, span: LogSpan) -> str:
    """Why the leader may not append the VotersRecords of this span; empty if it may."""
    why = obstacle(node)
    if why:
        return why
    if len(span.voters) > 1:
        return "one change at a time"
    entry = span.voters[0]
    if not entry.voters:
        return "it names no voters"
    if not span.base_offset <= entry.offset < span.end_offset:
        return "its offset is not in the span"
    try:
        proposed = VoterSet(entry.voters)
    except ConfigError as error:
        return str(error)
    # A configured set names no directories for certain: the first set of the log may differ from
    # it.
    if node.history.offset != -1 and node.voters.replicas_changed(proposed) > 1:
        return "it differs from the set in force by more than one replica"
    return ""
