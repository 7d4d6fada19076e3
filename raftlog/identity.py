"""The identity of a peer, proved by its certificate and token: the node or principal that it is,
and its admission by a listener.
"""

from __future__ import annotations

import getpass
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from raftlog.errors import RaftlogError

_PLACE = "{id}"
_NODE_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_RULE = re.compile(r"(CN=|DNS:|URI:)[!-~]+")


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The identity that a peer has proved in the TLS handshake or by a token.

    ``subject``: the certificate's distinguished name (RFC 2253), or "" without a certificate.
    ``names``: the names to which a :class:`NodeRule` is compared: ``CN=…`` in the subject, and
    ``DNS:…`` and ``URI:…`` in the alternative names. ``fingerprint``: SHA-256 of the certificate,
    in hex. ``principal``: ``User:…`` from a token, or "" without one. A token never adds names, so
    it makes no peer a node. ``ends_at_s``: wall-clock time at which the certificate expires, in
    seconds.
    """

    subject: str = ""
    names: frozenset[str] = frozenset()
    fingerprint: str = ""
    principal: str = ""
    ends_at_s: float = field(default=math.inf, compare=False)

    def __str__(self) -> str:
        certificate = self.subject or ", ".join(sorted(self.names)) or "no certificate"
        return f"{self.principal} with {certificate}" if self.principal else certificate


ANONYMOUS = PeerIdentity()
"""The identity of a peer without a certificate and without a token."""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """The rule by which a certificate names its node (``node.principal.rule``).

    ``pattern``: one name in a certificate, in which ``{id}`` stands for the node id.
    """

    pattern: str

    @classmethod
    def parse(cls, text: str) -> NodeRule:
        """Parse a rule: a name with exactly one ``{id}``. Raises ValueError."""
        if text.count(_PLACE) != 1 or not _RULE.fullmatch(text):
            raise ValueError(
                f"{text!r} is not a rule: write CN=…, DNS:… or URI:… with exactly one {_PLACE}, "
                f"such as CN=node-{_PLACE}"
            )
        return cls(text)

    def name_of(self, node_id: int) -> str:
        """Return the name that a node's certificate must have."""
        return self.pattern.replace(_PLACE, str(node_id))

    def is_node(self, identity: PeerIdentity) -> bool:
        """Return whether the certificate names any node."""
        return bool(self.nodes_of(identity))

    def nodes_of(self, identity: PeerIdentity) -> frozenset[int]:
        """Return the ids of the nodes that the certificate names."""
        before, _, after = self.pattern.partition(_PLACE)
        inside = (
            name[len(before) : len(name) - len(after)]
            for name in identity.names
            if name.startswith(before) and name.endswith(after)
        )
        return frozenset(int(text) for text in inside if _NODE_ID.fullmatch(text))

    def admits(self, identity: PeerIdentity, node_id: int) -> bool:
        """Return whether the certificate names this node."""
        return node_id >= 0 and self.name_of(node_id) in identity.names


ANONYMOUS_PRINCIPAL = "User:ANONYMOUS"
"""Kafka's principal for an unauthenticated client."""
_MAPPING_RULE = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)"
)
_GROUP = re.compile(r"\$(\d)")


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        # A group that does not exist or did not match is replaced by "".
        name = _GROUP.sub(lambda group: _group(found, int(group[1])), self.replacement)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


def _group(found: re.Match[str], number: int) -> str:
    return (found[number] or "") if number <= found.re.groups else ""


_DEFAULT = _Rule(re.compile("(.*)", re.DOTALL), "$1", "")


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """The rules that map a certificate to a principal, in order; the first that matches the whole
    subject applies (Kafka: ``ssl.principal.mapping.rules``).
    """

    rules: tuple[_Rule, ...] = (_DEFAULT,)

    @classmethod
    def parse(cls, text: str) -> PrincipalMapping:
        """Parse ``RULE:pattern/replacement/[LU]`` and ``DEFAULT``, separated by commas.

        Raises ValueError.
        """
        rules: list[_Rule] = []
        position = 0
        while position < len(text):
            found = _MAPPING_RULE.match(text, position)
            if found is None:
                raise ValueError(
                    f"{text[position:]!r} is not a rule: write DEFAULT or "
                    "RULE:pattern/replacement/, followed by L or U for lower or upper case"
                )
            try:
                rules.append(
                    _DEFAULT if found[1] else _Rule(re.compile(found[2]), found[3], found[4])
                )
            except re.error as error:
                raise ValueError(f"{found[2]!r} is not a regular expression: {error}") from error
            position = found.end()
        if not rules:
            raise ValueError("no rule is given; DEFAULT maps the whole subject")
        return cls(tuple(rules))

    def principal_of(self, identity: PeerIdentity) -> str:
        """Return ``User:…``, or ANONYMOUS_PRINCIPAL if there is no subject or no rule matches.

        Never empty: a request forwarded without a principal counts as the broker's own. The rules
        apply to certificates; the name in a token is used unchanged.
        """
        if identity.principal:
            return identity.principal
        for rule in self.rules:
            name = rule.apply(identity.subject)
            if name is not None:
                return f"User:{name}" if name else ANONYMOUS_PRINCIPAL
        return ANONYMOUS_PRINCIPAL


