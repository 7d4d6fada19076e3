"""An issuer of tokens, honest or not."""

import json
import time
from collections.abc import Callable
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "raftlog"
MAKE: dict[str, Callable[[], Any]] = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
}
"""The private key for an algorithm."""


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    """Return the public part of a private key."""
    public = key.public_key()
    kind: Any = {
        ec.EllipticCurvePrivateKey: ECAlgorithm,
        rsa.RSAPrivateKey: RSAAlgorithm,
        ed25519.Ed25519PrivateKey: OKPAlgorithm,
    }
    to_jwk = next(found for one, found in kind.items() if isinstance(key, one)).to_jwk
    return {**to_jwk(public, as_dict=True), "kid": kid, **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def claims(now_s: float | None = None, **changed: Any) -> dict[str, Any]:
    """Return the claims of a valid token for alice; None omits one."""
    now_s = time.time() if now_s is None else now_s
    found = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "iat": int(now_s),
        "exp": int(now_s) + 300,
        **changed,
    }
    return {name: value for name, value in found.items() if value is not None}


class Issuer:
    """An issuer of tokens with one key at first."""

    def __init__(self, kid: str = "k1", algorithm: str = "EdDSA") -> None:
        self.keys: dict[str, tuple[Any, str]] = {}
        self.add(kid, algorithm)

    def add(self, kid: str, algorithm: str = "EdDSA") -> None:
        self.keys[kid] = (MAKE[algorithm](), algorithm)

    def jwks(self) -> bytes:
        return jwks(*(jwk(key, kid) for kid, (key, _) in self.keys.items()))

    def token(
        self, kid: str = "k1", *, headers: dict[str, Any] | None = None, **changed: Any
    ) -> str:
        """Return a token signed with the key of this id; ``changed``: claims, None omits one."""
        key, algorithm = self.keys[kid]
        headers = {"kid": kid, **(headers or {})}
        return jwt.encode(claims(**changed), key, algorithm=algorithm, headers=headers)
