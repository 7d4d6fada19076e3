"""Build the authentication, authorization, quotas and audit of a node from its settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from raftlog.errors import ConfigError
from raftlog.identity import (
    CERTIFICATES_ALONE,
    Access,
    NodeRule,
    PrincipalMapping,
)
from raftlog.logger import get_logger
from raftlog.node.config.listener_rules import listens_in_plaintext
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.settings import Settings
from raftlog.node.config.token_rules import takes_tokens
from raftlog.node.security.audit import Auditor
from raftlog.node.security.audit_log import AuditLog
from raftlog.node.security.authorization import HasAcls, authorization_of
from raftlog.node.security.client_rules import ClientRules
from raftlog.node.security.guard import Authentication
from raftlog.node.security.quotas import Quotas

log = get_logger(__name__)


def authentication_of(settings: Settings) -> Authentication | None:
    """Return the authentication, or None if any certificate from the right authority suffices."""
    if not settings.node_principal_rule:
        return None
    return Authentication(
        NodeRule.parse(settings.node_principal_rule),
        PrincipalMapping.parse(settings.ssl_principal_mapping_rules),
    )


def client_rules_of(settings: Settings) -> ClientRules | None:
    """Return the rules for a broker's clients, or None without an authorizer. Raises
    ConfigError.
    """
    authentication, authorization = authentication_of(settings), authorization_of(settings)
    if authorization is None:
        return None
    if authentication is None:
        raise ConfigError("authorizer.class.name needs node.principal.rule")
    return ClientRules(authentication, authorization)


def quotas_of(settings: Settings) -> Quotas | None:
    """Return the request quotas per client, or None if no quota is set."""
    per_principal = settings.max_requests_per_second_per_principal
    per_address = settings.max_requests_per_second_per_ip
    if not per_principal and not per_address:
        return None
    return Quotas(per_principal=per_principal, per_address=per_address, clock=time.monotonic)


@contextmanager
def audit_of(
    settings: Settings, cluster_id: str
) -> Iterator[Callable[[int, Callable[[], HasAcls]], Auditor | None]]:
    """Yield a factory of auditors, which takes a node id and a function that returns the newest
    image; it returns None if no audit log is configured.

    Queued events are written at the end. Raises ConfigError.
    """
    if not settings.audit_log_file:
        yield lambda node_id, image: None
        return
    log_ = AuditLog(
        Path(settings.audit_log_file),
        max_bytes=settings.audit_log_max_bytes,
        max_backups=settings.audit_log_max_backups,
    )
    try:
        yield lambda node_id, image: Auditor(
            node_id,
            cluster_id,
            log_,
            lambda: time.time_ns() // 1_000_000,
            authorization_of(settings),
            image,
            reads=settings.audit_log_reads,
        )
    finally:
        log_.close()


def accesses_of(config: NodeConfig) -> Mapping[str, Access]:
    """Return the permitted ways of authentication by listener name. Call it on the event loop, as
    it starts to fetch keys.

    A listener without TLS accepts no tokens, as anyone who reads the traffic could use them. Raises
    ConfigError if a configured key file has no keys.
    """
    settings = config.settings
    if not takes_tokens(settings):
        return {one.name: CERTIFICATES_ALONE for one in config.listeners}
    # Imported here: a node without tokens need not load the libraries that check them.
    from raftlog.node.security.token_setup import tokens_of

    tokens = tokens_of(settings)
    return {
        one.name: CERTIFICATES_ALONE
        if one.security.tls is None
        else Access(certificates=one.security.client_auth == "required", tokens=tokens)
        for one in config.listeners
    }


def warn_of_plaintext(settings: Settings) -> None:
    """Log what ``security.plaintext.allow`` means, at each start."""
    reached = listens_in_plaintext(settings)
    if reached is not None:
        log.warning(
            "this node listens without TLS (security.plaintext.allow): anyone who reaches the"
            " address can read, change and destroy the cluster",
            listener=reached.address,
        )