def parse_super_users(text: str) -> frozenset[str]:
    """Parse ``User:alice;User:bob`` (``super.users``). Raises ValueError."""
    names = frozenset(name.strip() for name in text.split(";") if name.strip())
    for name in names:
        if not name.startswith("User:") or name in ("User:", "User:*", ANONYMOUS_PRINCIPAL):
            raise ValueError(f"{name!r} is not a super user: write User: and an authenticated name")
    return names


def os_user() -> str:
    """Return this process's user name, which commands and clients send as their principal, or "" if
    none. It proves nothing.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


TOKEN_MAX_CHARS = 8_192
"""Maximum length of a token, in characters; identity providers' tokens have 1,000 to 2,000."""
EXPIRY_LOOK_AGAIN_S = 60.0
"""Interval in seconds at which expiry is checked again, as the wall clock may have been set."""


class TokenRefusedError(RaftlogError):
    """A token was refused. The message states why, and contains no part of the token."""


class Proved(NamedTuple):
    """The principal of a token that is valid until ``expires_at_s`` on the wall clock."""

    principal: str
    expires_at_s: float


class TokenCheck(Protocol):
    """A verifier of bearer tokens."""

    async def prove(self, token: str, now_s: float) -> Proved:
        """Verify a token. Raises TokenRefusedError. May wait some seconds for the issuer's
        new key.
        """

    def close(self) -> None:
        """Stop fetching keys. Idempotent."""


class Admitted(NamedTuple):
    """The identity of an admitted caller. ``proved``: the identity in its token, or None if the
    call had no token.
    """

    identity: PeerIdentity
    proved: Proved | None = None

    def expired(self, now_s: float) -> str:
        """Return whether the caller's token or certificate has expired, as text that names it, or
        "".
        """
        if self.proved is not None and self.proved.expires_at_s <= now_s:
            return "token"
        return "certificate" if self.identity.ends_at_s <= now_s else ""

    def look_again_in_s(self, now_s: float) -> float:
        """Return the number of seconds until expiry must be checked again; inf if nothing ever
        expires.
        """
        ends_at_s = self.identity.ends_at_s
        if self.proved is not None:
            ends_at_s = min(ends_at_s, self.proved.expires_at_s)
        return math.inf if ends_at_s == math.inf else min(ends_at_s - now_s, EXPIRY_LOOK_AGAIN_S)


@dataclass(frozen=True, slots=True)
class Access:
    """A listener's requirements: a certificate, a bearer token, or either.

    ``certificates``: TLS fails without a certificate from the authority. ``tokens``: the verifier
    of tokens, or None to ignore them. ``clock``: the wall clock, in seconds.
    """

    certificates: bool = True
    tokens: TokenCheck | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if not self.certificates and self.tokens is None:
            raise ValueError(
                "enable certificates or tokens: without both, no client can be authenticated"
            )

    async def admit(self, identity: PeerIdentity, authorization: list[str]) -> Admitted:
        """Identify a caller by its certificate and its ``authorization`` values. Raises
        TokenRefusedError.

        An invalid token is refused even with a valid certificate: otherwise the caller would act
        under an identity it did not intend.
        """
        if self.tokens is None:
            return Admitted(identity)
        if not authorization:
            if self.certificates:
                return Admitted(identity)
            raise TokenRefusedError("the call has no token, which this listener requires")
        proved = await self.tokens.prove(bearer_token(authorization), self.clock())
        return Admitted(replace(identity, principal=proved.principal), proved)


CERTIFICATES_ALONE = Access()
"""The default requirements of a listener."""


def bearer_token(authorization: list[str]) -> str:
    """Return the token in the ``authorization`` values. Raises TokenRefusedError."""
    if len(authorization) != 1:
        raise TokenRefusedError("the call has several tokens")
    scheme, _, token = authorization[0].partition(" ")
    if scheme.lower() != "bearer":
        raise TokenRefusedError("authorization must be `Bearer <token>`")
    if len(token) > TOKEN_MAX_CHARS:
        raise TokenRefusedError(
            f"the token has {len(token)} characters, but at most {TOKEN_MAX_CHARS} are allowed"
        )
    return token
