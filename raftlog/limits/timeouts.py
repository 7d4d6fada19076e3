"""How long a request may wait: the client says, within bounds."""

from __future__ import annotations

from raftlog.errors import ApiError, ErrorCode


def bounded_timeout_ms(timeout_ms: int, field: str, *, default_ms: int, max_ms: int) -> int:
    """The timeout that a request names in ``field``; ``default_ms`` for 0, and ``max_ms``
    (request.timeout.max.ms) for a longer one. Raises INVALID_REQUEST if it is negative.
    """
    if timeout_ms < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a timeout can't be negative", field=field)
    return min(timeout_ms or default_ms, max_ms)


def heartbeats_fit(heartbeat_interval_ms: int, session_timeout_ms: int) -> bool:
    """Whether a broker that loses one heartbeat keeps its session."""
    return session_timeout_ms > 2 * heartbeat_interval_ms


def fencing_fits(fencing_timeout_ms: int, session_timeout_ms: int) -> bool:
    """Whether the controller fences a silent broker before the broker fences itself (KIP-343)."""
    return fencing_timeout_ms > session_timeout_ms
