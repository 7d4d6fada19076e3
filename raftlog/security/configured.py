"""What a node's configuration wants certificates to say."""

from __future__ import annotations

from raftlog.config.settings import Settings
from raftlog.identity import NodeRule
from raftlog.principals import PrincipalMapping
from raftlog.security.guard import Authentication


def authentication_of(settings: Settings) -> Authentication | None:
    """None: nothing is asked of certificates but their authority."""
    if not settings.node_principal_rule:
        return None
    return Authentication(
        NodeRule.parse(settings.node_principal_rule),
        PrincipalMapping.parse(settings.ssl_principal_mapping_rules),
    )
