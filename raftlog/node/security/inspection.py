"""Read the contents of a certificate from any authority."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from raftlog.identity import PeerIdentity
from raftlog.transport.certificates import names_of

_USAGES = {
    ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth",
    ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth",
}
_E = TypeVar("_E", bound=x509.ExtensionType)
_MALFORMED = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class Validity(StrEnum):
    """Validity of a certificate at a given time."""

    VALID = "valid"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"


@dataclass(frozen=True, slots=True)
class Inspected:
    """The contents of one certificate.

    * ``names``: alternative names.
    * ``identity``: the identity that a node derives from the certificate.
    * ``usages``: extended key usages, or None if the certificate states none, which permits all.
    * ``fingerprint``: SHA-256, as openssl writes it.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    identity: PeerIdentity
    authority: bool
    usages: tuple[str, ...] | None
    not_before: datetime
    not_after: datetime
    fingerprint: str

    def validity(self, now: datetime) -> Validity:
        """Return the validity at a given time."""
        if now < self.not_before:
            return Validity.NOT_YET_VALID
        return Validity.VALID if now <= self.not_after else Validity.EXPIRED

    def days_left(self, now: datetime) -> int:
        """Return the number of whole days until the end; negative after it."""
        return (self.not_after - now.astimezone(UTC)).days


def inspect_certificates(pem: bytes) -> list[Inspected]:
    """Return all certificates of a PEM file, in file order. Raises ValueError."""
    with warnings.catch_warnings():
        # The warnings are about oddities of foreign certificates, and would go to the terminal.
        warnings.simplefilter("ignore")
        try:
            return [_inspected(one) for one in x509.load_pem_x509_certificates(pem)]
        except _MALFORMED as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _inspected(certificate: x509.Certificate) -> Inspected:
    extensions = certificate.extensions
    alternatives = _of(extensions, x509.SubjectAlternativeName) or ()
    constraints = _of(extensions, x509.BasicConstraints)
    usages = _of(extensions, x509.ExtendedKeyUsage)
    subject = certificate.subject.rfc4514_string()
    names = tuple(_texts(alternatives))
    return Inspected(
        subject=subject,
        issuer=certificate.issuer.rfc4514_string(),
        names=names,
        identity=PeerIdentity(subject, names_of(certificate)),
        authority=constraints is not None and constraints.ca,
        usages=None
        if usages is None
        else tuple(_USAGES.get(one, one.dotted_string) for one in usages),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
    )


def _of(extensions: x509.Extensions, kind: type[_E]) -> _E | None:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _texts(names: Iterable[x509.GeneralName]) -> Iterator[str]:
    for name in names:
        match name:
            case x509.DNSName():
                yield f"DNS:{name.value}"
            case x509.IPAddress():
                yield f"IP:{name.value}"
            case x509.UniformResourceIdentifier():
                yield f"URI:{name.value}"
            case x509.RFC822Name():
                yield f"email:{name.value}"
            case x509.DirectoryName():
                yield f"directory:{name.value.rfc4514_string()}"
            case _:
                yield f"other:{type(name).__name__}"
