"""The public keys of an issuer, from its JWK set (RFC 7517).

A key is selected by its id together with the algorithm that a token names: the text of a foreign
token never makes a key verify in another way than the set permits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

PublicKey = (
    rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
)

JWKS_MAX_BYTES = 1 << 18
"""Largest size of a set in bytes; those of large providers have some ten thousand."""
JWKS_MAX_KEYS = 100
KID_MAX_CHARS = 255
RSA_MIN_BITS, RSA_MAX_BITS = 2_048, 8_192

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_EDDSA = ("EdDSA",)
ALGORITHMS = frozenset({*_RSA, "ES256", "ES384", "ES512", *_EDDSA})
"""Accepted algorithms: an issuer signs, and no other party can. `none` and HS256 are not among
them.
"""
_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")
"""Members of a key that are read. A private key among them is ignored."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by id and algorithm."""

    keys: Mapping[tuple[str, str], PublicKey]

    @classmethod
    def parse(cls, content: bytes) -> KeySet:
        """Parse a set; unsuitable keys are ignored: symmetric ones, those for encryption, and those
        without an id.

        Raises ValueError if none is left, or if it is no JWK set.
        """
        if len(content) > JWKS_MAX_BYTES:
            raise ValueError(f"more than {JWKS_MAX_BYTES} bytes")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("it is not JSON") from error
        listed = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(listed, list):
            raise ValueError('it has no list "keys"')  # noqa: TRY004  (of a document, not of a caller)
        if len(listed) > JWKS_MAX_KEYS:
            raise ValueError(f"{len(listed)} keys are more than the {JWKS_MAX_KEYS} allowed")
        keys: dict[tuple[str, str], PublicKey] = {}
        for one in listed:
            for algorithm, key in _usable(one):
                if keys.setdefault((one["kid"], algorithm), key) is not key:
                    raise ValueError(f"two keys have the id {one['kid']!r}")
        if not keys:
            raise ValueError("it has no key that verifies signatures and has an id (kid)")
        return cls(keys)

    def find(self, kid: str, algorithm: str) -> PublicKey | None:
        """Return the key of this id, if it is one for this algorithm."""
        return self.keys.get((kid, algorithm))

    @property
    def ids(self) -> frozenset[str]:
        """Ids of all keys."""
        return frozenset(kid for kid, _ in self.keys)


def _usable(one: Any) -> Iterable[tuple[str, PublicKey]]:
    """Yield the key of one entry under each algorithm that it may verify."""
    if not isinstance(one, dict) or not _is_for_signatures(one):
        return
    kid = one.get("kid")
    if not isinstance(kid, str) or not 0 < len(kid) <= KID_MAX_CHARS:
        return
    try:
        key, allowed = _key_of({name: one[name] for name in _PUBLIC_MEMBERS if name in one})
    except Exception:
        # Of a kind that we have no use for, or malformed, and parsers have many words for that: the
        # others are used all the same.
        return
    named = one.get("alg")
    for algorithm in allowed:
        if named is None or named == algorithm:
            yield algorithm, key


def _is_for_signatures(one: Mapping[str, Any]) -> bool:
    operations = one.get("key_ops")
    return one.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )


def _key_of(public: dict[str, Any]) -> tuple[PublicKey, tuple[str, ...]]:
    """Return a public key and its algorithms. Raises the parsers' errors."""
    key: Any
    match public.get("kty"):
        case "RSA":
            key = RSAAlgorithm.from_jwk(public)
            if not RSA_MIN_BITS <= key.key_size <= RSA_MAX_BITS:
                raise ValueError(f"an RSA key of {key.key_size} bits")
            return key, _RSA
        case "EC" if public.get("crv") in _OF_CURVE:
            return ECAlgorithm.from_jwk(public), _OF_CURVE[public["crv"]]  # type: ignore[return-value]
        case "OKP":
            return OKPAlgorithm.from_jwk(public), _EDDSA  # type: ignore[return-value]
    raise ValueError("of another kind")
