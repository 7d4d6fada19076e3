"""The requests of clients: reads answered from the image that the gate picks, writes forwarded to
the active controller; and the permissions of clients.

Requests and answers are handled by callbacks, without Tasks. A broker forwards a write unchanged,
with the client's identity, and never sends it again once its outcome is unknown.

Permissions are checked against the newest image applied here, whichever image answers (the image at
LAO may not have the removal of a permission yet), and again when the answer is sent (a permission
may be removed, and every broker acknowledge that, while a read waits here). So once every unfenced
broker has applied the removal of a permission, it is invalid on all of them.

Why: docs/decisions/025-verdicts-by-the-newest-image.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from broker.metadata import reads
from broker.metadata.read_gate import ReadGate
from broker.metadata.view import View
from broker.partition.events import Client
from broker.replication.data_plane import BODIES as DATA_BODIES
from broker.replication.data_plane import DataPlane
from broker.service.api_versions import ApiVersions
from raftlog import tracing
from raftlog.bounds import TURN_MAX_S, bounded_timeout_ms
from raftlog.client.controller_client import ControllerClient
from raftlog.clock import DeadlineTimer
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.limits import check as check_limits
from raftlog.limits import cluster_error
from raftlog.metadata.acls import AclOperation, Resource
from raftlog.metadata.image import Image
from raftlog.node.observability.figures import RequestFigures
from raftlog.node.security.authorization import NONE_REFUSED, Asker, Refused, refusal
from raftlog.node.security.client_rules import ClientRules, Peer
from raftlog.node.security.permissions import BROKER, EachPartition, key_value, topic
from raftlog.tracing import Served
from raftlog.transport import unary
from raftlog.transport.api import Link, LinkClosedError, LinkHandler
from raftlog.transport.statuses import error_to_wire
from raftlog.transport.unary import Caller
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2

Answer = Callable[..., None]
_RESULTS: dict[str, Callable[..., Any]] = {
    "produce": data_pb2.ProducePartitionResult,
    "fetch": data_pb2.FetchPartitionResult,
    "list_offsets": data_pb2.ListOffsetsPartitionResult,
}
_RESPONSES: dict[str, Callable[..., Any]] = {
    "produce": data_pb2.ProduceResponse,
    "fetch": data_pb2.FetchResponse,
    "list_offsets": data_pb2.ListOffsetsResponse,
}
_NO_OFFSETS: dict[str, dict[str, int]] = {
    "produce": {"base_offset": -1},
    "fetch": {"high_watermark": -1, "log_start_offset": -1},
    "list_offsets": {"offset": -1, "leader_epoch": -1},
}


class RequestAccess:
    """The permissions of a broker's clients.

    ``rules``: None if every client may do everything.
    """

    def __init__(self, rules: ClientRules | None, view: View) -> None:
        self._rules, self._view = rules, view

    def check(self, peer: Peer, body: str, request: broker_pb2.BrokerRequest) -> Refused:
        """Return the refused items.

        Raises ApiError if the whole request is refused.
        """
        if self._rules is None:
            return NONE_REFUSED
        return self._rules.authorization.check(
            BROKER.get(body), getattr(request, body), self._rules.asker_of(peer), self._view.tip
        )

    def may_describe(
        self, peer: Peer, resource: Callable[[str], Resource] = topic
    ) -> Callable[[str], bool] | None:
        """Return a function that returns whether a named resource (by default a topic) may be
        shown, or None if all may.
        """
        if self._rules is None:
            return None
        authorization, asker = self._rules.authorization, self._rules.asker_of(peer)
        image = self._view.tip
        return lambda name: authorization.allows(
            asker, AclOperation.DESCRIBE, resource(name), image
        )

    def partitions(
        self, peer: Peer, body: str, request: broker_pb2.BrokerRequest, answer: Answer
    ) -> tuple[broker_pb2.BrokerRequest | None, Answer]:
        """Return the request without the refused partitions, and an answer function that inserts
        their errors in their places.

        The request is None if all partitions are refused; the answer has then been sent.
        """
        if self._rules is None:
            return request, answer
        row = BROKER[body]
        assert isinstance(row, EachPartition)
        asker = self._rules.asker_of(peer)
        asked = getattr(request, body).partitions
        refused = self._refused(asker, row.operation, asked)
        if len(refused) == len(asked) > 0:
            results = [_refused_result(body, one, refused[at]) for at, one in enumerate(asked)]
            answer(**{body: _RESPONSES[body](partitions=results)})
            return None, answer
        left = broker_pb2.BrokerRequest()
        left.CopyFrom(request)
        partitions = getattr(left, body).partitions
        for index in sorted(refused, reverse=True):
            del partitions[index]

        def woven(**fields: Any) -> None:
            response = fields.get(body)
            if response is not None:
                late = self._refused(asker, row.operation, response.partitions)
                results = [
                    _refused_result(body, one, late[at]) if body == "fetch" and at in late else one
                    for at, one in enumerate(response.partitions)
                ]
                for index in sorted(refused):
                    results.insert(index, _refused_result(body, asked[index], refused[index]))
                fields[body] = _RESPONSES[body](partitions=results)
            answer(**fields)

        return left, woven

    def _refused(self, asker: Asker, operation: AclOperation, partitions: Iterable[Any]) -> Refused:
        """Return the partitions whose topic is known here, and not permitted."""
        assert self._rules is not None
        image, authorization = self._view.tip, self._rules.authorization
        errors: dict[int, ApiError] = {}
        for index, one in enumerate(partitions):
            found = image.topics.get(one.topic_id)
            if found is None:
                continue
            wanted = topic(found.name)
            if not authorization.allows(asker, operation, wanted, image):
                # A client that has only the topic's id does not learn its name.
                unnamed = topic(one.topic_id.hex())
                errors[index] = refusal(
                    asker.caller, operation, unnamed, f"partitions[{index}].topic_id"
                )
        return errors


def _refused_result(body: str, partition: Any, error: ApiError) -> Any:
    return _RESULTS[body](
        topic_id=partition.topic_id,
        partition_index=partition.partition_index,
        error_code=error.code,
        error_message=error.message,
        **_NO_OFFSETS[body],
    )


async def answer_unary(
    handler: LinkHandler, request: broker_pb2.BrokerRequest, caller: Caller
) -> broker_pb2.BrokerResponse:
    """Answer one unary request like those of a stream.

    The error of a forwarded write becomes the response's own error.
    """
    response: broker_pb2.BrokerResponse = await unary.answer(handler, request, caller)
    if response.write.HasField("error"):
        return broker_pb2.BrokerResponse(error=response.write.error)
    return response


log = structlog.get_logger(__name__)


class ReplyTo(Protocol):
    """The destination of an answer: a link, or the future of a unary call."""

    @property
    def peer(self) -> str:
        """The sender; all links of a connection are one reader."""

    @property
    def identity(self) -> PeerIdentity:
        """Proven identity of the peer."""

    @property
    def listener(self) -> str:
        """Name of the listener that the client is connected to."""

    def send(self, message: Any) -> None:
        """Queue the answer.

        Raises LinkClosedError.
        """

    def unknown_kind(self, what: str) -> None:
        """Record a request of an unknown kind."""

    def throttled(self, what: str) -> None:
        """Record that the client was told to wait."""


class Pending(NamedTuple):
    """A request, the destination of its answer, and its arrival time by the figures' stopwatch."""

    link: ReplyTo
    request: broker_pb2.BrokerRequest
    begun: float


