"""Rules about tokens (``sasl.oauthbearer.…``) and client certificates."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from raftlog.endpoint import Endpoint
from raftlog.limits import Text
from raftlog.node.config.fields import SSL
from raftlog.node.config.listeners import bound, for_nodes, key_of_listener, protocol_of
from raftlog.node.config.settings import Settings

_CLAIM = Text(255)
_URL = "https://…, file:///… or, only on this host, http://127.0.0.1…"


def takes_tokens(settings: Settings) -> bool:
    """Return whether a node with these settings, which satisfy all rules, accepts tokens."""
    return bool(settings.sasl_oauthbearer_jwks_endpoint_url)


def jwks_file(url: str) -> Path | None:
    """Return the file of a file:// URL, or None for an endpoint. Raises ValueError for
    other URLs.
    """
    if not url.isprintable() or any(char.isspace() for char in url):
        raise ValueError(f"{url!r} is not a URL")
    parts = urlsplit(url)
    # Read here, as it raises ValueError for an invalid port.
    port = parts.port
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise ValueError(f"{url!r} is not a file on this host: use file:///path")
        return Path(unquote(parts.path))
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the URL must not contain a user name or a password, which would be logged"
        )
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ValueError(f"{url!r} is not {_URL}")
    host = Endpoint(parts.hostname, port or 0)
    if parts.scheme == "http" and not host.is_loopback:
        raise ValueError(f"{url!r}: an attacker on the network could replace the keys: use {_URL}")
    return None


def complete(settings: Settings) -> str | None:
    """Require either all three keys for tokens, or none."""
    given = (
        settings.sasl_oauthbearer_jwks_endpoint_url,
        settings.sasl_oauthbearer_expected_issuer,
        settings.sasl_oauthbearer_expected_audience,
    )
    if all(given) or not any(given):
        return None
    return (
        "tokens need all three: sasl.oauthbearer.jwks.endpoint.url,"
        " sasl.oauthbearer.expected.issuer and sasl.oauthbearer.expected.audience"
    )


def url(settings: Settings) -> str | None:
    """Require a valid URL for the keys."""
    if not takes_tokens(settings):
        return None
    try:
        jwks_file(settings.sasl_oauthbearer_jwks_endpoint_url)
    except ValueError as error:
        return str(error)
    return None


def secured(settings: Settings) -> str | None:
    """Require TLS and node.principal.rule for tokens."""
    if not takes_tokens(settings):
        return None
    if not settings.tls_certificate_file:
        return "tokens need TLS: set tls.certificate.file, tls.key.file and tls.ca.file"
    if not settings.node_principal_rule:
        return (
            "tokens need node.principal.rule: without it any certificate may act as a node, and the"
            " principals that clients state are not verified"
        )
    return None


def claim(settings: Settings) -> str | None:
    """Require a valid claim name."""
    name = settings.sasl_oauthbearer_sub_claim_name
    return _CLAIM.error(name) or (None if name else "the name of a claim is required")


def client_auth(settings: Settings) -> str | None:
    """Require tokens if ssl.client.auth is none, and client certificates for nodes."""
    listeners = bound(settings)
    open_ones = [
        name
        for name in listeners
        if key_of_listener(settings, name, "ssl_client_auth") == "none"
        and protocol_of(settings, name) == SSL
    ]
    if not open_ones:
        return None
    if not takes_tokens(settings):
        return (
            "none needs tokens (sasl.oauthbearer.jwks.endpoint.url): without them anybody could"
            " connect"
        )
    if of_nodes := [name for name in open_ones if name in for_nodes(settings)]:
        return (
            f"none is only for listeners of clients: other nodes connect to {of_nodes[0]}, and"
            " without a certificate they could not identify themselves (node.principal.rule)"
        )
    return None
