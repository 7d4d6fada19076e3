"""Who may make a unary call that belongs to no conversation: what a guard asks of each message is
asked of it, too.
"""

from __future__ import annotations

from typing import Any

from raftlog.errors import ApiError
from raftlog.security.audit import AuditedLink
from raftlog.security.guard import Authentication, Duties
from raftlog.transport.api import Conversation, Link


def check_call(
    conversation: Conversation,
    method: str,
    request: Any,
    link: Link,
    authentication: Authentication | None,
    duties: Duties,
) -> None:
    """Raises ApiError if the other side of ``link`` may not call it, or not so often.

    ``conversation``: one of the same service. ``method``: its row in the table of permissions.
    """
    if authentication is None:
        return
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
            audited = AuditedLink(duties.auditor, conversation, link)
            audited.refused(request, asker.caller, error.message, method=method)
        raise
