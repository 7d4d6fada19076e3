"""Guard the unary calls of the Quorum and Node services, which belong to no conversation."""

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
    """Raise ApiError if the caller lacks the permission or exceeds its quota.

    A refusal is counted and reported to the audit log. ``method`` is a row of the permission table
    ``LOG``, ``link`` the caller's link.
    """
    asker = authentication.asker_of(link.identity, link.peer, node=duties.accepts_nodes)
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


def report_change(
    method: str,
    link: Link,
    authentication: Authentication,
    duties: Duties,
    error: ApiError | None,
    service: str,
) -> None:
    """Report a permitted call that changes a node or the quorum to the audit log."""
    if duties.auditor is not None:
        asker = authentication.asker_of(link.identity, link.peer, node=duties.accepts_nodes)
        audited = AuditedLink(duties.auditor, Conversation.QUORUM, link, service)
        audited.called(method, asker.caller, error)
