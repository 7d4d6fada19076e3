"""Who asked for a change, in words.

A batch names its principal. None: the controller did it by itself, or the client said nothing. The
log of another system says nobody's name at all; then the controller is not named in its place.
"""

from __future__ import annotations


def author(principal: str) -> str:
    """For people, of raftlog's own log."""
    return principal or "controller"


def why_nobody(origin: str) -> str:
    """What to say in the place of names. ``origin``: of the log, as the manifest has it."""
    return f"{origin.capitalize()}'s log does not say who asked for a change"
