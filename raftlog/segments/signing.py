"""Signed exports: an Ed25519 signature over the manifest, which lists every file with its SHA-256.

The signature proves that no file was changed since by anyone without the private key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raftlog.errors import ConfigError
from raftlog.files import exposed
from raftlog.segments.manifest import ED25519, Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


class Signer:
    """A signer with a private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = _hex_of(key.public_key())
        """Public key as 64 hex digits, the form in which keys are compared."""

    def sign(self, message: bytes) -> Signature:
        """See ``ManifestSigner``."""
        return Signature(
            algorithm=ED25519,
            public_key=self.public_key,
            value=self._key.sign(message).hex(),
        )


def load_signer(path: Path) -> Signer:
    """Load the signer with the Ed25519 private key in a PEM file. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} contains no unencrypted PEM private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} contains a key that is not Ed25519: make one with openssl genpkey -algorithm"
            " ed25519"
        )
    # Checked last: the wrong file needs no protection.
    if why := exposed(path):
        raise ConfigError(why)
    return Signer(key)


def load_public_key(path: Path) -> str:
    """Return the Ed25519 public key in a PEM file, as 64 hex digits. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} contains no PEM public key: openssl pkey -in KEY -pubout writes one"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} contains a public key that is not Ed25519")
    return _hex_of(key)


def why_not_signed(message: bytes, signature: Signature | None, public_key: str) -> str:
    """Return why a manifest's ``message`` is not signed with this key, or empty if it is."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if signature is None:
        return "the manifest is not signed"
    if signature.algorithm != ED25519:
        return f"the manifest is signed with {signature.algorithm}: only {ED25519} is supported"
    if signature.public_key != public_key:
        return (
            f"the manifest claims to be signed with the key {signature.public_key}, not with"
            f" {public_key}"
        )
    try:
        value = bytes.fromhex(signature.value)
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(value, message)
    except (InvalidSignature, ValueError):
        return "the signature does not match the manifest: one of the two was changed"
    return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _hex_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()