class RequestServer:
    """Serves all links of clients.

    ``why_fenced``: returns why requests are refused, or "" if they are not.
    """

    def __init__(
        self,
        view: View,
        gate: ReadGate[Pending],
        writes: ControllerClient,
        *,
        cluster_id: str,
        request_timeout_ms: int,
        why_fenced: Callable[[], str],
        describe: Callable[[], broker_pb2.DescribeBrokerResponse],
        versions: ApiVersions,
        data: DataPlane | None = None,
        request_timeout_max_ms: int = 2**31 - 1,
        stopwatch: Callable[[], float] | None = None,
        client_rules: ClientRules | None = None,
        figures: RequestFigures | None = None,
    ) -> None:
        """``client_rules``: the rules for the broker's clients, or None if every client may do
        everything. ``figures``: counters of answers, or None for new ones.
        """
        self._access = RequestAccess(client_rules, view)
        self._loop = asyncio.get_running_loop()
        self.figures = figures or RequestFigures(self._loop.time)
        self.writes_under_way = 0
        """Number of forwarded writes that have not been answered yet."""
        self._view = view
        self._gate = gate
        self._writes = writes
        self._cluster_id = cluster_id
        self._request_timeout_ms = request_timeout_ms
        self._request_timeout_max_ms = request_timeout_max_ms
        self._stopwatch = stopwatch or self._loop.time
        self._release_due = False
        self._why_fenced = why_fenced
        self._describe = describe
        self._versions = versions
        self._links: dict[Link, None] = {}
        self._data = data
        self._timer = DeadlineTimer(self._loop, self._expire)
        self._closing = False

    def queue_depths(self) -> dict[str, int]:
        """Return the number of waiting requests, by what they wait for."""
        return {"image": len(self._gate), "controller": self.writes_under_way}

    @property
    def parked_reads(self) -> int:
        """Number of reads that wait for an image, or for a read lease."""
        return len(self._gate)

    def accept(self, link: Link) -> RequestServer:
        """Accept a client's link; this object handles all links."""
        self._links[link] = None
        return self

    def received(self, link: ReplyTo, messages: Sequence[broker_pb2.BrokerRequest]) -> None:
        """Process the requests of one envelope."""
        begun = self.figures.stopwatch()
        for request in messages:
            pending = Pending(link, request, begun)
            try:
                self._begin(pending)
            except ApiError as error:
                self._refuse(pending, error)
                if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    link.throttled(error.message)
        self._arm()

    def closed(self, link: Any, reason: str) -> None:
        """Drop the waiting requests of a closed client.

        Its writes continue, as they may have been executed already.
        """
        self._links.pop(link, None)
        self._gate.abandon(link.peer, lambda pending: pending[0] is link)
        if self._data is not None:
            self._data.client_closed(Client(link.peer, id(link)))

    def released(self) -> None:
        """Answer the reads that waited for the view to move, and notify clients if the offered
        feature levels have changed.
        """
        if self._versions.moved():
            self._renegotiate()
        if self._gate.deadlines and not self._release_due:
            self._release()

    def _release(self) -> None:
        """Answer the reads that can be answered, and continue in the next turn if there are many,
        as thousands may wait for one offset.
        """
        self._release_due = False
        begun = self._stopwatch()
        while found := self._gate.release(self._loop.time(), limit=1):
            self._answer(*found[0])
            took_s = self._stopwatch() - begun
            if took_s >= TURN_MAX_S:
                # The same time for all other work.
                self._release_due = True
                self._loop.call_later(took_s, self._release)
                return

    def _renegotiate(self) -> None:
        """Announce the new offer on every connection, and close each after its outstanding
        requests' timeout.

        A client that understands this message makes a new connection, and leaves the old one when
        all its requests there are answered.
        """
        response = broker_pb2.BrokerResponse(api_versions=self._versions.response())
        told = list(self._links)
        log.info(
            "feature levels have changed: clients are asked to reconnect",
            connections=len(told),
            offset=response.api_versions.finalized_features_epoch,
        )
        for link in told:
            try:
                link.send(response)
            except LinkClosedError:
                continue
        self._loop.call_later(self._request_timeout_ms / 1000, self._close_links, told)

    def _close_links(self, links: list[Link]) -> None:
        for link in links:
            if link in self._links:
                link.close("feature levels have changed")

    def refuse_parked(self, error: ApiError) -> None:
        """Answer all waiting reads with an error."""
        for pending, reason in self._gate.refuse_all(error):
            self._refuse(pending, reason)

    def close(self) -> None:
        """Accept no more requests; answer the waiting ones with an error."""
        self._closing = True
        self._timer.cancel()
        self.refuse_parked(_SHUTTING_DOWN)

    def _begin(self, pending: Pending) -> None:
        link, request, begun = pending
        if self._closing:
            raise _SHUTTING_DOWN
        if (other := cluster_error(self._cluster_id, request.cluster_id)) is not None:
            raise other
        body = request.WhichOneof("body")
        if body is None:
            link.unknown_kind("the request has no body")
            raise ApiError(ErrorCode.INVALID_REQUEST, "the request has no body", field="body")
        if body != "write":  # The controller checks it.
            check_limits(getattr(request, body))
        if body == "metadata":
            reads.check_page(request.metadata)
        elif body == "list_key_values":
            reads.check_list_key_values(request.list_key_values)
        self._access.check(link, body, request)
        if body == "describe_broker":
            self._reply(pending, body, describe_broker=self._describe())
        elif body == "api_versions":
            self._reply(pending, body, api_versions=self._versions.response())
        elif body == "write":
            self._forward(pending)
        elif body in DATA_BODIES:
            if self._data is None:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, "this broker stores no partitions", field="body"
                )
            # Without the request: the records of a waiting produce are in the log.
            parent = tracing.parent_of(request) if tracing.active is not None else ""
            send = partial(self._send, link, request.correlation_id, body, begun, parent=parent)
            left, answer = self._access.partitions(link, body, request, send)
            if left is not None:
                answer = partial(_answer_safely, answer, link, request.correlation_id)
                self._data.request(left, answer, Client(link.peer, id(link)))
        elif body == "broker_metadata":
            self._reply(pending, body, broker_metadata=self._led(request.broker_metadata))
        else:
            why = self._why_fenced()
            now = self._loop.time()
            image = self._gate.admit(pending, request.read, now, why_fenced=why, reader=link.peer)
            if image is not None:
                self._answer(pending, image)

    # --- reads -----------------------------------------------------------------------------------

    def _answer(self, pending: Pending, image: Image) -> None:
        """Answer a read. Never raises: an error would leave other parked reads, released by the
        same event, unanswered.
        """
        body = str(pending.request.WhichOneof("body"))
        try:
            answer = self._read(pending, body, image)
        except ApiError as error:
            self._refuse(pending, error)
            return
        except Exception:
            log.exception("answering a read failed", request=body, peer=pending.link.peer)
            self._refuse(pending, _FAILED)
            return
        token = common_pb2.MetadataToken(
            generation=self._view.generation, epoch=image.epoch, offset=image.offset
        )
        self._reply(pending, body, token=token, **{body: answer})

    def _read(self, pending: Pending, body: str, image: Image) -> Any:
        """Return the body of the answer to a read.

        Raises ApiError.
        """
        link, request, _ = pending
        refused = self._access.check(link, body, request)
        if body == "metadata":
            may_describe = self._access.may_describe(link)
            return reads.metadata(
                image, request.metadata, self._cluster_id, link.listener, may_describe
            )
        if body == "describe_configs":
            return reads.describe_configs(image, request.describe_configs, refused)
        if body == "list_key_values":
            may_describe = self._access.may_describe(link, key_value)
            return reads.list_key_values(image, request.list_key_values, may_describe)
        return reads.describe_cluster(
            image, request.describe_cluster, self._cluster_id, link.listener
        )

    def _refuse(self, pending: Pending, error: ApiError) -> None:
        api = _api_of(pending.request)
        self._reply(pending, api, code=error.code, error=error_to_wire(error))

    def _reply(self, pending: Pending, api: str, *, code: int = 0, **fields: Any) -> None:
        link, request, begun = pending
        parent = tracing.parent_of(request) if tracing.active is not None else ""
        self._send(link, request.correlation_id, api, begun, parent=parent, code=code, **fields)

    def _send(
        self,
        link: ReplyTo,
        correlation_id: int,
        api: str,
        begun: float,
        *,
        parent: str = "",
        code: int = 0,
        **fields: Any,
    ) -> None:
        """Send an answer, if the link is still open, and count it.

        ``parent``: the span that waits for the answer.
        """
        body = fields.get(api)
        if body is not None:
            self.figures.failed_parts(api, body)
        if tracing.active is not None and parent:
            failed = (
                tracing.failed_partition(body) if body is not None and api in tracing.RECORDS else 0
            )
            age_s = self.figures.stopwatch() - begun
            tracing.active.answered(api, parent, age_s, code or failed)
        self.figures.answered(api, begun, code)
        _send(link, correlation_id, **fields)

    def _expire(self) -> None:
        for pending, error in self._gate.expire(self._loop.time()):
            self._refuse(pending, error)
        self._arm()

    def _arm(self) -> None:
        if len(self._gate):
            self._timer.arm(self._gate.next_deadline)

    def _led(self, request: data_pb2.BrokerMetadataRequest) -> data_pb2.BrokerMetadataResponse:
        if self._data is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "this broker stores no partitions", field="body"
            )
        if why := self._why_fenced():
            # Its partitions may have another leader by now.
            raise ApiError(ErrorCode.BROKER_FENCED, f"this broker is fenced: {why}")
        return self._data.describe_led(request)

    # --- writes ----------------------------------------------------------------------------------

    def _forward(self, pending: Pending) -> None:
        request = pending.request
        if why := self._why_fenced():
            raise ApiError(ErrorCode.BROKER_FENCED, f"this broker is fenced: {why}")
        timeout_ms = bounded_timeout_ms(
            request.write.timeout_ms,
            "write.timeout_ms",
            default_ms=self._request_timeout_ms,
            max_ms=self._request_timeout_max_ms,
        )
        # A copy: the message may still be the sender's, and the client numbers what it sends.
        write = controller_pb2.ControllerRequest()
        write.CopyFrom(request.write)
        write.timeout_ms = timeout_ms
        served = None
        if tracing.active is not None:
            age_s = self.figures.stopwatch() - pending.begun
            served = tracing.active.serving("broker", write, age_s)
            if served is not None:
                write.traceparent = tracing.traceparent_of(served.span)
        future = self._writes.send(write, timeout_ms / 1000)
        self.writes_under_way += 1
        future.add_done_callback(partial(self._forwarded, pending, served))

    def _forwarded(
        self,
        pending: Pending,
        served: Served | None,
        future: asyncio.Future[controller_pb2.ControllerResponse],
    ) -> None:
        self.writes_under_way -= 1
        error = future.exception()
        if served is not None:
            served.end(
                future.result().error.error_code if error is None else getattr(error, "code", -1)
            )
        if isinstance(error, ApiError):
            self._refuse(pending, error)
        elif error is not None:
            raise error
        else:
            response = future.result()
            api, code = _api_of(pending.request), response.error.error_code
            if (body := response.WhichOneof("body")) is not None:
                self.figures.failed_parts(api, getattr(response, body))
            self._reply(pending, api, code=code, write=response)


