"""Who makes a call: found out once, before any handler sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from raftlog.access import TOKEN_MAX_CHARS, Access, Admitted, Proved, TokenRefusedError
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.transport.bounds import Bounds
from raftlog.transport.complaints import Complaint, Complaints
from raftlog.transport.peer_identity import identity_of
from raftlog.transport.statuses import peer_address

AUTHORIZATION_KEY = "authorization"
"""The metadata of a call that has its token: ``Bearer`` and the token."""
METADATA_MAX_BYTES = TOKEN_MAX_CHARS + 4_096
"""Of a call's metadata, where tokens are taken. gRPC refuses some calls with more, and all with
16 KiB."""
EXPIRED = "the token has expired: connect again with a fresh one"

_CALLER: ContextVar[PeerIdentity] = ContextVar("raftlog_caller")
_COMPLAINTS: ContextVar[Complaints] = ContextVar("raftlog_complaints")
"""gRPC runs each call in a task of its own, from the interceptors to the handler."""


async def admit(context: Any, access: Access, bounds: Bounds) -> Admitted:
    """Who makes this call. Raises ApiError, which the caller is to be told."""
    shown = identity_of(context)
    if access.tokens is None:
        return Admitted(shown)
    # What is not UTF-8 gRPC hands over as bytes: it is no token, whatever its text.
    authorization = [
        str(value) for key, value in context.invocation_metadata() if key == AUTHORIZATION_KEY
    ]
    try:
        return await access.admit(shown, authorization)
    except TokenRefusedError as error:
        raise bounds.unauthenticated(peer_address(context), str(error)) from error


def remember(identity: PeerIdentity, complaints: Complaints) -> None:
    """For the handler of the call that runs here."""
    _CALLER.set(identity)
    _COMPLAINTS.set(complaints)


def remembered(context: Any) -> PeerIdentity:
    """Who makes the call that runs here."""
    return _CALLER.get(None) or identity_of(context)


def complaining(peer: str) -> Callable[[str], None] | None:
    """Counts what the caller of the call that runs here may not do; None: nobody counts."""
    complaints = _COMPLAINTS.get(None)
    return None if complaints is None else partial(complaints.add, Complaint.FORBIDDEN, peer)


class ExpiryTimer:
    """Tells once when a token has expired, on whatever the wall clock says by then."""

    def __init__(self, proved: Proved, access: Access, expired: Callable[[ApiError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._proved, self._clock, self._expired = proved, access.clock, expired
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def cancel(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        pause_s = self._proved.look_again_in_s(self._clock())
        if pause_s > 0:
            self._timer = self._loop.call_later(pause_s, self._look)
        else:
            self._timer = None
            self._expired(ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, EXPIRED))
