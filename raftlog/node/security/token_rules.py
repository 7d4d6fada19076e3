"""Verify a token against the issuer's keys and the time."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import jwt

from raftlog.identity import ANONYMOUS_PRINCIPAL, TOKEN_MAX_CHARS, Proved, TokenRefusedError
from raftlog.limits import PRINCIPAL_MAX_CHARS, Text
from raftlog.node.security.issuer_keys import ALGORITHMS, KID_MAX_CHARS, KeySet

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TIME_MAX = 2**53
"""Largest time, in seconds; JSON numbers above it are not exact."""
_PRINCIPAL = Text(PRINCIPAL_MAX_CHARS)
_OURS: Any = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_sub"), False)
"""Checks that the library skips, as ``TokenRules`` makes them by the given clock."""


class UnknownKeyError(TokenRefusedError):
    """The issuer has no key with this id; a newer key set may have one."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules for valid tokens (``sasl.oauthbearer.…``)."""

    issuer: str
    audiences: frozenset[str]
    subject_claim: str = "sub"
    skew_s: float = 30.0

    def prove(self, token: str, keys: KeySet, now_s: float) -> Proved:
        """Return the principal of a token and the end of its validity. Raises TokenRefusedError."""
        algorithm, kid = _header(token)
        key = keys.find(kid, algorithm)
        if key is None:
            if kid in keys.ids:
                raise TokenRefusedError(f"the issuer's key does not permit {algorithm}")
            raise UnknownKeyError("the issuer has no key with the token's id (kid)")
        claims = self._verified(token, key, algorithm)
        expires_at_s = self._end(claims, now_s)
        return Proved(self._principal(claims), expires_at_s)

    def _verified(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        options: Any = {**_OURS, "require": ["exp", "iss", "aud", self.subject_claim]}
        try:
            return jwt.decode(
                token,
                key,
                # One of ALGORITHMS, and permitted by this key.
                algorithms=[algorithm],
                issuer=self.issuer,
                audience=self.audiences,
                options=options,
            )
        except jwt.InvalidSignatureError as error:
            raise TokenRefusedError("the signature was not made with the issuer's key") from error
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefusedError(f"the token has no claim {error.claim}") from error
        except jwt.InvalidIssuerError as error:
            raise TokenRefusedError("the token is from another issuer") from error
        except jwt.InvalidAudienceError as error:
            raise TokenRefusedError("the token is for another audience") from error
        except Exception as error:
            # The library may raise anything for foreign input.
            raise TokenRefusedError(f"the token is malformed: {type(error).__name__}") from error

    def _end(self, claims: dict[str, Any], now_s: float) -> float:
        """Return the end of the token's validity, including the skew. Raises TokenRefusedError if
        the token is not valid now.
        """
        ends_s = _time(claims, "exp")
        if ends_s is None or now_s >= ends_s + self.skew_s:
            raise TokenRefusedError("the token has expired")
        for claim in ("nbf", "iat"):
            begins_s = _time(claims, claim)
            if begins_s is not None and now_s < begins_s - self.skew_s:
                raise TokenRefusedError(f"the token is not valid yet ({claim})")
        return ends_s + self.skew_s

    def _principal(self, claims: dict[str, Any]) -> str:
        claim, name = self.subject_claim, claims[self.subject_claim]
        if not isinstance(name, str) or not name or name != name.strip():
            raise TokenRefusedError(f"the claim {claim} must be a name without surrounding spaces")
        principal = f"User:{name}"
        if wrong := _PRINCIPAL.error(principal):
            raise TokenRefusedError(f"the claim {claim}: {wrong}")
        if principal == ANONYMOUS_PRINCIPAL:
            raise TokenRefusedError(f"the claim {claim} is a reserved name")
        return principal


def digest(token: str) -> bytes:
    """Return the cache key of a token, as tokens themselves are never stored."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _header(token: str) -> tuple[str, str]:
    """Return the algorithm and key id in a token's header. Raises TokenRefusedError."""
    if len(token) > TOKEN_MAX_CHARS or not _FORM.fullmatch(token):
        raise TokenRefusedError("the token is not a signed JWT")
    try:
        header = jwt.get_unverified_header(token)
    except Exception as error:
        raise TokenRefusedError(f"the token is malformed: {type(error).__name__}") from error
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefusedError("the token is signed with an algorithm that is not accepted")
    if "crit" in header:
        raise TokenRefusedError("the token requires extensions (crit), which are not supported")
    if not isinstance(kid, str) or not 0 < len(kid) <= KID_MAX_CHARS:
        raise TokenRefusedError("the token does not name its key (kid)")
    return algorithm, kid


def _time(claims: dict[str, Any], claim: str) -> float | None:
    """Return a time claim in seconds, or None if the token does not have it. Raises
    TokenRefusedError.
    """
    value = claims.get(claim)
    if value is None:
        return None
    # bool is a number in Python, and every comparison with NaN is false.
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not -_TIME_MAX < value < _TIME_MAX:
        raise TokenRefusedError(f"the claim {claim} is not a time")
    return float(value)