def _api_of(request: broker_pb2.BrokerRequest) -> str:
    """Return the name of the body; for a write, the name of the forwarded body."""
    body = request.WhichOneof("body") or ""
    return request.write.WhichOneof("body") or "" if body == "write" else body


_SHUTTING_DOWN = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is shutting down")
_FAILED = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the request caused an internal error")
_FAILED_HALFWAY = ApiError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the request caused an internal error", outcome_unknown=True
)


def _answer_safely(
    answer: Callable[..., None], link: ReplyTo, correlation_id: int, **fields: Any
) -> None:
    """Answer a request of the data plane. Never raises: the answer is sent in the middle of a step,
    which an error would fail as a whole.
    """
    try:
        answer(**fields)
    except Exception:
        log.exception("answering a request failed", request=next(iter(fields)), peer=link.peer)
        _send(link, correlation_id, error=error_to_wire(_FAILED_HALFWAY))


def _send(link: ReplyTo, correlation_id: int, **fields: Any) -> None:
    """Send an answer, if the link is still open.

    Keeps nothing of the request: the records of a waiting produce are in the log.
    """
    try:
        try:
            link.send(broker_pb2.BrokerResponse(correlation_id=correlation_id, **fields))
        except ApiError as error:
            # Too large for one message: send that error instead.
            link.send(
                broker_pb2.BrokerResponse(correlation_id=correlation_id, error=error_to_wire(error))
            )
    except LinkClosedError:
        return
