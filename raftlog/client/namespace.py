"""What ``client.topics``, ``client.configs`` … have in common: the client's core, made when it is
first used.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction

from raftlog.client.arguments import checked
from raftlog.client.core import Core


class Namespace:
    """A group of calls of one client, whose arguments are checked."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, call in [*vars(cls).items()]:
            if iscoroutinefunction(call) and not name.startswith("_"):
                setattr(cls, name, checked(call))

    def __init__(self, opened: Callable[[], Core]) -> None:
        self._opened = opened

    @property
    def _core(self) -> Core:
        return self._opened()
