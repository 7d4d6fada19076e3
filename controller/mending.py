"""Mending: a controller whose log is damaged fetches exactly the records that it had and remains
the same voter; failing that, it joins anew.

Meanwhile it neither votes nor leads. It requests the missing records from all other controllers,
including damaged ones, whether or not there is a leader. Each answers from its undamaged records,
as does this node, so controllers whose logs are damaged at different offsets mend each other.
:mod:`raftlog.node.recovery.mending` decides which records are certain. The mended log equals the
original, batch by batch, so the promises made by the vote and the directory id still hold.

If the log cannot be mended, or no controller that answers has the missing records, the node joins
anew, provided that a majority continues without it (:mod:`controller.rejoin`); otherwise it waits,
and reports what it waits for.

Why: docs/decisions/039-a-damaged-log-is-mended.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import structlog
from google.protobuf.message import Message
from typing_extensions import override

from controller.late_http import Described, LateHttp
from controller.rejoin import begin_anew, identity_of, offset_of, others, removed
from raftlog.client.quorum_queries import Call, call_all
from raftlog.client.security import ClientSecurity
from raftlog.errors import ApiError, CorruptLogError, DamagedIdentityError, ErrorCode, FatalError
from raftlog.limits import check as check_limits
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.node_self import may_see
from raftlog.node.recovery.mending import (
    DAMAGED_LOG,
    DESCRIBE,
    SNAPSHOTS_MAX,
    SPANS_MAX,
    Answered,
    Mending,
    MendingState,
    Request,
    Section,
    Span,
)
from raftlog.node.recovery.salvage import Salvage, SnapshotDownload, replace_log, salvage
from raftlog.node.replica.replica import Replica
from raftlog.node.security.authorization import authorization_of
from raftlog.node.security.configured import accesses_of, authentication_of, quotas_of
from raftlog.node.security.guard import Authentication, Duties, LogReaders
from raftlog.node.security.single_calls import check_call
from raftlog.node.storage.api import NodeIdentity, SnapshotId
from raftlog.node.storage.directory import DirectoryLock, set_aside_before
from raftlog.node.storage.snapshot_files import SNAPSHOT_DIRECTORY
from raftlog.node.transport import peer_tls, transport_of
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.unary import Caller, Explicit, UnaryLink, unary_handler
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

log = structlog.get_logger(__name__)

SET_ASIDE_MAX = 3
"""Maximum number of damaged states that a directory keeps; a disk that damages data more often must
be replaced.
"""
AGAIN_S = 1.0
"""Time in seconds between two rounds of requests."""
TIMEOUT_S = 10.0
RECORDS_MAX_BYTES = 1 << 20
"""Maximum number of bytes of records in one answer, unless the first batch alone is larger."""
_METHOD = "/raftlog.wire.quorum.v1.Quorum/FetchMissingRecords"
QUORUM = pb.DESCRIPTOR.services_by_name["Quorum"]
Damage = CorruptLogError | DamagedIdentityError


class Records(Protocol):
    """The undamaged records of a controller's log."""

    @property
    def identity(self) -> NodeIdentity:
        """Identity of the controller's directory."""

    def sections(self, offset: int) -> Sequence[Section]:
        """See ``Salvage.sections``."""

    @property
    def log_start(self) -> SnapshotId | None:
        """See ``Salvage.log_start``."""

    def read(self, section: int, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches, at least one.

        Raises ApiError OFFSET_OUT_OF_RANGE.
        """

    def snapshot_ids(self) -> Sequence[SnapshotId]:
        """Return the ids of the undamaged snapshots, ascending."""

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return bytes of a snapshot, none at its end.

        Raises ApiError.
        """


class WholeRecords(Records):
    """The log of a running controller, as one section."""

    def __init__(self, replica: Replica, identity: Callable[[], NodeIdentity]) -> None:
        self._replica, self._identity = replica, identity

    @property
    @override
    def identity(self) -> NodeIdentity:
        return self._identity()

    @override
    def sections(self, offset: int) -> Sequence[Section]:
        runs = self._replica.core.epoch_runs()
        return [[Span(base, end, epoch) for epoch, base, end in runs if end > offset]]

    @property
    @override
    def log_start(self) -> SnapshotId | None:
        core = self._replica.core
        start = SnapshotId(core.log_start_offset, core.start_epoch)
        return start if start.end_offset else None

    @override
    def read(self, section: int, offset: int, until: int, max_bytes: int) -> bytes:
        # CorruptLogError: the replica has failed.
        replica = self._replica
        if section == 0 and replica.log_start_offset <= offset < until <= replica.log_end_offset:
            # ValueError: not a batch boundary.
            with suppress(ValueError):
                return replica.read(offset, until, max_bytes)
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in this node's log")

    @override
    def snapshot_ids(self) -> Sequence[SnapshotId]:
        return self._replica.snapshots.ids

    @override
    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        try:
            return self._replica.snapshots.read(snapshot_id, position, max_bytes)
        except LookupError:
            raise ApiError(
                ErrorCode.SNAPSHOT_NOT_FOUND, f"this node has no snapshot {snapshot_id}"
            ) from None
        except ValueError as error:
            raise ApiError(ErrorCode.POSITION_OUT_OF_RANGE, str(error)) from error


def answer_missing(
    request: pb.FetchMissingRecordsRequest, records: Records
) -> pb.FetchMissingRecordsResponse:
    """Return the answer to a controller whose log is damaged.

    Raises ApiError.
    """
    check_limits(request)
    identity = records.identity
    if request.cluster_id not in ("", identity.cluster_id):
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this node belongs to cluster {identity.cluster_id!r}",
            field="cluster_id",
        )
    if NO_GENERATION not in (request.generation, identity.generation) and (
        request.generation != identity.generation
    ):
        raise ApiError(
            ErrorCode.INCONSISTENT_GENERATION,
            f"this node's log has generation {identity.generation}",
            field="generation",
        )
    for field in ("fetch_offset", "end_offset", "position"):
        if not 0 <= getattr(request, field) < 2**62:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{field} must be in 0 .. 2^62 - 1", field=field
            )
    response = pb.FetchMissingRecordsResponse(node_id=identity.node_id)
    max_bytes = max(0, min(request.max_bytes, RECORDS_MAX_BYTES))
    if request.HasField("snapshot_id"):
        snapshot_id = SnapshotId(request.snapshot_id.end_offset, request.snapshot_id.epoch)
        response.bytes = records.read_snapshot(snapshot_id, request.position, max_bytes)
        return response
    if request.section != DESCRIBE:
        response.records = records.read(
            request.section,
            request.fetch_offset,
            request.end_offset,
            max_bytes,
        )
        return response
    for one in records.snapshot_ids()[-SNAPSHOTS_MAX:]:
        response.snapshots.add(end_offset=one.end_offset, epoch=one.epoch)
    if (start := records.log_start) is not None:
        response.log_start.end_offset = start.end_offset
        response.log_start.epoch = start.epoch
    left = SPANS_MAX
    for section in records.sections(request.fetch_offset)[:SPANS_MAX]:
        response.sections.add(
            spans=[
                pb.EpochSpan(base_offset=one.base, end_offset=one.end, epoch=one.epoch)
                for one in section[:left]
            ]
        )
        left -= len(section[:left])
    return response


