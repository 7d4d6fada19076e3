"""Lets a node overwrite its vote in place, once no older program may have to read it."""

from __future__ import annotations

from controller.service.node import ControllerNode
from raftlog.metadata.versions import supports_vote_in_place
from raftlog.storage.api import LogStore


class VoteForm:
    """Tells the store at each change of the committed metadata.version; see ``Chore``.

    Before the level is raised, a node may be killed and an older program started on its directory.
    """

    def __init__(self, node: ControllerNode, store: LogStore) -> None:
        self._node, self._store = node, store
        self._in_place = False

    def tick(self, now: float) -> None:
        """Look at the level. Raises FatalError."""
        in_place = supports_vote_in_place(self._node.committed.features)
        if in_place != self._in_place:
            self._in_place = in_place
            self._store.keep_vote_in_place(in_place)
