"""The names of a certificate are what they seem, or none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from raftlog.identity import ANONYMOUS, NodeRule
from raftlog.transport.peer_identity import identity_of

KEY = ec.generate_private_key(ec.SECP256R1())
RULE = NodeRule.parse("CN=node-{id}")


class Context:
    def __init__(self, shown: dict[str, list[bytes]]) -> None:
        self.shown = shown

    def auth_context(self) -> dict[str, list[bytes]]:
        return self.shown


def certificate(common: list[str], alternative: list[x509.GeneralName]) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in common])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


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


def test_common_name_dns_and_uri() -> None:
    found = names(
        ["node-4"],
        x509.DNSName("c4.example"),
        x509.UniformResourceIdentifier("spiffe://x/4"),
        x509.RFC822Name("a@example"),
    )
    assert found == {"CN=node-4", "DNS:c4.example", "URI:spiffe://x/4"}
    assert names([], x509.DNSName("c4.example")) == {"DNS:c4.example"}


@pytest.mark.parametrize("name", ["node-4\0evil", "node-4\n", "node-4\x1b[31m"])
def test_a_name_that_is_not_what_it_seems_is_none_and_takes_the_others_with_it(name: str) -> None:
    assert names([name], x509.DNSName("c4.example")) == set()


def test_a_hidden_end_of_an_alternative_name_is_none() -> None:
    assert names(["alice"], x509.DNSName("c4.example\0.evil")) == set()
    assert names(["alice"], x509.UniformResourceIdentifier("spiffe://x/4\0")) == set()


def test_of_several_common_names_none_counts() -> None:
    assert names(["node-4", "alice"]) == names(["alice", "node-4"]) == set()


@pytest.mark.parametrize("shown", [{}, {"x509_common_name": [b"node-4"]}, {"x509_pem_cert": []}])
def test_who_shows_no_certificate_is_nobody(shown: Any) -> None:
    assert identity_of(Context(shown)) is ANONYMOUS


def test_what_cannot_be_parsed_has_no_names() -> None:
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