def request_of(identity: NodeIdentity, request: Request) -> pb.FetchMissingRecordsRequest:
    """Return the protobuf message for a request."""
    message = pb.FetchMissingRecordsRequest(
        cluster_id=identity.cluster_id,
        replica_id=identity.node_id,
        generation=identity.generation,
        max_bytes=RECORDS_MAX_BYTES,
    )
    if request.snapshot is not None:
        message.position = request.offset
        message.snapshot_id.end_offset = request.snapshot.end_offset
        message.snapshot_id.epoch = request.snapshot.epoch
    else:
        message.section = request.section
        message.fetch_offset, message.end_offset = request.offset, request.end
    return message


def answered(response: pb.FetchMissingRecordsResponse) -> Answered:
    """Return the content of a controller's answer."""
    return Answered(
        [
            [Span(one.base_offset, one.end_offset, one.epoch) for one in section.spans]
            for section in response.sections
        ],
        [SnapshotId(one.end_offset, one.epoch) for one in response.snapshots],
        response.records or response.bytes,
        SnapshotId(response.log_start.end_offset, response.log_start.epoch)
        if response.HasField("log_start")
        else None,
    )


def serve_records(
    records: Records,
    authentication: Authentication | None,
    duties: Duties,
) -> Explicit:
    """Return the handler of FetchMissingRecords on a listener."""

    async def fetch(
        request: pb.FetchMissingRecordsRequest, caller: Caller
    ) -> pb.FetchMissingRecordsResponse:
        if authentication is not None:
            link = UnaryLink(caller)
            check_call("FetchMissingRecords", request, link, authentication, duties)
        return answer_missing(request, records)

    return fetch


class Healed(NamedTuple):
    """The result of healing: where the damaged data is, and whether the log was mended."""

    set_aside: Path
    mended: bool


async def heal(config: NodeConfig, damage: Damage, stop: asyncio.Event) -> Healed | None:
    """Mend the log, or replace the directory by a new one; return None if ``stop`` was set first.

    Raises CorruptLogError if the directory must not be replaced (``damage``, and why), ConfigError,
    StorageError.
    """
    lock = DirectoryLock.exclusive(config.directory)
    try:
        if set_aside_before(config.directory) >= SET_ASIDE_MAX:
            raise CorruptLogError(
                f"{damage}; this directory was damaged {SET_ASIDE_MAX} times before: replace the"
                " disk",
                offset=offset_of(damage),
            )
        log.error(
            "the directory is damaged: requesting the lost data from the other controllers",
            damage=str(damage),
        )
        found = await _salvaged(config.directory)
        transport = transport_of(config)
        try:
            healing = _Healing(config, damage, found, transport)
            async with _serving(config, found, transport, healing.state):
                return await healing.run(stop)
        finally:
            await transport.close()
    finally:
        lock.release()


