"""Which tokens count: everything that is wrong with one, one by one, and what a good one says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from token_issuer import AUDIENCE, ISSUER, MAKE, Issuer, claims, jwk, jwks

from raftlog.identity import TOKEN_MAX_CHARS, Proved, TokenRefusedError
from raftlog.limits import PRINCIPAL_MAX_CHARS
from raftlog.node.security.issuer_keys import KeySet
from raftlog.node.security.token_rules import TokenRules, UnknownKeyError

NOW_S = 1_800_000_000.0
SKEW_S = 30.0
RULES = TokenRules(ISSUER, frozenset({AUDIENCE, "other"}), skew_s=SKEW_S)
US = Issuer()
KEYS = KeySet.parse(US.jwks())
RSA = MAKE["RS256"]()


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


def test_a_good_token_names_its_principal_until_its_end_and_the_skew() -> None:
    assert prove(token()) == Proved("User:alice", NOW_S + 300 + SKEW_S)
    assert prove(token(aud=["x", "other"])).principal == "User:alice"
    assert prove(token(sub="Zoë Müller")).principal == "User:Zoë Müller"


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "ES384", "RS256", "RS512", "PS256"])
def test_each_asymmetric_algorithm_is_taken(algorithm: str) -> None:
    key = MAKE.get(algorithm, lambda: RSA)()
    signed = jwt.encode(claims(NOW_S), key, algorithm=algorithm, headers={"kid": "k"})
    assert prove(signed, keys=KeySet.parse(jwks(jwk(key, "k")))).principal == "User:alice"


def test_the_claim_that_names_the_principal_can_be_another() -> None:
    rules = TokenRules(ISSUER, frozenset({AUDIENCE}), subject_claim="email")
    assert prove(token(email="a@example"), rules).principal == "User:a@example"
    assert refused(token(), rules) == "the token has no claim email"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"exp": NOW_S - SKEW_S}, "expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": float("nan")}, "exp is no time"),
        ({"exp": float("inf")}, "exp is no time"),
        ({"exp": 10**400}, "exp is no time"),
        ({"nbf": NOW_S + SKEW_S + 1}, r"not valid yet \(nbf\)"),
        ({"iat": NOW_S + SKEW_S + 1}, r"not valid yet \(iat\)"),
        ({"nbf": []}, "nbf is no time"),
        ({"iss": "https://issuer.example/"}, "another issuer"),
        ({"iss": None}, "no claim iss"),
        ({"aud": "raftlo"}, "another audience"),
        ({"aud": ["raftlog2", "RAFTLOG"]}, "another audience"),
        ({"aud": []}, "no claim aud"),
        ({"aud": {"raftlog": 1}}, "another audience"),
        ({"aud": None}, "no claim aud"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ""}, "is no name"),
        ({"sub": " alice"}, "is no name"),
        ({"sub": 7}, "is no name"),
        ({"sub": ["alice"]}, "is no name"),
        ({"sub": "al\x1b[31mice"}, "cannot be printed"),
        ({"sub": "al\x00ice"}, "cannot be printed"),
        ({"sub": "\ud800"}, "cannot be printed"),
        ({"sub": "x" * (PRINCIPAL_MAX_CHARS - 4)}, "more than the 1024 allowed"),
        ({"sub": "ANONYMOUS"}, "nobody"),
    ],
)
def test_what_a_token_must_not_say(changed: dict[str, Any], why: str) -> None:
    assert re.search(why, refused(token(**changed)))


def test_the_skew_is_on_the_side_of_the_token() -> None:
    for changed in ({"exp": NOW_S - SKEW_S + 1}, {"nbf": NOW_S + SKEW_S}, {"iat": NOW_S + SKEW_S}):
        assert prove(token(**changed)).principal == "User:alice"


def test_a_name_that_is_as_long_as_a_principal_may_be() -> None:
    assert len(prove(token(sub="x" * (PRINCIPAL_MAX_CHARS - 5))).principal) == PRINCIPAL_MAX_CHARS


def test_no_signature_at_all() -> None:
    body = segment(claims(NOW_S))
    for algorithm in ("none", "None", "NONE", ""):
        header = segment({"alg": algorithm, "kid": "k1"})
        assert "no signed JWT" in refused(f"{header}.{body}.")
        assert "algorithm that is not taken" in refused(f"{header}.{body}.AA")


def test_the_public_key_is_no_secret_to_sign_with() -> None:
    """The old confusion: HS256 under the bytes of the public key, in each of its forms."""
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


def test_another_key_with_the_same_id() -> None:
    assert "signature" in refused(Issuer("k1").token(**claims(NOW_S)))


def test_a_changed_claim() -> None:
    header, _, signature = token().split(".")
    assert "signature" in refused(f"{header}.{segment(claims(NOW_S, sub='bob'))}.{signature}")


def test_a_key_is_used_for_its_own_algorithm_alone() -> None:
    keys = KeySet.parse(jwks(jwk(RSA, "k", alg="RS256")))
    ps = jwt.encode(claims(NOW_S), RSA, algorithm="PS256", headers={"kid": "k"})
    assert refused(ps, keys=keys) == "the issuer's key is none for PS256"
    both = KeySet.parse(jwks(jwk(RSA, "k")))
    assert prove(ps, keys=both).principal == "User:alice"


@pytest.mark.parametrize("kid", ["k2", "", 7, None, "k" * 256])
def test_a_key_that_is_not_there(kid: Any) -> None:
    headers = {"alg": "EdDSA", "kid": kid} if kid is not None else {"alg": "EdDSA"}
    text = f"{segment(headers)}.{segment(claims(NOW_S))}.{segment(b'x' * 64)}"
    with pytest.raises(TokenRefusedError) as caught:
        prove(text)
    # Only for an id that could be one it is worth asking the issuer.
    assert isinstance(caught.value, UnknownKeyError) == (kid == "k2")


def test_extensions_that_must_be_understood_are_not() -> None:
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
def test_what_is_no_token(text: str) -> None:
    refused(text)


def test_a_payload_that_is_none() -> None:
    key, _ = US.keys["k1"]
    for payload in (b"[" * 3000, b"null", b"[]", b"\xff", b'"alice"'):
        text = jwt.api_jws.encode(payload, key, algorithm="EdDSA", headers={"kid": "k1"})
        assert "malformed" in refused(text)
