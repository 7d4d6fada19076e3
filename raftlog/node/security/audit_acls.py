"""Find the access control entries that a request has changed, for the audit log, as auditors look
for these first.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from raftlog.metadata.acls import Binding
from raftlog.node.security.audit_event import MAX_RESOURCES


def changed_acls(kind: str, body: Any, response: Any) -> tuple[str, ...]:
    """Return the entries that a ``create_acls`` request has added or a ``delete_acls`` request has
    removed, at most MAX_RESOURCES; empty for any other request, and for one that only validates.
    """
    if kind not in ("create_acls", "delete_acls") or body.validate_only:
        return ()
    if kind == "create_acls":
        results = response.create_acls.results
        added = (
            entry
            for entry, result in zip(body.creations, results, strict=False)
            if not (result.existed or result.error.error_code)
        )
        return tuple(str(Binding.of(entry)) for entry in islice(added, MAX_RESOURCES))
    removed = (one for result in response.delete_acls.results for one in result.matching_acls)
    return tuple(str(Binding.of(entry)) for entry in islice(removed, MAX_RESOURCES))
