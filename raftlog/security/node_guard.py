"""Refuses what a node sends under another node's id, before anything else looks at it.

Why here, and not where each request is decided: a forged vote must not reach the quorum's core, a
forged heartbeat must not count on arrival, and a new kind of request must not be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import NodeRule
from raftlog.security.node_claims import CLAIM_OF, check_rows, refusal_of
from raftlog.transport.api import (
    Acceptor,
    Acceptors,
    Conversation,
    Link,
    LinkClosedError,
    LinkHandler,
)


class NodeGuard:
    """In front of the handler of one link: a LinkHandler itself."""

    def __init__(self, rule: NodeRule, conversation: Conversation, handler: LinkHandler) -> None:
        self._rule = rule
        self._conversation = conversation
        self._claim_of = CLAIM_OF[conversation]
        self._handler = handler

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Hand on what comes from whom it says, and refuse the rest."""
        admitted = [message for message in messages if self._admits(link, message)]
        if admitted:
            self._handler.received(link, admitted)

    def closed(self, link: Link, reason: str) -> None:
        """The link is gone."""
        self._handler.closed(link, reason)

    def _admits(self, link: Link, message: Any) -> bool:
        node_id = self._claim_of(message)
        if node_id is None or self._rule.admits(link.identity, node_id):
            return True
        error = ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"node {node_id} shows a certificate with {self._rule.name_of(node_id)}, and this one"
            f" is of {link.identity}",
        )
        link.forbidden(error.message)
        with suppress(LinkClosedError):
            link.send(refusal_of(self._conversation, message, error))
        return False


def guarded(acceptors: Acceptors, rule: NodeRule | None) -> Acceptors:
    """The same conversations, in which nodes are who their certificates say; without a rule as they
    are.
    """
    if rule is None:
        return dict(acceptors)
    check_rows()
    return {
        conversation: _guard(rule, conversation, acceptor) if conversation in CLAIM_OF else acceptor
        for conversation, acceptor in acceptors.items()
    }


def guarded_handler(
    handler: LinkHandler, conversation: Conversation, rule: NodeRule | None
) -> LinkHandler:
    """The same for one handler: that of unary calls."""
    return handler if rule is None else NodeGuard(rule, conversation, handler)


def _guard(rule: NodeRule, conversation: Conversation, acceptor: Acceptor) -> Acceptor:
    return lambda link: NodeGuard(rule, conversation, acceptor(link))
