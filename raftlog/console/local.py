"""What the console shows of its own node's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raftlog.metadata.image import Image


class Local(NamedTuple):
    """How to read it; each is asked anew at each look."""

    role: str
    node_id: int
    image: Callable[[], Image]
    newest_chunks: Callable[[int], Sequence[bytes]]
    """Of the log in memory, at most so many, ascending."""
    committed_end: Callable[[], int]
    controllers: Callable[[], Sequence[str]]
    """Addresses of controllers, to ask for the rest of the cluster."""
