"""Verdicts are remembered, and keys are asked for when one is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from token_issuer import AUDIENCE, ISSUER, Issuer, claims

from raftlog.identity import Proved, TokenRefusedError
from raftlog.node.security.issuer_keys import KeySet
from raftlog.node.security.token_rules import TokenRules
from raftlog.node.security.tokens import Tokens

NOW_S = 1_800_000_000.0
US = Issuer()


class CountedRules:
    """Looks at a token as TokenRules does, and counts how often."""

    def __init__(self) -> None:
        self._rules = TokenRules(ISSUER, frozenset({AUDIENCE}))
        self.looked_at: list[str] = []

    def prove(self, token: str, keys: KeySet, now_s: float) -> Proved:
        self.looked_at.append(token)
        return self._rules.prove(token, keys, now_s)


class Source:
    def __init__(self, keys: KeySet | None, newer: Callable[[], KeySet] | None = None) -> None:
        self.keys, self._newer = keys, newer
        self.asked = 0

    def current(self) -> KeySet | None:
        return self.keys

    async def newer(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self._newer is not None:
            self.keys = self._newer()

    def close(self) -> None:
        raise NotImplementedError


def set_up(source: Source, remembered: int = 10) -> tuple[Tokens, CountedRules]:
    rules = CountedRules()
    return Tokens(rules, source, remembered=remembered), rules  # type: ignore[arg-type]


def token(**changed: object) -> str:
    return US.token(**claims(NOW_S, **changed))


async def test_a_valid_token_is_verified_once_until_it_expires() -> None:
    tokens, rules = set_up(Source(KeySet.parse(US.jwks())))
    good = token()
    for later_s in (0, 1, 329):
        assert (await tokens.prove(good, NOW_S + later_s)).principal == "User:alice"
    assert rules.looked_at == [good]
    with pytest.raises(TokenRefusedError, match="expired"):
        await tokens.prove(good, NOW_S + 330)
    assert len(rules.looked_at) == 2


async def test_a_refusal_is_not_remembered() -> None:
    tokens, rules = set_up(Source(KeySet.parse(US.jwks())))
    early = token(nbf=NOW_S + 100)
    with pytest.raises(TokenRefusedError, match="not valid yet"):
        await tokens.prove(early, NOW_S)
    assert (await tokens.prove(early, NOW_S + 100)).principal == "User:alice"
    assert len(rules.looked_at) == 2


async def test_the_longest_unused_verdict_is_forgotten() -> None:
    tokens, rules = set_up(Source(KeySet.parse(US.jwks())), remembered=2)
    a, b, c = (token(sub=name) for name in "abc")
    for one in (a, b, a, c, a, b):
        await tokens.prove(one, NOW_S)
    assert rules.looked_at == [a, b, c, b]


async def test_a_key_that_the_issuer_has_withdrawn_verifies_nothing_more() -> None:
    source = Source(KeySet.parse(US.jwks()))
    tokens, _ = set_up(source)
    good = token()
    await tokens.prove(good, NOW_S)
    source.keys = KeySet.parse(Issuer("k2").jwks())
    with pytest.raises(TokenRefusedError, match="no key"):
        await tokens.prove(good, NOW_S)


async def test_a_key_that_is_not_known_is_asked_for_once() -> None:
    source = Source(KeySet.parse(Issuer("k0").jwks()), newer=lambda: KeySet.parse(US.jwks()))
    tokens, _ = set_up(source)
    assert (await tokens.prove(token(), NOW_S)).principal == "User:alice"
    assert source.asked == 1
    other = Issuer("k9").token("k9", **claims(NOW_S))
    with pytest.raises(TokenRefusedError, match="no key"):
        await tokens.prove(other, NOW_S)
    assert source.asked == 2
    with pytest.raises(TokenRefusedError, match="expired"):
        await tokens.prove(token(exp=1), NOW_S)
    assert source.asked == 2, "nothing but an unknown key is worth asking"


async def test_before_the_first_keys_a_token_waits_for_them() -> None:
    source = Source(None, newer=lambda: KeySet.parse(US.jwks()))
    tokens, _ = set_up(source)
    assert (await tokens.prove(token(), NOW_S)).principal == "User:alice"
    tokens, _ = set_up(Source(None))
    with pytest.raises(TokenRefusedError, match="not known yet"):
        await tokens.prove(token(), NOW_S)
