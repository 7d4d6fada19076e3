"""Certificates of a test's own authority, in files."""

import os
from datetime import datetime
from pathlib import Path

import trustme

from raftlog.transport.tls import TlsConfig


def write(tls: TlsConfig, certificate: bytes, key: bytes, trusted: bytes) -> None:
    """Write a node's three files, each in place of an earlier one, as a renewal does."""
    for path, content in zip(tls.paths, (certificate, key, trusted), strict=True):
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        os.replace(fresh, path)


def issue(
    directory: Path,
    authority: trustme.CA,
    name: str = "node",
    *,
    stem: str = "",
    host: str = "127.0.0.1",
    trusted: bytes = b"",
    validity: tuple[datetime | None, datetime | None] = (None, None),
) -> TlsConfig:
    """Issue a certificate with this common name for ``host``. ``stem``: of the files, if not the
    name; ``trusted``: authorities, if not the issuing one.
    """
    directory.mkdir(exist_ok=True)
    made = authority.issue_cert(
        host, common_name=name, not_before=validity[0], not_after=validity[1]
    )
    tls = TlsConfig(*(directory / f"{stem or name}.{kind}" for kind in ("pem", "key", "ca")))
    chain = b"".join(one.bytes() for one in made.cert_chain_pems)
    write(tls, chain, made.private_key_pem.bytes(), trusted or authority.cert_pem.bytes())
    return tls
