"""Waiting requests of clients: each client has a share; the requests of a link end with it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from broker.partition.events import Client
from raftlog.bounds import Shares

T = TypeVar("T", bound=Hashable)


class WaitingOfClients(Generic[T]):
    """Waiting items, at most ``max_total``; one without a client counts, unshared. All O(1)."""

    def __init__(self, max_total: int) -> None:
        self._max_total = max_total
        self._shares = Shares(max_total)
        self._of_link: dict[Hashable, dict[T, None]] = {}
        self.count = 0

    def has_room(self, client: Client | None) -> bool:
        """Return whether one more may wait."""
        if self.count >= self._max_total:
            return False
        return client is None or self._shares.has_room(client.peer)

    def add(self, client: Client | None, item: T) -> None:
        """Add an item. There must be room."""
        self.count += 1
        if client is not None:
            self._shares.take(client.peer)
            self._of_link.setdefault(client.link, {})[item] = None

    def remove(self, client: Client | None, item: T) -> None:
        """Remove a waiting item, and return its place to its client's share."""
        self.count -= 1
        if client is not None:
            self._shares.give_back(client.peer)
            of_link = self._of_link[client.link]
            del of_link[item]
            if not of_link:
                del self._of_link[client.link]

    def of(self, client: Client) -> list[T]:
        """Return the items that wait for a link, in order of arrival."""
        return list(self._of_link.get(client.link, ()))
