"""The role of a node in the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.metadata.image import Image


def is_broker_alone(image: Image, configured: Iterable[int], node_id: int) -> bool:
    """Return whether a node is registered as a broker, and is not a voter.

    ``configured``: the voters, if the log names none. An id may be both in clusters older than the
    rule against it.
    """
    if node_id not in image.brokers:
        return False
    voters = configured if image.voters is None else (one.id for one in image.voters.voters)
    return node_id not in voters
