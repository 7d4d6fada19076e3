"""The kinds of keys and signatures in certificates that gRPC's TLS library uses.

OpenSSL loads many more, and then each handshake fails, on the side of the peer that is in order.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_EC = "2a8648ce3d0201"
_PSS = "2a864886f70d01010a"
_OWN_KEYS = {
    "2a864886f70d010101": "RSA",
    f"{_EC}/2a8648ce3d030107": "P-256",
    f"{_EC}/2b81040022": "P-384",
}
"""Object identifiers, as hexadecimal DER; of a key on a curve with that of the curve."""
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
"""The hash is that of the mask, too, and the salt as long as the hash."""
_SIGNATURES = frozenset(
    {
        *(f"2a864886f70d0101{hash_:02x}" for hash_ in (5, 11, 12, 13, 14)),  # RSA with SHA-1, -2
        "2a8648ce3d0401",  # ECDSA with SHA-1
        *(f"2a8648ce3d0403{hash_:02x}" for hash_ in (1, 2, 3, 4)),  # ECDSA with SHA-2
        "2b6570",
        *(_PSS + _PSS_PARAMETERS.format(hash=one, salt=16 + 16 * one) for one in (1, 2, 3)),
    }
)
"""SHA-1: OpenSSL decides."""


def unusable_chain(pem: str) -> str:
    """Return what is wrong with a node's or client's own certificate and those below it; empty:
    nothing.
    """
    for number, (key, signature) in enumerate(map(_kinds, _certificates(pem))):
        usable = _AUTHORITY_KEYS if number else _OWN_KEYS
        if key not in usable:
            return _wrong(f"a certificate with {_key_name(key)}", usable)
        if signature not in _SIGNATURES:
            return _wrong("a certificate that is signed in another way", usable)
    return ""


def unusable_authorities(pem: str) -> str:
    """Return what is wrong with a file of authorities; empty: nothing."""
    for key, _ in map(_kinds, _certificates(pem)):
        if key not in _AUTHORITY_KEYS:
            return _wrong(f"an authority with {_key_name(key)}", _AUTHORITY_KEYS)
    return ""


def missing_usages(pem: str, *, dials: bool) -> list[str]:
    """Return the extended key usages that a node's own certificate lacks; one without any such
    extension has all. ``dials``: it is a client's, too.
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
        f"{what}, with which no TLS connection comes about: keys are {', '.join(most)} or {last},"
        " signatures RSA, ECDSA or Ed25519 with SHA-2"
    )


def _key_name(key: str) -> str:
    name = _NAMES.get(key)
    return f"a key of type {name}" if name else "a key of another kind"


def _certificates(pem: str) -> list[bytes]:
    return [ssl.PEM_cert_to_DER_cert(one) for one in _PEM.findall(pem)]


def _kinds(certificate: bytes) -> tuple[str, str]:
    """Return the kinds of a certificate's key and of its signature; empty: malformed."""
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
