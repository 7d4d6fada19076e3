"""A token issuer for development: ``token.key`` and ``jwks.json`` in the directory of an authority.

It verifies no identities and revokes no tokens; use an identity provider for that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from raftlog.errors import ConfigError
from raftlog.files import exposed
from raftlog.node.security.certificate_files import PairPaths, write_pair

TOKEN_KEY, JWKS = "token.key", "jwks.json"
ISSUER, AUDIENCE = "raftlog-development", "raftlog"
_KID_CHARS = 16


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """An existing issuer."""

    key: ed25519.Ed25519PrivateKey

    @classmethod
    def of(cls, directory: Path) -> TokenIssuer:
        """Return the issuer of a directory, creating it if necessary. Raises ConfigError."""
        path = directory / TOKEN_KEY
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
            wrong = exposed(path)
        except FileNotFoundError:
            return cls._new(directory)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not a key: {error}") from error
        if wrong:
            raise ConfigError(wrong)
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigError(f"{path} was not created by `raftlog certs token`")
        return cls(key)

    @classmethod
    def _new(cls, directory: Path) -> TokenIssuer:
        made = cls(ed25519.Ed25519PrivateKey.generate())
        private = made.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        paths = PairPaths(directory / JWKS, directory / TOKEN_KEY)
        write_pair(paths, made.jwks(), private, replace=False)
        return made

    def jwks(self) -> bytes:
        """Return the key set for nodes (``sasl.oauthbearer.jwks.endpoint.url``)."""
        public: dict[str, Any] = OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        entry = {**public, "kid": self._kid(), "use": "sig", "alg": "EdDSA"}
        return f"{json.dumps({'keys': [entry]}, indent=2)}\n".encode()

    def issue(self, name: str, minutes: int, now: datetime) -> str:
        """Return a token for a person or a program, valid for ``minutes``."""
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": name,
            "iat": int(now.timestamp()),
            "exp": int((now + timedelta(minutes=minutes)).timestamp()),
        }
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": self._kid()})

    def _kid(self) -> str:
        digest = hashes.Hash(hashes.SHA256())
        digest.update(self.key.public_key().public_bytes_raw())
        return digest.finalize().hex()[:_KID_CHARS]
