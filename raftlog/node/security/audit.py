"""Match the requests on a link with their answers, and report both to the audit log.

The guard calls it, so no kind of request can be forgotten: every request with a row in the table of
permissions is reported. Each node reports its own connections, so a write through a broker is
reported twice: by the broker, with the client's certificate, and by the controller that decides it,
with the broker's certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, cast

from raftlog.config_writes.writes import KIND, ConfigReplies, ConfigWrites
from raftlog.descriptors import is_repeated
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.logger import get_logger
from raftlog.metadata.acls import Resource
from raftlog.node.security.audit_acls import changed_acls
from raftlog.node.security.audit_event import (
    MAX_RESOURCES,
    REFUSALS,
    TEXT_MAX_CHARS,
    Event,
    Source,
    Touched,
    operation_of,
    resources_of,
)
from raftlog.node.security.authorization import NAMED_CONFIGS, Authorization, HasAcls
from raftlog.node.security.authorizer import Caller, Verdict
from raftlog.node.security.permissions import (
    BROKER,
    CONTROLLER,
    LOG,
    All,
    OfNode,
    Row,
    config_resource_of,
)
from raftlog.transport.api import Conversation, CountedLink, Link

log = get_logger(__name__)

MAX_OPEN = 10_000
"""Maximum number of unanswered requests that are tracked per link; others are reported at once,
with an unknown result.
"""
MAX_SOURCES = 256
"""Maximum number of cached sources per link. A broker forwards for many callers."""
_READS_AND_DATA = frozenset(
    {
        "api_versions", "broker_metadata", "describe_acls", "describe_broker", "describe_brokers",
        "describe_cluster", "describe_configs", "fetch", "list_export_cursors", "list_hostnames",
        "list_key_values", "list_leases", "list_offsets", "list_partition_reassignments",
        "metadata", "produce",
    }
)  # fmt: skip


class Sink(Protocol):
    """A receiver of events."""

    def add(self, event: Event) -> None:
        """Add an event without blocking."""

    @property
    def dropped(self) -> int:
        """Number of events that were not written."""


@dataclass(frozen=True, slots=True)
class Auditor:
    """The audit configuration of a node.

    With ``reads``, permitted reads and produced records are reported too, not only refusals and
    writes. ``wall_clock_ms`` gives the times of the events.
    """

    node_id: int
    cluster_id: str
    sink: Sink
    wall_clock_ms: Callable[[], int]
    authorization: Authorization | None = None
    image: Callable[[], HasAcls] | None = None
    reads: bool = False

    def verdicts_of(
        self, row: Row | None, caller: Caller
    ) -> Callable[[Resource], Verdict | None] | None:
        """Return a function that decides about a resource by the newest image, or None if the
        request has no operation to check or this node has no authorizer.
        """
        operation = operation_of(row)
        if self.authorization is None or self.image is None or operation is None:
            return None
        verdict = partial(self.authorization.authorizer.verdict, self.image().acl_index, caller)
        if isinstance(row, All):
            return lambda resource: verdict(row.operation_on(resource), resource)
        return partial(verdict, operation)


class Outcome(NamedTuple):
    """The result of a request; ``codes`` has the error codes of the items, in request order."""

    error_code: int = 0
    message: str = ""
    codes: Sequence[int] = ()
    offset: int = -1
    epoch: int = -1
    unknown: bool = False
    acls: tuple[str, ...] = ()


class _Asked(NamedTuple):
    kind: str
    row: Row | None
    body: Any
    """Body of the request; the list of changes, if the request came in a group."""
    caller: Caller
    claimed: str = ""


class AuditedLink:
    """A Link that matches answers with requests and reports both to the audit log."""

    def __init__(
        self, auditor: Auditor, conversation: Conversation, link: Link, service: str = ""
    ) -> None:
        """Wrap a link. ``service`` names the gRPC service of a unary call; empty for the service of
        the conversation.
        """
        self._auditor, self._link = auditor, link
        self._broker = conversation is Conversation.BROKER
        self._service = service or conversation.value.split("/")[1].rpartition(".")[2]
        self._method = conversation.value.rpartition("/")[2]
        self._rows: Mapping[str, Row] = BROKER if self._broker else CONTROLLER
        self._open: dict[int, _Asked] = {}
        self._sources: dict[tuple[str, Caller], Source] = {}

    @property
    def inner(self) -> Link:
        """The wrapped link, whose messages are not audited."""
        return self._link

    # --- a link ----------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """See ``Link``."""
        return self._link.peer

    @property
    def identity(self) -> PeerIdentity:
        """See ``Link``."""
        return self._link.identity

    @property
    def listener(self) -> str:
        """See ``Link``."""
        return self._link.listener

    @property
    def unsent_bytes(self) -> int:
        """See ``CountedLink``."""
        return cast("CountedLink", self._link).unsent_bytes

    def send(self, message: Any) -> None:
        """Queue a message, and report the results that it contains."""
        self._link.send(message)
        # The message is queued: a failure to report it must not fail the caller.
        try:
            if type(message) is ConfigReplies:
                self._group_answered(message)
                return
            number = getattr(message, "correlation_id", 0)
            asked = self._open.get(number)
            # An unsolicited message has the correlation id 0.
            if asked is not None and _answers(asked, message):
                del self._open[number]
                self._answered(asked, message)
        except Exception:
            log.exception("cannot report an event to the audit log", message=type(message).__name__)

    def close(self, reason: str = "") -> None:
        """See ``Link``."""
        self._link.close(reason)

    def unknown_kind(self, what: str) -> None:
        """See ``Link``."""
        self._link.unknown_kind(what)

    def malformed(self, what: str) -> None:
        """See ``Link``."""
        self._link.malformed(what)

    def forbidden(self, what: str) -> None:
        """See ``Link``."""
        self._link.forbidden(what)

    def throttled(self, what: str) -> None:
        """See ``Link``."""
        self._link.throttled(what)

    # --- auditing --------------------------------------------------------------------------------

    def asked(self, request: Any, caller: Caller, claimed: str = "") -> None:
        """Track a signed request, or a group of them, until it is answered.

        ``claimed`` is the principal that the sender stated, if it differs from the proved one.
        """
        if type(request) is ConfigWrites:
            self._group_asked(request, caller, claimed)
            return
        kind = request.WhichOneof("body") or ""
        row, body = self._rows.get(kind), getattr(request, kind, None)
        if self._broker and kind == "write":
            kind = request.write.WhichOneof("body") or ""
            row, body = CONTROLLER.get(kind), getattr(request.write, kind, None)
        if isinstance(row, OfNode) or body is None:
            return  # Traffic between nodes: the guard reports only refusals.
        self._await_answer(request.correlation_id, _Asked(kind, row, body, caller, claimed))

    def _group_asked(self, writes: ConfigWrites, caller: Caller, claimed: str) -> None:
        row, position = self._rows[KIND], 0
        for number, count in zip(writes.correlation_ids, writes.counts, strict=True):
            changes = writes.changes[position : position + count]
            position += count
            self._await_answer(number, _Asked(KIND, row, changes, caller, claimed))

    def _await_answer(self, number: int, asked: _Asked) -> None:
        # A reused correlation id must not hide the earlier request.
        former = self._open.pop(number, None)
        if former is not None:
            self._unanswered(former, "its correlation id was reused before the answer")
        if len(self._open) < MAX_OPEN:
            self._open[number] = asked
        else:
            self._unanswered(asked, f"{MAX_OPEN} requests of this link are unanswered")

    def closed(self) -> None:
        """Report the unanswered requests of the closed link, with an unknown result."""
        for asked in self._open.values():
            self._unanswered(asked, "the connection closed before the answer")
        self._open.clear()

    def _unanswered(self, asked: _Asked, why: str) -> None:
        if asked.kind not in _READS_AND_DATA:
            self._report(asked, Outcome(message=f"result unknown: {why}", unknown=True))

    def refused(self, message: Any, caller: Caller, why: str, method: str = "") -> None:
        """Report a message that the guard has refused.

        ``method`` names the gRPC method if it is not a method of the conversation.
        """
        kind = getattr(message, "WhichOneof", lambda _: "")("body") if _has_body(message) else ""
        method = method or (_rpc(kind) if kind else self._method)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        asked = _Asked("", LOG.get(method), None, caller)
        self._report(asked, Outcome(code, why), method)

    def called(self, method: str, caller: Caller, error: ApiError | None) -> None:
        """Report an answered unary call that changes a node or the quorum; ``error`` is its
        refusal.
        """
        code, message = (error.code, error.message) if error is not None else (0, "")
        self._report(_Asked("", LOG.get(method), None, caller), Outcome(code, message), method)

    def _answered(self, asked: _Asked, response: Any) -> None:
        if self._broker and response.HasField("write") and not response.error.error_code:
            response = response.write
        code, message, codes = 0, "", _codes(response)
        if response.HasField("error"):
            code, message = response.error.error_code, response.error.error_message
        refused = code in REFUSALS or not REFUSALS.isdisjoint(codes)
        if asked.kind in _READS_AND_DATA and not refused and not self._auditor.reads:
            return
        offset = epoch = -1
        if hasattr(response, "write") and response.HasField("write"):
            token = response.write.token
            offset, epoch = token.offset, token.epoch
        acls = changed_acls(asked.kind, asked.body, response)
        outcome = Outcome(code, message, codes, offset, epoch, acls=acls)
        verdicts = self._auditor.verdicts_of(asked.row, asked.caller)
        self._report(asked, outcome, verdict_of=verdicts)

    def _group_answered(self, replies: ConfigReplies) -> None:
        """Report the writes of a group, all of which succeeded."""
        offset, epoch = replies.base_offset - 1, replies.controller_epoch
        time_ms, add = self._auditor.wall_clock_ms(), self._auditor.sink.add
        last_caller: Caller | None = None
        known: dict[tuple[int, str], tuple[Touched, ...]] = {}
        for number, count in zip(replies.correlation_ids, replies.counts, strict=True):
            offset += count
            asked = self._open.get(number)
            # The client may have reused the correlation id for another kind of request.
            if asked is None or type(asked.body) is not list:
                continue
            del self._open[number]
            if asked.caller is not last_caller:
                last_caller, source, known = asked.caller, self._source(asked), {}
                verdict_of = self._auditor.verdicts_of(asked.row, asked.caller)
            type_, name, _, _ = asked.body[0]
            key = type_, name if type_ in NAMED_CONFIGS else ""
            touched, more = known.get(key), 0
            if touched is None or count > 1:
                touched, more = _touched(asked, (), verdict_of)
                if count == 1:
                    known[key] = touched
            claimed = asked.claimed[:TEXT_MAX_CHARS]
            add(
                Event(
                    source, time_ms, touched, offset=offset, epoch=epoch,
                    more_resources=more, claimed=claimed,
                )
            )  # fmt: skip

    def _report(
        self,
        asked: _Asked,
        outcome: Outcome,
        method: str = "",
        verdict_of: Callable[[Resource], Verdict | None] | None = None,
    ) -> None:
        """Report a request; its failed items come first."""
        touched, more = _touched(asked, outcome.codes, verdict_of)
        auditor = self._auditor
        auditor.sink.add(
            Event(
                self._source(asked, method),
                auditor.wall_clock_ms(),
                touched,
                outcome.error_code,
                outcome.message[:TEXT_MAX_CHARS],
                outcome.offset,
                outcome.epoch,
                frozenset(filter(None, outcome.codes)),
                outcome.unknown,
                more,
                acls=outcome.acls,
                claimed=asked.claimed[:TEXT_MAX_CHARS],
            )
        )

    def _source(self, asked: _Asked, method: str = "") -> Source:
        """Return the cached part that all events of this caller and method share."""
        key = method or asked.kind, asked.caller
        source = self._sources.get(key)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                self._sources.clear()
            auditor, link = self._auditor, self._link
            source = self._sources[key] = Source(
                auditor.node_id,
                auditor.cluster_id,
                self._service,
                method or _rpc(asked.kind),
                asked.caller,
                link.identity,
                link.peer,
                operation_of(asked.row),
            )
        return source


def _touched(
    asked: _Asked,
    codes: Sequence[int],
    verdict_of: Callable[[Resource], Verdict | None] | None,
) -> tuple[tuple[Touched, ...], int]:
    """Return the first MAX_RESOURCES resources of a request, failed ones first, and the number of
    the others.
    """
    resources = _resources(asked)
    if any(codes):
        named = [
            (one, code)
            for one, code in zip_longest(resources, codes, fillvalue=0)
            if isinstance(one, Resource)
        ]
        named.sort(key=lambda one: not one[1])
    else:
        named = [(one, 0) for one in resources if one is not None]
    touched = [
        Touched(_short(one), code, None if verdict_of is None else verdict_of(one))
        for one, code in named[:MAX_RESOURCES]
    ]
    return tuple(touched), max(0, len(named) - MAX_RESOURCES)


def _resources(asked: _Asked) -> list[Resource | None]:
    if type(asked.body) is list:
        return [config_resource_of(type_, name) for type_, name, _, _ in asked.body]
    return resources_of(asked.row, asked.body)


def _short(resource: Resource) -> Resource:
    name = resource.name
    return (
        resource if len(name) <= TEXT_MAX_CHARS else resource._replace(name=name[:TEXT_MAX_CHARS])
    )


def _answers(asked: _Asked, response: Any) -> bool:
    kind = response.WhichOneof("body")
    return kind in (None, "write", asked.kind)


@cache
def _rpc(kind: str) -> str:
    return "".join(word.capitalize() for word in kind.split("_"))


def _has_body(message: Any) -> bool:
    return "body" in message.DESCRIPTOR.oneofs_by_name


def _codes(response: Any) -> list[int]:
    """Return the error codes of an answer's items, in order; empty if the answer has no items."""
    kind = response.WhichOneof("body")
    if kind is None:
        return []
    body = getattr(response, kind)
    for name, is_message in _item_fields(body.DESCRIPTOR):
        if items := getattr(body, name):
            if is_message:
                return [one.error.error_code if one.HasField("error") else 0 for one in items]
            return [one.error_code for one in items]
    return []


@cache
def _item_fields(body: Any) -> tuple[tuple[str, bool], ...]:
    """Return the repeated fields of an answer whose items report an error: the name, and True for
    an ``error`` message or False for an ``error_code``.
    """
    names = {
        field.name: field.message_type.fields_by_name
        for field in body.fields
        if is_repeated(field) and field.message_type is not None
    }
    return tuple(
        (name, "error" in fields)
        for name, fields in names.items()
        if "error" in fields or "error_code" in fields
    )
