"""The guard of unary calls outside the conversations: those of Quorum and Node."""

from __future__ import annotations

from typing import Any

from raftlog.errors import ApiError
from raftlog.node.security.audit import AuditedLink
from raftlog.node.security.guard import Authentication, Duties
from raftlog.transport.api import Conversation, Link


def check_call(
    method: str,
    request: Any,
    link: Link,
    authentication: Authentication,
    duties: Duties,
    service: str = "Quorum",
) -> None:
    """Raise ApiError for a caller without permission, or above its quota; a refusal is counted and
    reported to the audit log.

    ``method``: a row of the table of permissions, of ``service``; ``link``: the caller's.
    """
    asker = authentication.asker_of(link.identity, link.peer, node=duties.nodes_come)
    if duties.quotas is not None and asker.node_id is None:
        duties.quotas.check(asker.caller)
    if duties.readers is None:
        return
    try:
        duties.readers.check(method, request, asker)
    except ApiError as error:
        link.forbidden(error.message)
        if duties.auditor is not None:
            audited = AuditedLink(duties.auditor, Conversation.QUORUM, link, service)
            audited.refused(request, asker.caller, error.message, method)
        raise


def tell_change(
    method: str,
    link: Link,
    authentication: Authentication,
    duties: Duties,
    error: ApiError | None,
    service: str,
) -> None:
    """Report a permitted call that changes a node or the quorum to the audit log."""
    if duties.auditor is not None:
        asker = authentication.asker_of(link.identity, link.peer, node=duties.nodes_come)
        audited = AuditedLink(duties.auditor, Conversation.QUORUM, link, service)
        audited.called(method, asker.caller, error)
