"""Refuses what a node sends under another node's id, and puts the principal that a client has
proved in the place of the one that it states.

Why here, and not where each request is decided: a forged vote must not reach the quorum's core, a
forged heartbeat must not count on arrival, and a new kind of request must not be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import NodeRule, PeerIdentity
from raftlog.principals import PrincipalMapping
from raftlog.security.node_claims import CLAIM_OF, check_rows, refusal_of
from raftlog.transport.api import (
    Acceptor,
    Acceptors,
    Conversation,
    Link,
    LinkClosedError,
    LinkHandler,
)
from raftlog.wire.controller.v1 import controller_pb2 as controller


@dataclass(frozen=True, slots=True)
class Authentication:
    """What certificates say: which node a node is, and which principal a client."""

    rule: NodeRule
    mapping: PrincipalMapping = PrincipalMapping()  # noqa: RUF009 (it is frozen)

    def sign(
        self,
        requests: Iterable[controller.ControllerRequest],
        identity: PeerIdentity,
        *,
        forwarded: bool,
    ) -> None:
        """Write into the requests of one peer who has really sent them.

        ``forwarded``: a node forwards requests of clients here, with the principal that it has
        written itself; what it asks for in its own name has none, and gets the node's.
        """
        principal = self.mapping.principal_of(identity)
        believed = forwarded and self.rule.is_node(identity)
        for request in requests:
            if not (believed and request.client.principal):
                request.client.principal = principal


class Guard:
    """In front of the handler of one link: a LinkHandler itself."""

    def __init__(
        self, authentication: Authentication, conversation: Conversation, handler: LinkHandler
    ) -> None:
        self._authentication = authentication
        self._conversation = conversation
        self._claim_of = CLAIM_OF[conversation]
        self._handler = handler

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Hand on what comes from whom it says, and refuse the rest."""
        admitted = [message for message in messages if self._admits(link, message)]
        if self._conversation is Conversation.CONTROLLER:
            self._authentication.sign(admitted, link.identity, forwarded=True)
        elif self._conversation is Conversation.BROKER:
            # Nobody forwards to a broker: here a node is a client like any other.
            writes = (request.write for request in admitted if request.HasField("write"))
            self._authentication.sign(writes, link.identity, forwarded=False)
        if admitted:
            self._handler.received(link, admitted)

    def closed(self, link: Link, reason: str) -> None:
        """The link is gone."""
        self._handler.closed(link, reason)

    def _admits(self, link: Link, message: Any) -> bool:
        node_id = self._claim_of(message)
        if node_id is None:
            return True
        rule = self._authentication.rule
        if self._conversation is Conversation.BROKER:
            # A broker forwards on its own link: the controller would take it for the broker's.
            why = f"node {node_id} sends this to the controller itself, through no broker"
        elif rule.admits(link.identity, node_id):
            return True
        else:
            why = (
                f"node {node_id} shows a certificate with {rule.name_of(node_id)}, and this one is"
                f" of {link.identity}"
            )
        error = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, why)
        link.forbidden(error.message)
        with suppress(LinkClosedError):
            link.send(refusal_of(self._conversation, message, error))
        return False


def guarded(acceptors: Acceptors, authentication: Authentication | None) -> Acceptors:
    """The same conversations, in which everybody is who the certificate says; without
    authentication as they are.
    """
    if authentication is None:
        return dict(acceptors)
    check_rows()
    return {
        conversation: _guard(authentication, conversation, acceptor)
        for conversation, acceptor in acceptors.items()
    }


def guarded_handler(
    handler: LinkHandler, conversation: Conversation, authentication: Authentication | None
) -> LinkHandler:
    """The same for one handler: that of unary calls."""
    return handler if authentication is None else Guard(authentication, conversation, handler)


def _guard(
    authentication: Authentication, conversation: Conversation, acceptor: Acceptor
) -> Acceptor:
    return lambda link: Guard(authentication, conversation, acceptor(link))
