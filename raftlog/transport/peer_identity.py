"""Whose certificate a gRPC peer has shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from raftlog.identity import ANONYMOUS, PeerIdentity

_KINDS = {"x509_common_name": "CN=", "peer_dns": "DNS:", "peer_uri": "URI:"}
"""gRPC's properties of a peer -> how a rule names them."""


def identity_of(context: Any) -> PeerIdentity:
    """Of a call's peer; ANONYMOUS if it has shown no certificate that was checked."""
    shown = context.auth_context()
    if not shown or "x509_pem_cert" not in shown:
        return ANONYMOUS
    names = frozenset(
        prefix + name for kind, prefix in _KINDS.items() for name in _texts(shown.get(kind, ()))
    )
    return PeerIdentity(next(_texts(shown.get("x509_subject", ())), ""), names)


def _texts(values: Iterable[bytes]) -> Iterator[str]:
    return (value.decode("utf-8", "replace") for value in values)
