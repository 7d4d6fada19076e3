"""Certificates: accepted keys and signatures, validity, the peer's identity, and objects that are
reloaded when their files change.
"""

from __future__ import annotations

import math
import re
import ssl
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog.identity import ANONYMOUS, PeerIdentity

if TYPE_CHECKING:
    from cryptography import x509
import os
import threading
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from raftlog.errors import ConfigError
from raftlog.logger import get_logger

log = get_logger(__name__)

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_EC = "2a8648ce3d0201"
_PSS = "2a864886f70d01010a"
_OWN_KEYS = {
    "2a864886f70d010101": "RSA",
    f"{_EC}/2a8648ce3d030107": "P-256",
    f"{_EC}/2b81040022": "P-384",
}
"""Object identifiers of the accepted keys, as hexadecimal DER; for an elliptic-curve key, followed
by its curve's.
"""
_AUTHORITY_KEYS = {
    **_OWN_KEYS,
    f"{_EC}/2b81040021": "P-224",
    f"{_EC}/2b81040023": "P-521",
    "2b6570": "Ed25519",
}
_OTHER_KEYS = {
    "2b6571": "Ed448",
    "2a8648ce380401": "DSA",
    _PSS: "RSA-PSS",
    f"{_EC}/2b8104000a": "secp256k1",
}
_NAMES = _AUTHORITY_KEYS | _OTHER_KEYS
_PSS_PARAMETERS = (
    "3034a00f300d06096086480165030402{hash:02x}0500a11c301a06092a864886f70d010108300d06096086480165"
    "030402{hash:02x}0500a2030201{salt:02x}"
)
"""RSA-PSS parameters whose mask uses the same hash, and whose salt is as long as the hash."""
_SIGNATURES = frozenset(
    {
        *(f"2a864886f70d0101{hash_:02x}" for hash_ in (5, 11, 12, 13, 14)),  # RSA with SHA-1, -2
        "2a8648ce3d0401",  # ECDSA with SHA-1
        *(f"2a8648ce3d0403{hash_:02x}" for hash_ in (1, 2, 3, 4)),  # ECDSA with SHA-2
        "2b6570",
        *(_PSS + _PSS_PARAMETERS.format(hash=one, salt=16 + 16 * one) for one in (1, 2, 3)),
    }
)
"""Accepted kinds of signatures. They include SHA-1: OpenSSL decides whether to accept it."""


def unusable_chain(pem: str) -> str:
    """Return what is wrong with the certificate chain of a node or client, or an empty string."""
    if not _PEM.search(pem):
        return "no -----BEGIN CERTIFICATE-----: openssl x509 -in FILE writes one"
    for number, (key, signature) in enumerate(map(_kinds, _certificates(pem))):
        usable = _AUTHORITY_KEYS if number else _OWN_KEYS
        if key not in usable:
            return _wrong(f"a certificate with {_key_name(key)}", usable)
        if signature not in _SIGNATURES:
            return _wrong("a certificate with an unsupported signature", usable)
    return ""


def unusable_authorities(pem: str) -> str:
    """Return what is wrong with a file of CA certificates, or an empty string."""
    for key, _ in map(_kinds, _certificates(pem)):
        if key not in _AUTHORITY_KEYS:
            return _wrong(f"a CA certificate with {_key_name(key)}", _AUTHORITY_KEYS)
    return ""


def missing_usages(pem: str, *, dials: bool) -> list[str]:
    """Return the extended key usages that a node's own certificate lacks.

    A certificate without that extension lacks none. ``dials``: whether the node also uses it as a
    client.
    """
    _, found, behind = _certificates(pem)[0].partition(_EXTENDED_KEY_USAGE)
    if not found:
        return []
    octets = next(content for tag, content in _elements(behind) if tag == _OCTETS)
    ((_, purposes),) = _elements(octets)
    there = {content.hex() for _, content in _elements(purposes)}
    wanted = {"serverAuth": "2b06010505070301"} | (
        {"clientAuth": "2b06010505070302"} if dials else {}
    )
    return [] if _ANY_USAGE in there else [name for name, id_ in wanted.items() if id_ not in there]


def _wrong(what: str, usable: dict[str, str]) -> str:
    *most, last = usable.values()
    return (
        f"{what}, which cannot be used for TLS: the key must be {', '.join(most)} or {last}, and"
        " the signature RSA, ECDSA or Ed25519 with SHA-2"
    )


def _key_name(key: str) -> str:
    name = _NAMES.get(key)
    return f"a key of type {name}" if name else "a key of an unknown type"


def first_der(pem: str) -> bytes:
    """Return the first certificate of a PEM text, as DER. Raises IndexError."""
    return _certificates(pem)[0]


def _certificates(pem: str) -> list[bytes]:
    return [ssl.PEM_cert_to_DER_cert(one) for one in _PEM.findall(pem)]


