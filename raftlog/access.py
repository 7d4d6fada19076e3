"""Who may call a listener: with a certificate, with a bearer token, or both.

The transport asks before any handler sees a call; what checks a token is given to it, so that it
knows nothing of tokens but where they are in a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from raftlog.errors import RaftlogError
from raftlog.identity import PeerIdentity

TOKEN_MAX_CHARS = 8_192
"""Of a token, before anything looks at what is in it; an identity provider's has one or two
thousand.
"""
EXPIRY_LOOK_AGAIN_S = 60.0
"""How often the wall clock is looked at, whether a token has expired: it may be set meanwhile."""


class TokenRefusedError(RaftlogError):
    """A token does not count. The message says why, and has nothing of the token."""


class Proved(NamedTuple):
    """What a valid token proves, until ``expires_at_s`` of the wall clock."""

    principal: str
    expires_at_s: float

    def look_again_in_s(self, now_s: float) -> float:
        """How long to wait before the next look whether it has expired; 0: it has."""
        return min(max(0.0, self.expires_at_s - now_s), EXPIRY_LOOK_AGAIN_S)


class TokenCheck(Protocol):
    """Checks tokens."""

    async def prove(self, token: str, now_s: float) -> Proved:
        """Raises TokenRefusedError.

        It may have to wait for a new key of the issuer, for some seconds at the most.
        """

    def close(self) -> None:
        """Fetch no more keys. Idempotent."""


class Admitted(NamedTuple):
    """Who calls. ``proved``: by a token; None: the call came without one."""

    identity: PeerIdentity
    proved: Proved | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Of one listener.

    ``certificates``: whether TLS fails without a certificate of the authority. ``tokens``: None,
    tokens are not looked at. ``clock``: the wall clock, seconds.
    """

    certificates: bool = True
    tokens: TokenCheck | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if not self.certificates and self.tokens is None:
            raise ValueError("without certificates and tokens nobody could say who they are")

    async def admit(self, identity: PeerIdentity, authorization: list[str]) -> Admitted:
        """Who calls, by what the certificate says and the values of ``authorization``.

        A token that does not count is not passed over, whatever the certificate says: its owner
        would act as somebody else. Raises TokenRefusedError.
        """
        if self.tokens is None:
            return Admitted(identity)
        if not authorization:
            if self.certificates:
                return Admitted(identity)
            raise TokenRefusedError("the call has no token, and this listener takes nothing else")
        proved = await self.tokens.prove(bearer_token(authorization), self.clock())
        return Admitted(replace(identity, principal=proved.principal), proved)


CERTIFICATES_ALONE = Access()
"""As long as nothing else is configured."""


def bearer_token(authorization: list[str]) -> str:
    """The token in the values of ``authorization``. Raises TokenRefusedError."""
    if len(authorization) != 1:
        raise TokenRefusedError("the call has several tokens")
    scheme, _, token = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        raise TokenRefusedError("authorization is not `Bearer` and a token")
    if len(token) > TOKEN_MAX_CHARS:
        raise TokenRefusedError(
            f"a token of {len(token)} characters; {TOKEN_MAX_CHARS} are the most"
        )
    return token
