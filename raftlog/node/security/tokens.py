"""Checks the bearer tokens of a node's callers.

A verdict is remembered until the token expires, so that a unary call costs a digest and not a
signature; with other keys of the issuer all are given anew.
"""

from __future__ import annotations

from collections import OrderedDict

from raftlog.identity import Proved, TokenRefusedError
from raftlog.node.security.jwks import KeySet
from raftlog.node.security.key_sources import KeySource
from raftlog.node.security.token_rules import TokenRules, UnknownKeyError, digest

REMEMBERED = 4_096
"""Verdicts, the longest unused ones forgotten; only those of valid tokens."""


class Tokens:
    """Implements :class:`raftlog.identity.TokenCheck`."""

    def __init__(self, rules: TokenRules, keys: KeySource, *, remembered: int = REMEMBERED) -> None:
        self._rules, self._source, self._most = rules, keys, remembered
        self._verdicts: OrderedDict[bytes, Proved] = OrderedDict()
        self._keys: KeySet | None = None
        """Those that the verdicts are of."""

    async def prove(self, token: str, now_s: float) -> Proved:
        """See there."""
        try:
            return self._prove(token, now_s)
        except UnknownKeyError:
            await self._source.newer()
            return self._prove(token, now_s)

    def close(self) -> None:
        """See there."""
        self._source.close()

    def _prove(self, token: str, now_s: float) -> Proved:
        keys = self._source.current()
        if keys is None:
            raise UnknownKeyError("the issuer's keys are not known yet")
        if keys is not self._keys:
            self._keys = keys
            self._verdicts.clear()
        name = digest(token)
        known = self._verdicts.get(name)
        if known is not None and now_s < known.expires_at_s:
            self._verdicts.move_to_end(name)
            return known
        try:
            proved = self._rules.prove(token, keys, now_s)
        except TokenRefusedError:
            self._verdicts.pop(name, None)
            raise
        self._verdicts[name] = proved
        if len(self._verdicts) > self._most:
            self._verdicts.popitem(last=False)
        return proved
