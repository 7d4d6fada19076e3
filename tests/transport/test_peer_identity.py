"""Names in certificates."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from raftlog.identity import ANONYMOUS, NodeRule, PeerIdentity
from raftlog.transport.certificates import identity_of, identity_of_der

import grpc  # isort: skip
import grpc.aio  # isort: skip

KEY = ec.generate_private_key(ec.SECP256R1())
RULE = NodeRule.parse("CN=node-{id}")


class Context:
    def __init__(self, shown: dict[str, list[bytes]]) -> None:
        self.shown = shown

    def auth_context(self) -> dict[str, list[bytes]]:
        return self.shown


def certificate(common: list[str], alternative: list[x509.GeneralName]) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in common])
    made = issued(name, x509.Name([]), alternative=alternative)
    return made.public_bytes(serialization.Encoding.PEM)


def names(common: list[str], *alternative: x509.GeneralName) -> set[str]:
    shown = {
        "x509_pem_cert": [certificate(common, list(alternative))],
        # As gRPC has it: cut at the first NUL.
        "x509_common_name": [common[0].partition("\0")[0].encode()] if common else [],
        "x509_subject": [b"CN=shown"],
    }
    found = identity_of(Context(shown))
    assert found.subject == "CN=shown"
    return set(found.names)


def test_common_name_dns_and_uri_are_read() -> None:
    found = names(
        ["node-4"],
        x509.DNSName("c4.example"),
        x509.UniformResourceIdentifier("spiffe://x/4"),
        x509.RFC822Name("a@example"),
    )
    assert found == {"CN=node-4", "DNS:c4.example", "URI:spiffe://x/4"}
    assert names([], x509.DNSName("c4.example")) == {"DNS:c4.example"}


@pytest.mark.parametrize("name", ["node-4\0evil", "node-4\n", "node-4\x1b[31m"])
def test_misleading_name_is_dropped_with_all_others(name: str) -> None:
    assert names([name], x509.DNSName("c4.example")) == set()


def test_alternative_name_with_a_hidden_end_is_dropped() -> None:
    assert names(["alice"], x509.DNSName("c4.example\0.evil")) == set()
    assert names(["alice"], x509.UniformResourceIdentifier("spiffe://x/4\0")) == set()


def test_certificate_with_several_common_names_has_none() -> None:
    assert names(["node-4", "alice"]) == names(["alice", "node-4"]) == set()


@pytest.mark.parametrize("shown", [{}, {"x509_common_name": [b"node-4"]}, {"x509_pem_cert": []}])
def test_peer_without_a_certificate_is_anonymous(shown: Any) -> None:
    assert identity_of(Context(shown)) is ANONYMOUS


def test_malformed_certificate_has_no_names() -> None:
    found = identity_of(
        Context(
            {
                "x509_pem_cert": [b"garbage"],
                "x509_subject": [b"CN=node-4"],
                "x509_common_name": [b"node-4"],
            }
        )
    )
    assert (found.subject, found.names) == ("CN=node-4", frozenset())
    assert not RULE.admits(found, 4)


SUBJECTS = [
    [[(NameOID.COMMON_NAME, "alice")]],
    [[(NameOID.ORGANIZATION_NAME, "Acme, Inc.")], [(NameOID.COMMON_NAME, '#a+b=c;<>"\\ ')]],
    [
        [(NameOID.USER_ID, "u")],
        [(NameOID.EMAIL_ADDRESS, "a@b.c")],
        [(NameOID.STREET_ADDRESS, "s 1")],
        [(NameOID.COMMON_NAME, " ünï€")],
    ],
    [
        [(NameOID.COMMON_NAME, "two"), (NameOID.ORGANIZATION_NAME, "of one")],
        [(NameOID.COMMON_NAME, "line\nbreak\x7f")],
    ],
    [],
]


@pytest.mark.parametrize("subject", SUBJECTS)
async def test_identity_by_tls_alone_equals_that_of_grpc(
    subject: list[list[tuple[x509.ObjectIdentifier, str]]],
) -> None:
    """A principal is written as gRPC writes the subject: rules and entries apply everywhere."""
    name = x509.Name(
        [
            x509.RelativeDistinguishedName([x509.NameAttribute(*one) for one in attributes])
            for attributes in subject
        ]
    )
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    root, served, shown = (
        issued(one, authority, is_authority=one == authority)
        for one in (authority, x509.Name([]), name)
    )
    key = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pems = [one.public_bytes(serialization.Encoding.PEM) for one in (root, served, shown)]
    found: list[PeerIdentity] = []

    async def remember(_: bytes, context: Any) -> bytes:
        found.append(identity_of(context))
        return b""

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(remember)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.S", {"m": handler}),))
    credentials = grpc.ssl_server_credentials([(key, pems[1])], pems[0], require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    own = grpc.ssl_channel_credentials(pems[0], key, pems[2])
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", own) as channel:
        await channel.unary_unary("/a.S/m")(b"", timeout=30)
    await server.stop(0)
    der = shown.public_bytes(serialization.Encoding.DER)
    assert identity_of_der(der) == found[0]
    assert bool(found[0].subject) == bool(subject)


@pytest.mark.parametrize(
    "attribute",
    [
        x509.NameAttribute(x509.ObjectIdentifier("1.2.3.4"), "unknown"),
        x509.NameAttribute(NameOID.COMMON_NAME, "t61é", _ASN1Type.T61String),
    ],
)
def test_subject_read_differently_names_nobody(attribute: x509.NameAttribute[str]) -> None:
    made = issued(x509.Name([attribute]), x509.Name([]))
    assert identity_of_der(made.public_bytes(serialization.Encoding.DER)) == ANONYMOUS


def issued(
    subject: x509.Name,
    issuer: x509.Name,
    *,
    is_authority: bool = False,
    alternative: Sequence[x509.GeneralName] = (x509.IPAddress(ip_address("127.0.0.1")),),
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
    )
    if alternative:
        names = x509.SubjectAlternativeName(alternative)
        builder = builder.add_extension(names, critical=False)
    return builder.sign(KEY, hashes.SHA256())