def _kinds(certificate: bytes) -> tuple[str, str]:
    """Return the kinds of a certificate's key and of its signature; both are empty if it is
    malformed.
    """
    try:
        ((_, body),) = _elements(certificate)
        (_, signed), (_, signature), _ = _elements(body)
        fields = [content for tag, content in _elements(signed) if tag != _VERSION]
        _, _, _, _, _, key, *_ = fields
        (_, algorithm), _ = _elements(key)
        (_, scheme), *_ = _elements(signature)
        parameters = signature[2 + len(scheme) :].hex() if scheme.hex() == _PSS else ""
        return _identifiers(algorithm), scheme.hex() + parameters
    except (IndexError, ValueError):
        return "", ""


_VERSION, _IDENTIFIER, _OCTETS = 0xA0, 0x06, 0x04
_EXTENDED_KEY_USAGE = bytes.fromhex("0603551d25")
_ANY_USAGE = "551d2500"


def _identifiers(content: bytes) -> str:
    """Return the object identifiers of an AlgorithmIdentifier."""
    return "/".join(part.hex() for tag, part in _elements(content) if tag == _IDENTIFIER)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and content of each element. Raises IndexError."""
    at = 0
    while at < len(der):
        tag, length, begin = der[at], der[at + 1], at + 2
        if length & 0x80:
            begin, size = begin + (length & 0x7F), length & 0x7F
            length = int.from_bytes(der[begin - size : begin])
        yield tag, der[begin : begin + length]
        at = begin + length


_VALIDITY = re.compile(
    rb"(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)"
)
"""Both validity times of a certificate in DER, with two-digit or four-digit years."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a client. A client without a certificate has a token."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


def invalid_now(certificate: Path) -> str:
    """Return why the first certificate of a PEM file is invalid now, or empty if it is valid."""
    began, ends = times_of(certificate)
    now = datetime.now(UTC)
    if ends is not None and ends < now:
        return f"expired{at_text(ends)}"
    return f"is not valid until{at_text(began)}" if began is not None and began > now else ""


def times_of(certificate: Path) -> tuple[datetime | None, datetime | None]:
    """Return the validity period of a PEM file's first certificate; (None, None) if it cannot be
    read.
    """
    try:
        pem = _PEM.search(certificate.read_text())
        return times_of_der(ssl.PEM_cert_to_DER_cert(pem[0]) if pem else b"")
    except (OSError, ValueError):
        return None, None


def first_end(certificates: Iterable[Path]) -> datetime | None:
    """Return the earliest end of validity of these files' first certificates, or None if none can
    be read.
    """
    ends = [at for _, at in map(times_of, certificates) if at is not None]
    return min(ends, default=None)


def times_of_der(der: bytes) -> tuple[datetime | None, datetime | None]:
    """Return the validity period of a DER certificate; (None, None) if it cannot be found."""
    found = _VALIDITY.search(der)
    if found is None:
        return None, None
    began, ends = (found[1] or found[2]), (found[3] or found[4])
    return _time(began), _time(ends)


def _time(digits: bytes) -> datetime | None:
    text = digits.decode()
    if len(text) == len("YYMMDDhhmmss"):
        text = ("19" if text >= "5" else "20") + text
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def at_text(when: datetime | None) -> str:
    """Return a time with a leading space, or empty if the time is unknown."""
    return "" if when is None else f" {when:%Y-%m-%dT%H:%M:%SZ}"


REMEMBERED = 1024
"""Number of parsed certificates in the cache, as each call of a peer presents its certificate
again.
"""


def identity_of(context: Any) -> PeerIdentity:
    """Return the identity of a call's peer, or ANONYMOUS without a verified certificate."""
    shown = context.auth_context()
    pem = next(iter(shown.get("x509_pem_cert", ())), b"") if shown else b""
    if not pem:
        return ANONYMOUS
    subject = next(iter(shown.get("x509_subject", ())), b"")
    return _identity(subject.decode("utf-8", "replace"), pem)


@lru_cache(REMEMBERED)
def identity_of_der(der: bytes) -> PeerIdentity:
    """Return the identity in a certificate that TLS has verified, equal to gRPC's."""
    from cryptography import x509

    with warnings.catch_warnings(action="ignore"):
        try:
            certificate = x509.load_der_x509_certificate(der)
            return _of_certificate(_rfc2253(certificate.subject), lambda: certificate)
        except Exception:
            # The issuer decides the contents: a peer whose certificate cannot be parsed is
            # anonymous.
            return ANONYMOUS


@lru_cache(REMEMBERED)
def _identity(subject: str, pem: bytes) -> PeerIdentity:
    # Parsed only here: a client without a certificate needs no parser.
    from cryptography import x509

    with warnings.catch_warnings(action="ignore"):
        return _of_certificate(subject, lambda: x509.load_pem_x509_certificate(pem))


