"""Restrict listeners for clients: they refuse requests made in a node's name.

A client that connects to such a listener, with any certificate, cannot vote, replicate, register or
report progress: the conversations for that do not exist there, and in the others a request with a
node id is refused before any part of the node processes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from raftlog.errors import ApiError, ErrorCode
from raftlog.node.security.node_claims import CLAIM_OF, CONTROLLER_CLAIMS, refusal_of
from raftlog.transport.api import (
    Acceptor,
    Acceptors,
    Conversation,
    Link,
    LinkClosedError,
    LinkHandler,
)

OF_CLIENTS = frozenset(
    {
        Conversation.CONTROLLER,
        Conversation.OBSERVER,
        Conversation.SNAPSHOT,
        Conversation.BROKER,
        Conversation.WATCH,
        Conversation.WATCH_MANY,
    }
)
"""Conversations of clients. Exports, backups and commands read the log and snapshots without a node
id.
"""
OF_NODES = frozenset(body for body, field in CONTROLLER_CLAIMS.items() if field is not None)
"""Bodies of the ControllerRequests that nodes send in their own name."""


class _ClientsOnly:
    """A LinkHandler that filters the messages of one link."""

    def __init__(self, conversation: Conversation, handler: LinkHandler) -> None:
        self._conversation, self._handler = conversation, handler
        self._claim_of = CLAIM_OF[conversation]

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Pass on messages without a node id, and refuse the others."""
        admitted = [message for message in messages if self._admits(link, message)]
        if admitted:
            self._handler.received(link, admitted)

    def closed(self, link: Link, reason: str) -> None:
        """See ``LinkHandler``."""
        self._handler.closed(link, reason)

    def _admits(self, link: Link, message: Any) -> bool:
        node_id = self._claim_of(message)
        if node_id is None:
            return True
        why = (
            f"node {node_id} must send this to a listener for nodes: {link.listener} is for clients"
        )
        error = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, why)
        link.forbidden(error.message)
        with suppress(LinkClosedError):
            link.send(refusal_of(self._conversation, message, error))
        return False


def for_clients(acceptors: Acceptors) -> Acceptors:
    """Return the acceptors for a listener for clients."""
    return {
        conversation: _gate(conversation, acceptor)
        for conversation, acceptor in acceptors.items()
        if conversation in OF_CLIENTS
    }


def _gate(conversation: Conversation, acceptor: Acceptor) -> Acceptor:
    return lambda link: _ClientsOnly(conversation, acceptor(link))


def handler_for_clients(handler: LinkHandler, conversation: Conversation) -> LinkHandler:
    """Wrap the handler of unary calls for a listener for clients."""
    return _ClientsOnly(conversation, handler)
