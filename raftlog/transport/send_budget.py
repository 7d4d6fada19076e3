"""What all links together may keep unsent.

Above it the slowest reader is cut: the link that has got nothing out for the longest.
"""

from __future__ import annotations

from typing import Protocol


class Cuttable(Protocol):
    """A link with something unsent."""

    def cut(self, reason: str) -> None:
        """Close it; it gives back what it holds."""


class SendBudget:
    """The bytes that wait to be sent, on all links of a transport."""

    def __init__(self, max_total_bytes: int) -> None:
        self._max_total_bytes = max_total_bytes
        self.total_bytes = 0
        # In the order in which they last got something out: the first is the slowest.
        self._behind: dict[Cuttable, None] = {}

    def add(self, link: Cuttable, count: int) -> None:
        """A link has so many more bytes to send. May cut links, this one among them."""
        self.total_bytes += count
        if link not in self._behind:
            self._behind[link] = None
        while self.total_bytes > self._max_total_bytes and self._behind:
            slowest = next(iter(self._behind))
            before = self.total_bytes
            slowest.cut(
                f"{before} bytes wait unsent on all links, and this one has read nothing for the"
                " longest"
            )
            self._behind.pop(slowest, None)
            if self.total_bytes == before:
                return

    def sent(self, link: Cuttable, count: int, *, all_sent: bool) -> None:
        """So many of them have left, or are dropped."""
        self.total_bytes -= count
        self._behind.pop(link, None)
        if not all_sent:
            self._behind[link] = None
