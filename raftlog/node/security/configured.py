"""The authentication, authorization, quotas and audit of a node, as configured."""

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
    """Return the authentication; None: certificates need only the right authority."""
    if not settings.node_principal_rule:
        return None
    return Authentication(
        NodeRule.parse(settings.node_principal_rule),
        PrincipalMapping.parse(settings.ssl_principal_mapping_rules),
    )


def client_rules_of(settings: Settings) -> ClientRules | None:
    """Return a broker's rules for its clients; None if there are none."""
    authentication, authorization = authentication_of(settings), authorization_of(settings)
    if authorization is None:
        return None
    if authentication is None:
        raise ConfigError("authorizer.class.name needs node.principal.rule")
    return ClientRules(authentication, authorization)


def quotas_of(settings: Settings) -> Quotas | None:
    """Return the request quotas of a client; None if there are none."""
    per_principal = settings.max_requests_per_second_per_principal
    per_address = settings.max_requests_per_second_per_ip
    if not per_principal and not per_address:
        return None
    return Quotas(per_principal=per_principal, per_address=per_address, clock=time.monotonic)


@contextmanager
def audit_of(
    settings: Settings, cluster_id: str
) -> Iterator[Callable[[int, Callable[[], HasAcls]], Auditor | None]]:
    """Yield the factory of a node's auditor, by its id and its source of the newest image; None: no
    audit.

    The waiting events are written at the end. Raises ConfigError.
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
    """Return the admitted callers by listener. To be called on the event loop: it begins to fetch
    keys.

    A listener without TLS accepts no tokens: a reader of one could use it. Raises ConfigError for a
    file without keys.
    """
    settings = config.settings
    if not takes_tokens(settings):
        return {one.name: CERTIFICATES_ALONE for one in config.listeners}
    # Here: a node without tokens need not load what checks them.
    from raftlog.node.security.token_setup import tokens_of

    tokens = tokens_of(settings)
    return {
        one.name: CERTIFICATES_ALONE
        if one.security.tls is None
        else Access(certificates=one.security.client_auth == "required", tokens=tokens)
        for one in config.listeners
    }


def warn_of_plaintext(settings: Settings) -> None:
    """Log at each start what ``security.plaintext.allow`` means."""
    reached = listens_in_plaintext(settings)
    if reached is not None:
        log.warning(
            "this node listens without TLS (security.plaintext.allow): whoever reaches the address"
            " can read, change and destroy the cluster",
            listener=reached.address,
        )
