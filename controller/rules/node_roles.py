"""Roles of nodes in the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.metadata.image import Image


def is_broker_alone(image: Image, configured: Iterable[int], node_id: int) -> bool:
    """Return whether a node is registered as a broker and is not a voter.

    ``configured``: the voters to use if the log contains no voter set. In an old cluster one id may
    be both a broker and a voter; newer builds refuse that.
    """
    if node_id not in image.brokers:
        return False
    voters = configured if image.voters is None else (one.id for one in image.voters.voters)
    return node_id not in voters
