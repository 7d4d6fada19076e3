"""Linearizability of a register whose writes are all of different values: decided exactly, in O(n
log n) (Gibbons and Korach 1997).

A value's *cluster* is its write and the reads that returned it; in any legal order a cluster stands
together. With ``f`` the first return and ``s`` the last invocation in it, cluster i must come
before j if f_i < s_j. The history is linearizable exactly if no two clusters must come before each
other. No search, so no bound: Wing and Gong's is exponential in the writes that overlap.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from simulation.checks.linearizability import UNKNOWN, Entry


def check_register(history: Sequence[Entry]) -> bool:
    """Return whether a history of ("write", value) and ("read",) is linearizable.

    Raises ValueError if a value is written twice.
    """
    writes: dict[object, tuple[float, float]] = {None: (-math.inf, -math.inf)}
    reads = [entry for entry in history if entry.call[0] == "read" and entry.result != UNKNOWN]
    read_values = {entry.result for entry in reads}
    for entry in history:
        if entry.call[0] != "write" or (entry.is_open and entry.call[1] not in read_values):
            # Of an unknown write that nobody has seen nothing follows.
            continue
        if entry.call[1] in writes:
            raise ValueError(f"{entry.call[1]!r} is written twice")
        writes[entry.call[1]] = entry.invoked_at, entry.returned_at
    first = {value: returned for value, (_, returned) in writes.items()}
    last = {value: invoked for value, (invoked, _) in writes.items()}
    for entry in reads:
        value = entry.result
        if value not in writes or entry.returned_at < writes[value][0]:
            return False
        first[value] = min(first[value], entry.returned_at)
        last[value] = max(last[value], entry.invoked_at)
    return _no_two_before_each_other([(first[value], last[value]) for value in writes])


def _no_two_before_each_other(clusters: list[tuple[float, float]]) -> bool:
    """Return whether the clusters (f, s) have no pair i, j with f_i < s_j and f_j < s_i."""
    # Clusters with f < s span [f, s] and must not overlap; one with s <= f must not lie within such
    # a span. Others never collide.
    spans = sorted((f, s) for f, s in clusters if f < s)
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        return False
    for f, s in clusters:
        if s <= f:
            at = bisect_left(spans, (s, -math.inf)) - 1
            if at >= 0 and f < spans[at][1]:
                return False
    return True
