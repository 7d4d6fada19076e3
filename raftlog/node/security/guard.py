"""Guard a link: refuse messages under another node's id, and replace the stated principal with the
proved one.

This happens on arrival, not where each request is decided: a forged vote must not reach the
quorum's core, a forged heartbeat must not count, and a new kind of request must not be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from raftlog.config_writes.writes import ConfigWrites, single_requests
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import NodeRule, PeerIdentity, PrincipalMapping
from raftlog.metadata.image import Image
from raftlog.node.security import permissions
from raftlog.node.security.audit import AuditedLink, Auditor
from raftlog.node.security.authorization import Asker, Authorization, HasAcls
from raftlog.node.security.authorizer import Caller
from raftlog.node.security.node_claims import CLAIM_OF, refusal_of
from raftlog.node.security.permissions import LOG
from raftlog.node.security.quotas import Quotas
from raftlog.transport.api import (
    WATCHES,
    Acceptor,
    Acceptors,
    Conversation,
    Link,
    LinkClosedError,
    LinkHandler,
)
from raftlog.wire.controller.v1 import controller_pb2 as controller


def host_of(peer: str) -> str:
    """Return the host of an address such as ``10.0.0.1:5000`` or ``[::1]:5000``."""
    return peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")


_ANSWERED = (Conversation.CONTROLLER, Conversation.BROKER)
"""Conversations whose requests are audited; in all others only refusals are."""
_OF_LOG = {
    conversation: conversation.value.rpartition("/")[2]
    for conversation in (Conversation.REPLICATION, Conversation.SNAPSHOT, Conversation.OBSERVER)
}
"""Conversations that deliver the log, with their methods in the table of permissions."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """The mapping from certificates to nodes and principals."""

    rule: NodeRule
    mapping: PrincipalMapping = PrincipalMapping()  # noqa: RUF009 (it is frozen)

    def sign(
        self,
        requests: Iterable[controller.ControllerRequest | ConfigWrites],
        identity: PeerIdentity,
        *,
        host: str,
        forwarded: bool,
    ) -> None:
        """Write the proved sender and its address into the requests and groups of one peer.

        ``forwarded`` means that the peer may be a node that forwards requests of clients: such a
        request keeps the principal and host that the node has written. A request in the node's own
        name has neither, and gets the node's. Groups contain no requests in a node's own name.
        """
        principal = self.mapping.principal_of(identity)
        nodes = self.rule.nodes_of(identity) if forwarded else frozenset()
        for request in requests:
            if type(request) is ConfigWrites:
                if not nodes:
                    request.principal, request.host = principal, host
                continue
            client: Any = request.client
            client.ClearField("node_id")
            if nodes and client.principal:
                continue
            client.principal, client.host = principal, host
            if len(nodes) == 1:
                (client.node_id,) = nodes

    def asker_of(self, identity: PeerIdentity, peer: str, *, node: bool = False) -> Asker:
        """Return the sender of a request that this node does not forward.

        With ``node``, a peer with a node's certificate is that node.
        """
        nodes = self.rule.nodes_of(identity) if node else frozenset()
        caller = Caller(self.mapping.principal_of(identity), host_of(peer))
        return Asker(caller, next(iter(nodes)) if len(nodes) == 1 else None)


@dataclass(frozen=True, slots=True)
class LogReaders:
    """Permissions to read the log, for peers other than nodes: exports, backups, operators.

    ``image`` returns the newest image of this node, or None while the committed log is not known.
    """

    authorization: Authorization
    image: Callable[[], HasAcls | None]

    def check(self, method: str, message: Any, asker: Asker) -> None:
        """Raise ApiError if the sender lacks the permission.

        An unknown image is not an empty one. (Otherwise, with ``allow.everyone.if.no.acl.found``,
        every peer could read the log until a starting controller has built its image.)
        """
        image, authorization = self.image(), self.authorization
        if image is None:
            # Nodes and super users may still read, to diagnose a quorum without a leader.
            strict = replace(authorization.authorizer, allow_everyone_if_no_acl_found=False)
            image, authorization = Image(), Authorization(strict)
        authorization.check(LOG.get(method), message, asker, image)


class Duties(NamedTuple):
    """Further duties of a guard.

    Without ``readers`` every peer may read the log; without ``auditor`` nothing is audited; without
    ``quotas`` no limit applies.
    """

    readers: LogReaders | None = None
    auditor: Auditor | None = None
    quotas: Quotas | None = None
    accepts_nodes: bool = True
    """Whether nodes connect to this listener. On a listener for clients no peer is a node, whatever
    its certificate says: the clients' authority may issue a certificate with a node's name.
    """
    is_broker: Callable[[int], bool] | None = None
    """Function that returns whether a node is a broker and not a voter: such a node may neither
    request votes nor lead an epoch.
    """


_NO_DUTIES = Duties()


class Guard:
    """A LinkHandler that guards the handler of one link."""

    def __init__(
        self,
        authentication: Authentication,
        conversation: Conversation,
        handler: LinkHandler,
        duties: Duties = _NO_DUTIES,
        audited: Mapping[Link, AuditedLink] = MappingProxyType({}),
    ) -> None:
        """Guard ``handler``; ``audited`` has the audited link that ``handler`` already uses, if
        any.
        """
        self._auditor = duties.auditor
        self._audited: dict[Link, AuditedLink] = dict(audited)
        self._readers = duties.readers if conversation in _OF_LOG else None
        control = conversation is Conversation.QUORUM
        self._quotas = None if control else duties.quotas
        self._is_broker = duties.is_broker if control else None
        # No node forwards to a broker: there it is a client like any other.
        at_broker = conversation in (Conversation.BROKER, *WATCHES)
        self._nodes = duties.accepts_nodes and not at_broker
        self._checks_no_clients = self._quotas is None and self._readers is None
        """Whether messages without a node id need no check."""
        self._authentication = authentication
        self._conversation = conversation
        self._claim_of = CLAIM_OF[conversation]
        self._handler = handler

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Pass on the messages whose sender is proved and permitted, and refuse the others."""
        link = self._link_of(link)
        if self._conversation is Conversation.CONTROLLER and self._must_split(link, messages):
            messages = single_requests(messages)
        if self._checks_no_clients:
            claim_of = self._claim_of
            admitted = [one for one in messages if claim_of(one) is None or self._admits(link, one)]
        else:
            admitted = [one for one in messages if self._admits(link, one)]
        audited = (
            link if isinstance(link, AuditedLink) and self._conversation in _ANSWERED else None
        )
        stated = [] if audited is None else [self._stated(message) for message in admitted]
        if self._conversation is Conversation.CONTROLLER:
            self._authentication.sign(
                admitted, link.identity, host=host_of(link.peer), forwarded=self._nodes
            )
        elif self._conversation is Conversation.BROKER:
            writes = (request.write for request in admitted if request.HasField("write"))
            self._authentication.sign(
                writes, link.identity, host=host_of(link.peer), forwarded=False
            )
        if audited is not None:
            for message, principal in zip(admitted, stated, strict=True):
                caller = self._caller(link, message)
                audited.asked(message, caller, "" if principal == caller.principal else principal)
        if admitted:
            self._handler.received(link, admitted)

    def closed(self, link: Link, reason: str) -> None:
        """See ``LinkHandler``."""
        audited = self._audited.pop(link, None)
        self._handler.closed(audited or link, reason)
        if audited is not None:
            audited.closed()

    def _must_split(self, link: Link, messages: Sequence[Any]) -> bool:
        """Return whether groups must be split into single requests: quotas count each request, and
        a request in a node's own name gets the node's id.
        """
        if self._quotas is not None:
            return True
        return (
            self._nodes
            and any(type(one) is ConfigWrites and not one.principal for one in messages)
            and self._authentication.rule.is_node(link.identity)
        )

    def _link_of(self, link: Link) -> Link:
        """Return the link to give to the handler."""
        if self._auditor is None:
            return link
        found = self._audited.get(link)
        if found is None:
            found = self._audited[link] = AuditedLink(self._auditor, self._conversation, link)
        return found

    def _stated(self, message: Any) -> str:
        """Return the principal that the sender states, before the proved one replaces it."""
        if type(message) is ConfigWrites:
            return message.principal
        broker = self._conversation is Conversation.BROKER
        return str((message.write if broker else message).client.principal)

    def _caller(self, link: Link, message: Any) -> Caller:
        """Return the caller of a signed request."""
        if type(message) is ConfigWrites:
            return Caller(message.principal, message.host)
        if self._conversation is Conversation.BROKER and not message.HasField("write"):
            return self._authentication.asker_of(link.identity, link.peer).caller
        request = message.write if self._conversation is Conversation.BROKER else message
        return Caller(request.client.principal, request.client.host)

    def _admits(self, link: Link, message: Any) -> bool:
        node_id = self._claim_of(message)
        if node_id is None:
            return self._within_quota(link, message) and (
                self._readers is None or self._may_read(self._readers, link, message)
            )
        rule = self._authentication.rule
        if not (self._nodes and rule.admits(link.identity, node_id)) and not self._within_quota(
            link, message
        ):
            return False
        if self._conversation is Conversation.BROKER:
            # The controller would attribute a forwarded request to the broker.
            why = f"node {node_id} must send this to the controller, not through a broker"
        elif not self._nodes:
            why = f"node {node_id} must send this to a listener for nodes: this one is for clients"
        elif rule.admits(link.identity, node_id):
            if self._is_broker is None or not self._is_broker(node_id):
                return True
            # Without a leader, a voter assumes that an unknown node belongs to a newer voter set
            # [a stolen broker certificate won a voter's vote and sent it a log].
            why = f"node {node_id} is registered as a broker, which takes no part in the quorum"
        else:
            why = (
                f"a request of node {node_id} requires a certificate with"
                f" {rule.name_of(node_id)}, and this peer has {link.identity}"
            )
        return self._refused(link, message, ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, why))

    def _within_quota(self, link: Link, message: Any) -> bool:
        if self._quotas is None:
            return True
        asker = self._authentication.asker_of(link.identity, link.peer, node=self._nodes)
        if asker.node_id is not None:
            # The node that the client connects to has counted a forwarded request.
            return True
        try:
            self._quotas.check(asker.caller)
        except ApiError as error:
            self._answer(link, message, error)
            link.throttled(error.message)
            return False
        return True

    def _may_read(self, readers: LogReaders, link: Link, message: Any) -> bool:
        asker = self._authentication.asker_of(link.identity, link.peer, node=self._nodes)
        try:
            readers.check(_OF_LOG[self._conversation], message, asker)
        except ApiError as error:
            return self._refused(link, message, error)
        return True

    def _refused(self, link: Link, message: Any, error: ApiError) -> bool:
        link.forbidden(error.message)
        if isinstance(link, AuditedLink):
            asker = self._authentication.asker_of(link.identity, link.peer)
            link.refused(message, asker.caller, error.message)
        self._answer(link, message, error)
        return False

    def _answer(self, link: Link, message: Any, error: ApiError) -> None:
        """Answer a refused message, bypassing the audit.

        The handler has not received the message. Its correlation id may also be that of a request
        in progress, which the audit log must not report as refused.
        """
        inner = link.inner if isinstance(link, AuditedLink) else link
        with suppress(LinkClosedError):
            inner.send(refusal_of(self._conversation, message, error))


