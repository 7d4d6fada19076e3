"""Floors: the offset that a read must show, by time."""

from __future__ import annotations

from bisect import bisect_right


class Floors:
    """Offsets that must be shown, with the times from which they must; both ascending."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []

    def raise_to(self, offset: int, at: float) -> None:
        """Require at least ``offset`` from ``at`` on."""
        if not self._offsets or offset > self._offsets[-1]:
            self._times.append(at)
            self._offsets.append(offset)

    def at(self, time: float) -> int:
        """Return the offset that a read beginning at ``time`` must show."""
        index = bisect_right(self._times, time)
        # Promised at the very moment the read began: neither was before the other.
        while index and self._times[index - 1] == time:
            index -= 1
        return self._offsets[index - 1] if index else -1
