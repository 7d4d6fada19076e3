"""The processes that this one has started, and those that they have started in turn. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import defaultdict
from collections.abc import Set
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ENDED = frozenset("ZX")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none is lost sight of."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(*, but: Set[int] = frozenset()) -> set[int]:
    """Return the ids of all descendants of this process that have not ended; ``but``: children that
    do not count, nor their descendants.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The command's name, in parentheses, may hold blanks.
            state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in _ENDED:
                children[int(parent)].append(int(directory.name))
    found: set[int] = set()
    following = [child for child in children[os.getpid()] if child not in but]
    while following:
        found.update(following)
        following = [child for pid in following for child in children[pid]]
    return found
