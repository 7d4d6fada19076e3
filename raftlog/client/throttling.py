"""How long to wait before something is tried again that was refused for want of room."""

from __future__ import annotations

from raftlog.errors import ApiError

THROTTLE_MAX_S = 30.0
"""No server keeps a client waiting for longer, whatever it says: a call's own deadline may be far,
or there may be none.
"""


def pause_after(error: ApiError, backoff_s: float) -> float:
    """Seconds: the back-off, and no less than what the server asks for (``throttle_time_ms``)."""
    return max(backoff_s, min(error.throttle_time_ms / 1000, THROTTLE_MAX_S))
