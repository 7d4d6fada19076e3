"""What ``client.topics``, ``client.configs`` … have in common: the client's core, made when it is
first used.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.library.core import Core


class Namespace:
    """A group of calls of one client."""

    def __init__(self, opened: Callable[[], Core]) -> None:
        self._opened = opened

    @property
    def _core(self) -> Core:
        return self._opened()
