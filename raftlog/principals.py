"""Which principal a client is: the one of its token, or what the rules make of its certificate
(Kafka: ``ssl.principal.mapping.rules``).
"""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass

from raftlog.identity import PeerIdentity

ANONYMOUS_PRINCIPAL = "User:ANONYMOUS"
"""Kafka's name of one who has not said who it is."""
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
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
        # A group that is not there or has not matched is empty.
        name = _GROUP.sub(lambda group: _group(found, int(group[1])), self.replacement)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


def _group(found: re.Match[str], number: int) -> str:
    return (found[number] or "") if number <= found.re.groups else ""


_DEFAULT = _Rule(re.compile("(.*)", re.DOTALL), "$1", "")


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """The rules, in order: the first that matches the whole subject names the principal."""

    rules: tuple[_Rule, ...] = (_DEFAULT,)

    @classmethod
    def parse(cls, text: str) -> PrincipalMapping:
        """Of ``RULE:pattern/replacement/[LU]`` and ``DEFAULT``, separated by commas.

        Raises ValueError.
        """
        rules: list[_Rule] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise ValueError(
                    f"{text[position:]!r} is no rule: it is DEFAULT or"
                    " RULE:pattern/replacement/, with L or U behind it for lower or upper case"
                )
            try:
                rules.append(
                    _DEFAULT if found[1] else _Rule(re.compile(found[2]), found[3], found[4])
                )
            except re.error as error:
                raise ValueError(f"{found[2]!r} is no regular expression: {error}") from error
            position = found.end()
        if not rules:
            raise ValueError("there is no rule; DEFAULT takes the whole subject")
        return cls(tuple(rules))

    def principal_of(self, identity: PeerIdentity) -> str:
        """``User:…``; ANONYMOUS_PRINCIPAL if there is no subject, or no rule matches it.

        Never empty: what a broker forwards without a principal is its own request. The rules are
        about certificates: the name in a token is taken as it is.
        """
        if identity.principal:
            return identity.principal
        for rule in self.rules:
            name = rule.apply(identity.subject)
            if name is not None:
                return f"User:{name}" if name else ANONYMOUS_PRINCIPAL
        return ANONYMOUS_PRINCIPAL


def parse_super_users(text: str) -> frozenset[str]:
    """Of ``User:alice;User:bob`` (``super.users``). Raises ValueError."""
    names = frozenset(name.strip() for name in text.split(";") if name.strip())
    for name in names:
        if not name.startswith("User:") or name in ("User:", "User:*", ANONYMOUS_PRINCIPAL):
            raise ValueError(
                f"{name!r} is no super user: it is User: and the name of one who has proved it"
            )
    return names


def os_user() -> str:
    """Return the user who runs this process, which commands and clients state as their principal.

    It proves nothing. Empty if the user has no name.
    """
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
