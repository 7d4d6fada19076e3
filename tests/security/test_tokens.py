"""Verification of tokens."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from token_issuer import AUDIENCE, ISSUER, MAKE, Issuer, claims, jwk, jwks

from raftlog.identity import TOKEN_MAX_CHARS, Proved, TokenRefusedError
from raftlog.limits import PRINCIPAL_MAX_CHARS
from raftlog.node.security.issuer_keys import ALGORITHMS, JWKS_MAX_BYTES, JWKS_MAX_KEYS, KeySet
from raftlog.node.security.token_rules import TokenRules, UnknownKeyError
from raftlog.node.security.tokens import Tokens

NOW_S = 1_800_000_000.0
SKEW_S = 30.0
RULES = TokenRules(ISSUER, frozenset({AUDIENCE, "other"}), skew_s=SKEW_S)
US = Issuer()
KEYS = KeySet.parse(US.jwks())
ED, RSA = MAKE["EdDSA"](), MAKE["RS256"]()


def segment(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(**changed: Any) -> str:
    left_out: dict[str, Any] = {name: None for name, value in changed.items() if value is None}
    return US.token(**claims(NOW_S, **changed), **left_out)


def prove(text: str, rules: TokenRules = RULES, keys: KeySet = KEYS) -> Proved:
    return rules.prove(text, keys, NOW_S)


def refused(text: str, rules: TokenRules = RULES, keys: KeySet = KEYS) -> str:
    with pytest.raises(TokenRefusedError) as caught:
        prove(text, rules, keys)
    assert text[:40] not in str(caught.value) or not text
    return str(caught.value)


def test_valid_token_names_its_principal_until_its_expiry_plus_skew() -> None:
    assert prove(token()) == Proved("User:alice", NOW_S + 300 + SKEW_S)
    assert prove(token(aud=["x", "other"])).principal == "User:alice"
    assert prove(token(sub="Zoë Müller")).principal == "User:Zoë Müller"


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "ES384", "RS256", "RS512", "PS256"])
def test_each_asymmetric_algorithm_is_accepted(algorithm: str) -> None:
    key = MAKE.get(algorithm, lambda: RSA)()
    signed = jwt.encode(claims(NOW_S), key, algorithm=algorithm, headers={"kid": "k"})
    assert prove(signed, keys=KeySet.parse(jwks(jwk(key, "k")))).principal == "User:alice"


def test_principal_claim_is_configurable() -> None:
    rules = TokenRules(ISSUER, frozenset({AUDIENCE}), subject_claim="email")
    assert prove(token(email="a@example"), rules).principal == "User:a@example"
    assert refused(token(), rules) == "the token has no claim email"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"exp": NOW_S - SKEW_S}, "expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"nbf": NOW_S + SKEW_S + 1}, r"not valid yet \(nbf\)"),
        ({"iat": NOW_S + SKEW_S + 1}, r"not valid yet \(iat\)"),
        ({"nbf": []}, "nbf is not a time"),
        ({"iss": "https://issuer.example/"}, "another issuer"),
        ({"iss": None}, "no claim iss"),
        ({"aud": "raftlo"}, "another audience"),
        ({"aud": ["raftlog2", "RAFTLOG"]}, "another audience"),
        ({"aud": []}, "no claim aud"),
        ({"aud": {"raftlog": 1}}, "another audience"),
        ({"aud": None}, "no claim aud"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ""}, "must be a name"),
        ({"sub": " alice"}, "must be a name"),
        ({"sub": 7}, "must be a name"),
        ({"sub": ["alice"]}, "must be a name"),
        ({"sub": "al\x1b[31mice"}, "cannot be printed"),
        ({"sub": "al\x00ice"}, "cannot be printed"),
        ({"sub": "\ud800"}, "cannot be printed"),
        ({"sub": "x" * (PRINCIPAL_MAX_CHARS - 4)}, "at most 1024 are allowed"),
        ({"sub": "ANONYMOUS"}, "is a reserved name"),
    ],
)
def test_token_with_unacceptable_claims_is_refused(changed: dict[str, Any], why: str) -> None:
    assert re.search(why, refused(token(**changed)))


def test_clock_skew_is_applied_in_favour_of_the_token() -> None:
    for changed in ({"exp": NOW_S - SKEW_S + 1}, {"nbf": NOW_S + SKEW_S}, {"iat": NOW_S + SKEW_S}):
        assert prove(token(**changed)).principal == "User:alice"


def test_longest_principal_is_accepted() -> None:
    assert len(prove(token(sub="x" * (PRINCIPAL_MAX_CHARS - 5))).principal) == PRINCIPAL_MAX_CHARS


def test_unsigned_token_is_refused() -> None:
    body = segment(claims(NOW_S))
    for algorithm in ("none", "None", "NONE", ""):
        header = segment({"alg": algorithm, "kid": "k1"})
        assert "not a signed JWT" in refused(f"{header}.{body}.")
        assert "algorithm that is not accepted" in refused(f"{header}.{body}.AA")


def test_public_key_is_not_accepted_as_a_secret() -> None:
    """The known confusion: HS256 with the bytes of the public key, in each of its forms."""
    public = RSA.public_key()
    encoding, form = serialization.Encoding, serialization.PublicFormat
    secrets = [
        public.public_bytes(encoding.PEM, form.SubjectPublicKeyInfo),
        public.public_bytes(encoding.DER, form.SubjectPublicKeyInfo),
        json.dumps(jwk(RSA, "k")).encode(),
    ]
    keys = KeySet.parse(jwks(jwk(RSA, "k")))
    for secret in secrets:
        for algorithm in ("HS256", "RS256"):
            signed = f"{segment({'alg': algorithm, 'kid': 'k'})}.{segment(claims(NOW_S))}"
            mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
            refused(f"{signed}.{segment(mac)}", keys=keys)


def test_token_signed_by_another_key_with_the_same_id_is_refused() -> None:
    assert "signature" in refused(Issuer("k1").token(**claims(NOW_S)))


def test_token_with_a_changed_claim_is_refused() -> None:
    header, _, signature = token().split(".")
    assert "signature" in refused(f"{header}.{segment(claims(NOW_S, sub='bob'))}.{signature}")


def test_key_is_used_only_for_its_own_algorithm() -> None:
    keys = KeySet.parse(jwks(jwk(RSA, "k", alg="RS256")))
    ps = jwt.encode(claims(NOW_S), RSA, algorithm="PS256", headers={"kid": "k"})
    assert refused(ps, keys=keys) == "the issuer's key does not permit PS256"
    both = KeySet.parse(jwks(jwk(RSA, "k")))
    assert prove(ps, keys=both).principal == "User:alice"


@pytest.mark.parametrize("kid", ["k2", "", 7, None, "k" * 256])
def test_token_with_an_unknown_key_is_refused(kid: Any) -> None:
    headers = {"alg": "EdDSA", "kid": kid} if kid is not None else {"alg": "EdDSA"}
    text = f"{segment(headers)}.{segment(claims(NOW_S))}.{segment(b'x' * 64)}"
    with pytest.raises(TokenRefusedError) as caught:
        prove(text)
    # Only for an id that could be one it is worth asking the issuer.
    assert isinstance(caught.value, UnknownKeyError) == (kid == "k2")


def test_token_with_critical_extensions_is_refused() -> None:
    # The library understands one of them.
    for extension in ("b64", "x"):
        header = {"alg": "EdDSA", "kid": "k1", "crit": [extension], extension: True}
        signed = f"{segment(header)}.{segment(claims(NOW_S))}"
        signature = US.keys["k1"][0].sign(signed.encode())
        refused(f"{signed}.{segment(signature)}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "é.b.c",
        "e30.e30.AA",
        "e30.e30.AA\n",
        f"{segment(b'[' * 3000)}.e30.AA",
        f"{segment([])}.e30.AA",
        f"{segment(b'9' * 5000)}.e30.AA",
        "x" * (TOKEN_MAX_CHARS + 1),
    ],
)
def test_malformed_token_is_refused(text: str) -> None:
    refused(text)


def test_invalid_payload_is_refused() -> None:
    key, _ = US.keys["k1"]
    for payload in (b"[" * 3000, b"null", b"[]", b"\xff", b'"alice"'):
        text = jwt.api_jws.encode(payload, key, algorithm="EdDSA", headers={"kid": "k1"})
        assert "malformed" in refused(text)


class CountedRules:
    """Verifies a token as TokenRules does, and counts the calls."""

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


def minted(**changed: object) -> str:
    return US.token(**claims(NOW_S, **changed))


async def test_valid_token_is_verified_once_until_it_expires() -> None:
    tokens, rules = set_up(Source(KeySet.parse(US.jwks())))
    good = minted()
    for later_s in (0, 1, 329):
        assert (await tokens.prove(good, NOW_S + later_s)).principal == "User:alice"
    assert rules.looked_at == [good]
    with pytest.raises(TokenRefusedError, match="expired"):
        await tokens.prove(good, NOW_S + 330)
    assert len(rules.looked_at) == 2


async def test_refusal_is_not_cached() -> None:
    tokens, rules = set_up(Source(KeySet.parse(US.jwks())))
    early = minted(nbf=NOW_S + 100)
    with pytest.raises(TokenRefusedError, match="not valid yet"):
        await tokens.prove(early, NOW_S)
    assert (await tokens.prove(early, NOW_S + 100)).principal == "User:alice"
    assert len(rules.looked_at) == 2


async def test_least_recently_used_verdict_is_evicted() -> None:
    tokens, rules = set_up(Source(KeySet.parse(US.jwks())), remembered=2)
    a, b, c = (minted(sub=name) for name in "abc")
    for one in (a, b, a, c, a, b):
        await tokens.prove(one, NOW_S)
    assert rules.looked_at == [a, b, c, b]


async def test_withdrawn_key_verifies_no_token_any_more() -> None:
    source = Source(KeySet.parse(US.jwks()))
    tokens, _ = set_up(source)
    good = minted()
    await tokens.prove(good, NOW_S)
    source.keys = KeySet.parse(Issuer("k2").jwks())
    with pytest.raises(TokenRefusedError, match="no key"):
        await tokens.prove(good, NOW_S)


async def test_unknown_key_is_requested_once() -> None:
    source = Source(KeySet.parse(Issuer("k0").jwks()), newer=lambda: KeySet.parse(US.jwks()))
    tokens, _ = set_up(source)
    assert (await tokens.prove(minted(), NOW_S)).principal == "User:alice"
    assert source.asked == 1
    other = Issuer("k9").token("k9", **claims(NOW_S))
    with pytest.raises(TokenRefusedError, match="no key"):
        await tokens.prove(other, NOW_S)
    assert source.asked == 2
    with pytest.raises(TokenRefusedError, match="expired"):
        await tokens.prove(minted(exp=1), NOW_S)
    assert source.asked == 2, "nothing but an unknown key is worth asking"


async def test_token_waits_for_the_first_keys() -> None:
    source = Source(None, newer=lambda: KeySet.parse(US.jwks()))
    tokens, _ = set_up(source)
    assert (await tokens.prove(minted(), NOW_S)).principal == "User:alice"
    tokens, _ = set_up(Source(None))
    with pytest.raises(TokenRefusedError, match="not known yet"):
        await tokens.prove(minted(), NOW_S)


ED, RSA = MAKE["EdDSA"](), MAKE["RS256"]()
GOOD = jwk(ED, "good")


def algorithms(*entries: Any) -> dict[str, set[str]]:
    """Return algorithms by key id; the good key is always present."""
    found: dict[str, set[str]] = {}
    for kid, algorithm in KeySet.parse(jwks(GOOD, *entries)).keys:
        found.setdefault(kid, set()).add(algorithm)
    assert found.pop("good") == {"EdDSA"}
    return found


def test_key_is_for_the_algorithms_of_its_type_or_its_named_one() -> None:
    every = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert algorithms(jwk(RSA, "k")) == {"k": every}
    assert algorithms(jwk(RSA, "k", alg="PS512")) == {"k": {"PS512"}}
    assert algorithms(jwk(MAKE["ES384"](), "k")) == {"k": {"ES384"}}
    # A key for each of two algorithms may have one id.
    both = algorithms(jwk(RSA, "k", alg="RS256"), jwk(MAKE["ES256"](), "k"))
    assert both == {"k": {"RS256", "ES256"}}


def test_symmetric_algorithms_are_refused() -> None:
    assert not {one for one in ALGORITHMS if one.startswith("HS") or one.lower() == "none"}


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k", "alg": "RS256"},
        jwk(RSA, "k", alg="HS256"),
        jwk(RSA, "k", alg="none"),
        jwk(RSA, "k", alg="ES256"),
        jwk(RSA, "k", alg=["RS256"]),
        jwk(RSA, "k", use="enc"),
        {**jwk(RSA, "k"), "key_ops": ["sign"]},
        {**jwk(RSA, "k"), "key_ops": "verify"},
        {name: value for name, value in jwk(RSA, "k").items() if name != "kid"},
        jwk(RSA, ""),
        jwk(RSA, "k" * 256),
        {**jwk(RSA, "k"), "kid": 7},
        {**jwk(RSA, "k"), "n": "!"},
        {**jwk(RSA, "k"), "n": 5},
        {**jwk(ED, "k"), "x": "AA"},
        {**jwk(ED, "k"), "crv": "X25519"},
        {**jwk(MAKE["ES256"](), "k"), "crv": "secp256k1"},
        jwk(ec.generate_private_key(ec.SECP256K1()), "k"),
        {**jwk(MAKE["ES256"](), "k"), "crv": ["P-256"]},
        {**jwk(MAKE["ES256"](), "k"), "crv": None},
        {**jwk(MAKE["ES256"](), "k"), "y": "AA"},
        jwk(rsa.generate_private_key(65537, 1024), "k"),
        {"kid": "k"},
        "k",
        None,
        [],
    ],
)
def test_unsuitable_key_is_skipped(entry: Any) -> None:
    assert algorithms(entry) == {}


def test_private_part_of_a_key_is_ignored() -> None:
    pairs: list[tuple[Any, Any]] = [(RSA, RSAAlgorithm), (MAKE["ES256"](), ECAlgorithm)]
    for key, kind in pairs:
        entry = {**kind.to_jwk(key, as_dict=True), "kid": "k", "key_ops": ["sign", "verify"]}
        assert "d" in entry
        keys = KeySet.parse(jwks(entry))
        assert all(not hasattr(one, "private_numbers") for one in keys.keys.values())
        assert keys.ids == {"k"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no list"),
        (b'{"keys": {}}', "no list"),
        (b'{"keys": []}', "no key"),
        (jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "k"}), "no key"),
        (jwks(*[GOOD] * (JWKS_MAX_KEYS + 1)), "has 101 keys, and at most 100"),
        (jwks(GOOD, jwk(MAKE["EdDSA"](), "good")), "two keys have the id 'good'"),
        (jwks(GOOD) + b" " * JWKS_MAX_BYTES, "more than 262144 bytes"),
    ],
)
def test_malformed_key_set_is_rejected(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        KeySet.parse(content)


def test_key_sets_are_equal_if_their_keys_are() -> None:
    assert KeySet.parse(jwks(GOOD)) == KeySet.parse(json.dumps(json.loads(jwks(GOOD))).encode())
    assert KeySet.parse(jwks(GOOD)) != KeySet.parse(jwks(jwk(MAKE["EdDSA"](), "good")))
