"""Calls that the event loop makes later, for those who do not use the event loop."""

from __future__ import annotations

from typing import Protocol


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It does not come."""
