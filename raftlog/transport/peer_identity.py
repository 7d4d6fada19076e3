"""Whose certificate a peer has shown: to gRPC, or to Python's TLS."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
def identity_of_der(der: bytes) -> PeerIdentity:
    """Return the identity of a certificate that TLS has checked, the same as gRPC's."""
    from cryptography import x509

    with warnings.catch_warnings(action="ignore"):
        try:
            certificate = x509.load_der_x509_certificate(der)
            return _of_certificate(_rfc2253(certificate.subject), lambda: certificate)
        except Exception:
            # Whoever issued it decides what is in it: who cannot be named is nobody.
            return ANONYMOUS


@lru_cache(REMEMBERED)
def _identity(subject: str, pem: bytes) -> PeerIdentity:
    # Here: a client that shows none needs no parser.
    from cryptography import x509

    with warnings.catch_warnings(action="ignore"):
        return _of_certificate(subject, lambda: x509.load_pem_x509_certificate(pem))


def _of_certificate(subject: str, load: Callable[[], x509.Certificate]) -> PeerIdentity:
    from cryptography.hazmat.primitives.hashes import SHA256

    names, fingerprint = frozenset[str](), ""
    try:
        certificate = load()
        fingerprint = certificate.fingerprint(SHA256()).hex()
        names = names_of(certificate)
    except Exception:
        # Whoever issued it decides what is in it.
        names = frozenset()
    return PeerIdentity(subject, names, fingerprint)


_SHORT_NAMES = {
    "2.5.4.3": "CN", "2.5.4.4": "SN", "2.5.4.5": "serialNumber", "2.5.4.6": "C", "2.5.4.7": "L",
    "2.5.4.8": "ST", "2.5.4.9": "street", "2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.12": "title",
    "2.5.4.42": "GN", "2.5.4.43": "initials", "2.5.4.44": "generationQualifier",
    "2.5.4.46": "dnQualifier", "2.5.4.65": "pseudonym", "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC", "1.2.840.113549.1.9.1": "emailAddress",
}  # fmt: skip
"""As gRPC's library has them, by object identifier."""
_UNAMBIGUOUS_TAGS = frozenset((12, 28, 30))
"""UTF8String, UniversalString, BMPString: of others, libraries read what is not ASCII in different
ways.
"""


def _rfc2253(subject: x509.Name) -> str:
    """Return a distinguished name as gRPC's library writes it. Raises ValueError for one that may
    be written in another way there [an authority signs a name for its owner that here is somebody
    else's].
    """
    return ",".join(
        "+".join(
            f"{_SHORT_NAMES[one.oid.dotted_string]}={_escaped(one)}" for one in reversed(list(set_))
        )
        for set_ in reversed(subject.rdns)
    )


def _escaped(attribute: x509.NameAttribute[Any]) -> str:
    value = attribute.value
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004  (of a certificate, not of a caller)
    if not value.isascii() and attribute._type.value not in _UNAMBIGUOUS_TAGS:
        raise ValueError("text of an old kind")
    text = "".join(
        "\\" + one if one in ',+"\\<>;' else chr(byte) if 32 <= byte < 127 else f"\\{byte:02X}"
        for one in value
        for byte in one.encode()
    )
    if value[-1:] == " " and len(value) > 1:
        text = text[:-1] + "\\ "
    return "\\" + text if value[:1] in ("#", " ") else text


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