def guarded(
    acceptors: Acceptors,
    authentication: Authentication | None,
    duties: Duties = _NO_DUTIES,
) -> Acceptors:
    """Return the acceptors with a guard before each; unchanged without ``authentication``. Raises
    UnlistedError.
    """
    if authentication is None:
        return dict(acceptors)
    permissions.check_rows()
    return {
        conversation: _guard(authentication, conversation, acceptor, duties)
        for conversation, acceptor in acceptors.items()
    }


def guarded_handler(
    handler: LinkHandler,
    conversation: Conversation,
    authentication: Authentication | None,
    duties: Duties = _NO_DUTIES,
) -> LinkHandler:
    """Return the handler of unary calls with a guard before it; unchanged without
    ``authentication``.
    """
    if authentication is None:
        return handler
    return Guard(authentication, conversation, handler, duties)


def _guard(
    authentication: Authentication,
    conversation: Conversation,
    acceptor: Acceptor,
    duties: Duties,
) -> Acceptor:
    def accept(link: Link) -> LinkHandler:
        if duties.auditor is None:
            return Guard(authentication, conversation, acceptor(link), duties)
        audited = AuditedLink(duties.auditor, conversation, link)
        return Guard(authentication, conversation, acceptor(audited), duties, {link: audited})

    return accept