def _of_certificate(subject: str, load: Callable[[], x509.Certificate]) -> PeerIdentity:
    from cryptography.hazmat.primitives.hashes import SHA256

    names, fingerprint, ends_at_s = frozenset[str](), "", math.inf
    try:
        certificate = load()
        fingerprint = certificate.fingerprint(SHA256()).hex()
        ends_at_s = certificate.not_valid_after_utc.timestamp()
        names = names_of(certificate)
    except Exception:
        # The issuer decides the contents: a certificate that cannot be parsed has no names.
        names = frozenset()
    return PeerIdentity(subject, names, fingerprint, ends_at_s=ends_at_s)


_SHORT_NAMES = {
    "2.5.4.3": "CN", "2.5.4.4": "SN", "2.5.4.5": "serialNumber", "2.5.4.6": "C", "2.5.4.7": "L",
    "2.5.4.8": "ST", "2.5.4.9": "street", "2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.12": "title",
    "2.5.4.42": "GN", "2.5.4.43": "initials", "2.5.4.44": "generationQualifier",
    "2.5.4.46": "dnQualifier", "2.5.4.65": "pseudonym", "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC", "1.2.840.113549.1.9.1": "emailAddress",
}  # fmt: skip
"""Attribute names in gRPC's TLS library, by object identifier."""
_UNAMBIGUOUS_TAGS = frozenset((12, 28, 30))
"""Tags of UTF8String, UniversalString and BMPString: libraries disagree about non-ASCII text of
other types.
"""


def _rfc2253(subject: x509.Name) -> str:
    """Return a distinguished name in the notation of gRPC's TLS library.

    Raises ValueError for a name that gRPC may write differently (otherwise a CA could sign a name
    that this node reads as another principal).
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
        raise ValueError("not a text value")  # noqa: TRY004  (the certificate's fault)
    if not value.isascii() and attribute._type.value not in _UNAMBIGUOUS_TAGS:
        raise ValueError("non-ASCII text in a legacy string type")
    text = "".join(
        "\\" + one if one in ',+"\\<>;' else chr(byte) if 32 <= byte < 127 else f"\\{byte:02X}"
        for one in value
        for byte in one.encode()
    )
    if value[-1:] == " " and len(value) > 1:
        text = text[:-1] + "\\ "
    return "\\" + text if value[:1] in ("#", " ") else text


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    r"""Return the names that an access rule compares; none if one of them is ambiguous.

    gRPC's own names are not used: gRPC truncates a name at its first NUL (the owner of a
    certificate for ``node-4\0.example`` would then be node 4), and uses the first of several common
    names. Raises the parser's errors for other malformed certificates.
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


T = TypeVar("T")

LOOK_AGAIN_S = 1.0
"""Shortest interval between two checks of the files, in seconds: so that a storm of handshakes does
not become a storm of disk reads.
"""

Stamp = tuple[int, int, int] | None
"""File stamp that changes when the file is replaced or written; None if the file does not exist."""
_Seen = tuple[Stamp, ...]


class Reread(Generic[T]):
    """An object that is recreated when its files change. Any thread may read it.

    If ``make`` fails later, because only some of the files have been replaced or a file cannot be
    read, the earlier object is kept, each reason is logged once, and each check tries again. The
    first ``make`` raises its ConfigError to the caller. ``what``: what the files contain, for the
    log.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        make: Callable[[], T],
        *,
        what: str = "certificate",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._make, self._what, self._clock = tuple(paths), make, what, clock
        self._lock = threading.Lock()
        self._seen = self._look()
        self._made = make()
        self._failure = ""
        """Why ``make`` failed at the last check, or empty if it did not."""
        self._looked_at = clock()
        self.version = 0
        """Number of times that the object was recreated."""

    def current(self) -> T:
        """Return the object made from the current files, or the last one that could be made."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= LOOK_AGAIN_S:
                self._looked_at = now
                self._look_again()
            return self._made

    def _look_again(self) -> None:
        seen = self._look()
        if seen == self._seen:
            self._failure = ""
            return
        names = [str(path) for path in self._paths]
        try:
            self._made = self._make()
        # Any error: the caller needs a valid object, and has not caused the error.
        except Exception as error:
            expected = isinstance(error, ConfigError)
            why = str(error) if expected else f"{type(error).__name__}: {error}"
            if why != self._failure:
                self._failure = why
                log.warning(
                    f"changed {self._what} files are invalid: the previous ones stay in use",
                    files=names,
                    error=why,
                )
            return
        self._seen, self._failure = seen, ""
        self.version += 1
        log.info(f"changed {self._what} files are now in use", files=names)

    def _look(self) -> _Seen:
        return tuple(stamp(path) for path in self._paths)


def stamp(path: Path) -> Stamp:
    """Return the current stamp of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
