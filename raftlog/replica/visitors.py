"""Where the fetches of each replica come from.

A node that is no voter has no address that the others know [of two nodes with one id the second
could not be found].
"""

from __future__ import annotations

from raftlog.transport.api import Link


class Visitors:
    """One entry for each link that fetches, as long as it lives."""

    def __init__(self) -> None:
        self._of: dict[Link, tuple[int, str]] = {}

    def came(self, link: Link, replica_id: int, directory_id: str) -> None:
        """On this link this replica fetches from now on."""
        self._of[link] = (replica_id, directory_id)

    def left(self, link: Link) -> None:
        """The link is gone."""
        self._of.pop(link, None)

    def address(self, replica_id: int, directory_id: str) -> str:
        """Where the newest link of this replica comes from; empty: it has none."""
        found = [link for link, who in self._of.items() if who == (replica_id, directory_id)]
        return found[-1].peer if found else ""
