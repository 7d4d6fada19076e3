"""Build the token check of a node from its settings."""

from __future__ import annotations

from raftlog.node.config.settings import Settings
from raftlog.node.config.token_rules import jwks_file
from raftlog.node.security.issuer_keys import EndpointKeys, FileKeys, KeySource, fetch_keys
from raftlog.node.security.token_rules import TokenRules
from raftlog.node.security.tokens import Tokens


def tokens_of(settings: Settings) -> Tokens:
    """Return the token check. Call it on the event loop, as it starts to fetch keys.

    Raises ConfigError if a configured key file has no keys.
    """
    rules = TokenRules(
        settings.sasl_oauthbearer_expected_issuer,
        frozenset(settings.sasl_oauthbearer_expected_audience),
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds,
    )
    return Tokens(rules, _keys(settings))


def _keys(settings: Settings) -> KeySource:
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    file = jwks_file(url)
    if file is not None:
        return FileKeys(file)
    return EndpointKeys(
        url,
        fetch_keys,
        settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
    )
