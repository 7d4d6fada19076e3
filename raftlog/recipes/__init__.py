"""Locks, elections and barriers, built from keys, leases and watches.

``Lock``, ``Election``, ``Barrier`` and ``DoubleBarrier`` are for :class:`raftlog.Client`; the
classes prefixed with ``Async`` are for :class:`raftlog.AsyncClient`. docs/recipes.md states their
guarantees. The names are imported on first use, as the command line does not need them for its list
of commands.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftlog.errors import PlaceLostError
    from raftlog.recipes.barriers import AsyncBarrier, AsyncDoubleBarrier
    from raftlog.recipes.blocking import Barrier, DoubleBarrier, Election, Lock
    from raftlog.recipes.election import AsyncElection, Leader
    from raftlog.recipes.lock import AsyncLock

_HOME = {
    "AsyncBarrier": "barriers",
    "AsyncDoubleBarrier": "barriers",
    "AsyncElection": "election",
    "AsyncLock": "lock",
    "Barrier": "blocking",
    "DoubleBarrier": "blocking",
    "Election": "blocking",
    "Leader": "election",
    "Lock": "blocking",
    "PlaceLostError": "place",
}

__all__ = [
    "AsyncBarrier",
    "AsyncDoubleBarrier",
    "AsyncElection",
    "AsyncLock",
    "Barrier",
    "DoubleBarrier",
    "Election",
    "Leader",
    "Lock",
    "PlaceLostError",
]


if not TYPE_CHECKING:  # Type checkers see the names above, and no others.

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'raftlog.recipes' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"raftlog.recipes.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
