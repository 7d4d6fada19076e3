"""Figures in words, for all who tell people something."""

from __future__ import annotations


def counted(count: int, what: str, plural: str = "") -> str:
    """A number and what it counts: 1 record, 2 records, 0 entities."""
    return f"{count} {what if count == 1 else plural or what + 's'}"
