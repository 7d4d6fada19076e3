"""Check the bearer tokens of a node's callers.

A verdict is cached until the token expires, so that a unary call costs a digest and not a signature
check. A change of the issuer's keys discards all cached verdicts.
"""

from __future__ import annotations

from collections import OrderedDict

from raftlog.identity import Proved, TokenRefusedError
from raftlog.node.security.issuer_keys import KeySet, KeySource
from raftlog.node.security.token_rules import TokenRules, UnknownKeyError, digest

REMEMBERED = 4_096
"""Maximum number of cached verdicts, of valid tokens only; the least recently used are dropped."""


class Tokens:
    """The token check of a node, a :class:`raftlog.identity.TokenCheck`."""

    def __init__(self, rules: TokenRules, keys: KeySource, *, remembered: int = REMEMBERED) -> None:
        self._rules, self._source, self._most = rules, keys, remembered
        self._verdicts: OrderedDict[bytes, Proved] = OrderedDict()
        self._keys: KeySet | None = None
        """Keys on which the cached verdicts are based."""

    async def prove(self, token: str, now_s: float) -> Proved:
        """See ``TokenCheck``."""
        try:
            return self._prove(token, now_s)
        except UnknownKeyError:
            await self._source.newer()
            return self._prove(token, now_s)

    def close(self) -> None:
        """See ``TokenCheck``."""
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
