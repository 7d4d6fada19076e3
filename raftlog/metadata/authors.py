"""Authors of changes, in words.

A batch names its principal; the batches without one are the controller's own. The log of another
system names no authors at all; the controller is then not named in their place.
"""

from __future__ import annotations

from raftlog.identity import ANONYMOUS_PRINCIPAL


def author(principal: str, client_id: int = 0) -> str:
    """Return the author of a batch of raftlog's own log, for people.

    ``client_id``: of the batch, 0 if its write has no number.
    """
    if principal == ANONYMOUS_PRINCIPAL:
        return f"client {client_id} (no principal)" if client_id else "a client (no principal)"
    return principal or "the controller"


def why_nobody(origin: str) -> str:
    """Return the text in place of an author's name. ``origin``: of the log, as in the manifest."""
    return f"{origin.capitalize()}'s log does not say who asked for a change"