async def _salvaged(directory: Path) -> Salvage | None:
    """Return the undamaged data, or None if none can be read."""
    try:
        found = await asyncio.to_thread(salvage, directory)
    except (FatalError, DamagedIdentityError) as error:
        log.warning("the log cannot be mended", why=str(error))
        return None
    if found.why_not:
        log.warning("the log cannot be mended", why=found.why_not)
    return found


class _Healing:
    def __init__(
        self,
        config: NodeConfig,
        damage: Damage,
        found: Salvage | None,
        transport: GrpcServerTransport,
    ) -> None:
        self._config, self._damage, self._transport = config, damage, transport
        self._found = found if found is not None and not found.why_not else None
        self._identity = identity_of(config)
        self._security = ClientSecurity(peer_tls(config))
        self._said = self._why = ""
        self._mending: Mending | None = None
        if self._found is not None:
            download = SnapshotDownload(config.directory, self._found.identity)
            self._mending = Mending(self._found.damaged_log(), others(config), self._ask, download)

    def state(self) -> MendingState:
        """Return what the node lacks, and why it is not replaced yet."""
        if self._mending is None:
            return MendingState(asked=others(self._config), why=self._why or str(self._damage))
        return self._mending.state._replace(why=self._why)

    async def run(self, stop: asyncio.Event) -> Healed | None:
        directory = self._config.directory
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        is_removed = False

        async def may_continue(lacks: str) -> bool:
            nonlocal is_removed
            why = await removed(self._config, self._identity, self._damage, self._transport)
            is_removed = not why
            if is_removed:
                return False
            self._say(why, lacks)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await stop.wait()
            return not stop.is_set()

        if self._mending is None or self._found is None:
            while await may_continue(""):
                pass
        elif await self._mending.run(may_continue):
            return await asyncio.to_thread(self._replace, self._found, self._mending, name)
        return (
            Healed(begin_anew(directory, self._identity, name), mended=False)
            if is_removed
            else None
        )

    def _replace(self, found: Salvage, mending: Mending, name: str) -> Healed:
        kept = self._config.directory / SNAPSHOT_DIRECTORY
        if not found.is_whole:
            records = found.assemble(mending.log, mending.got)
            kept = replace_log(self._config.directory, found, mending.log, records, name)
        log.warning(
            "repaired the damage: this node remains the same voter",
            fetched=sum(end - base for base, (end, _) in mending.got.items()),
            set_aside=str(kept),
        )
        return Healed(kept, mended=True)

    def _say(self, why: str, lacks: str) -> None:
        self._why = why
        if self._said != lacks + why:
            self._said = lacks + why
            waits = {"waits_for": lacks} if lacks else {}
            log.warning("the damaged directory is unchanged for now", why=why, **waits)

    async def _ask(self, source: str, request: Request) -> Answered:
        message = request_of(self._identity, request)
        call = Call(_METHOD, message, pb.FetchMissingRecordsResponse)
        (called,) = await call_all(source, [call], TIMEOUT_S, self._security)
        if called.response is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, called.failure)
        check_limits(called.response)
        return answered(called.response)


class _Unavailable(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses every raftlog method that no other handler serves. Without it gRPC would answer
    UNIMPLEMENTED, as a program of another kind does.
    """

    @override
    def service(self, handler_call_details: Any) -> Any:
        if not handler_call_details.method.startswith("/raftlog."):
            return None

        async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, DAMAGED_LOG)

        return grpc.stream_stream_rpc_method_handler(refuse)


@asynccontextmanager
async def _serving(
    config: NodeConfig,
    found: Salvage | None,
    transport: GrpcServerTransport,
    state: Callable[[], MendingState],
) -> AsyncIterator[None]:
    """Answer other damaged controllers from this node's undamaged data, and show operators what is
    missing.
    """
    authentication, authorization = (
        authentication_of(config.settings),
        authorization_of(config.settings),
    )
    readers = None if authorization is None else LogReaders(authorization, lambda: None)
    accesses = accesses_of(config)

    async def describe(request: Message, caller: Caller) -> None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{DAMAGED_LOG}; {state().brief}")

    explicit: dict[str, Explicit] = {"DescribeQuorum": describe, "FetchMissingRecords": describe}
    duties = Duties(readers, None, quotas_of(config.settings))
    http = LateHttp(config)
    described = Described(
        lambda: (False, str(state())),
        lambda side, *how: side.mending_server(config, transport, state, *how),
    )

    def failed(error: FatalError) -> None:
        log.error("no metrics are served while this node mends its log", why=str(error))

    for one in config.listeners:
        if found is not None:
            explicit["FetchMissingRecords"] = serve_records(
                found, authentication, duties._replace(accepts_nodes=one.for_nodes)
            )
        await transport.listen(
            one.bind.address,
            {},
            name=one.name,
            extra_handlers=[unary_handler(QUORUM, explicit=dict(explicit)), _Unavailable()],
            access=accesses[one.name],
        )
    http.serve(described, transport, may_see(config, authentication, duties), failed)
    try:
        yield
    finally:
        await http.stop()
