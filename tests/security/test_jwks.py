"""What of a JWK set is used, and for what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from token_issuer import MAKE, jwk, jwks

from raftlog.node.security.issuer_keys import ALGORITHMS, JWKS_MAX_BYTES, JWKS_MAX_KEYS, KeySet

ED, RSA = MAKE["EdDSA"](), MAKE["RS256"]()
GOOD = jwk(ED, "good")


def algorithms(*entries: Any) -> dict[str, set[str]]:
    """By id; the good key is always there."""
    found: dict[str, set[str]] = {}
    for kid, algorithm in KeySet.parse(jwks(GOOD, *entries)).keys:
        found.setdefault(kid, set()).add(algorithm)
    assert found.pop("good") == {"EdDSA"}
    return found


def test_a_key_is_for_the_algorithms_of_its_kind_or_for_the_one_that_it_names() -> None:
    every = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert algorithms(jwk(RSA, "k")) == {"k": every}
    assert algorithms(jwk(RSA, "k", alg="PS512")) == {"k": {"PS512"}}
    assert algorithms(jwk(MAKE["ES384"](), "k")) == {"k": {"ES384"}}
    # A key for each of two algorithms may have one id.
    both = algorithms(jwk(RSA, "k", alg="RS256"), jwk(MAKE["ES256"](), "k"))
    assert both == {"k": {"RS256", "ES256"}}


def test_nothing_symmetric_is_taken() -> None:
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
def test_a_key_that_is_not_for_us_is_passed_over(entry: Any) -> None:
    assert algorithms(entry) == {}


def test_the_private_half_of_a_key_is_not_looked_at() -> None:
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
        (jwks(*[GOOD] * (JWKS_MAX_KEYS + 1)), "101 keys are more"),
        (jwks(GOOD, jwk(MAKE["EdDSA"](), "good")), "two keys have the id 'good'"),
        (jwks(GOOD) + b" " * JWKS_MAX_BYTES, "more than 262144 bytes"),
    ],
)
def test_what_is_no_set_of_keys(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        KeySet.parse(content)


def test_sets_are_equal_if_their_keys_are() -> None:
    assert KeySet.parse(jwks(GOOD)) == KeySet.parse(json.dumps(json.loads(jwks(GOOD))).encode())
    assert KeySet.parse(jwks(GOOD)) != KeySet.parse(jwks(jwk(MAKE["EdDSA"](), "good")))
