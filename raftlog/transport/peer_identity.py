"""Whose certificate a gRPC peer has shown."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from raftlog.identity import ANONYMOUS, PeerIdentity

if TYPE_CHECKING:
    from cryptography import x509

REMEMBERED = 1024
"""So many certificates are parsed once: each call of a peer shows its own again."""


def identity_of(context: Any) -> PeerIdentity:
    """Of a call's peer; ANONYMOUS if it has shown no certificate that was checked."""
    shown = context.auth_context()
    pem = next(iter(shown.get("x509_pem_cert", ())), b"") if shown else b""
    if not pem:
        return ANONYMOUS
    subject = next(iter(shown.get("x509_subject", ())), b"")
    return _identity(subject.decode("utf-8", "replace"), pem)


@lru_cache(REMEMBERED)
def _identity(subject: str, pem: bytes) -> PeerIdentity:
    # Here: a client that shows none needs no parser.
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    names, fingerprint = frozenset[str](), ""
    try:
        with warnings.catch_warnings(action="ignore"):
            certificate = x509.load_pem_x509_certificate(pem)
            fingerprint = certificate.fingerprint(SHA256()).hex()
            names = names_of(certificate)
    except Exception:
        # Whoever issued it decides what is in it.
        names = frozenset()
    return PeerIdentity(subject, names, fingerprint)


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    r"""The names that a rule looks at; none if one of them is not what it seems.

    Why not gRPC's own: it cuts a name at its first NUL [an authority signs ``node-4\0.example``
    for its owner, who is node 4 then], and takes the first of several common names. Raises what the
    parser does about other malformed certificates.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = [f"CN={one.value!s}" for one in common]
    try:
        alternative = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        pass
    else:
        names += [f"DNS:{name}" for name in alternative.get_values_for_type(x509.DNSName)]
        names += [
            f"URI:{name}"
            for name in alternative.get_values_for_type(x509.UniformResourceIdentifier)
        ]
    if len(common) > 1 or not all(name.isprintable() for name in names):
        return frozenset()
    return frozenset(names)
