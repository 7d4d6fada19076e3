"""A controller whose log is damaged mends it with the very records that it had, and stays the voter
that it was; or joins anew.

It neither votes nor leads meanwhile, and asks all other controllers for what it lacks, damaged ones
too, and without a leader. They answer from what they have whole, as it does itself: so controllers
whose logs are damaged at different offsets mend each other. What is certain is decided in
:mod:`raftlog.node.recovery.mending`. The mended log is the one that was damaged, batch by batch:
the vote and the directory id keep their promises.

What cannot be mended, and whose records nobody who answers has, joins anew if a majority goes on
without it (:mod:`controller.rejoin`), and else waits, and says for what.

Why: docs/decisions/039-a-damaged-log-is-mended.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
from typing_extensions import override

from controller.rejoin import begin_anew, identity_of, offset_of, others, removed
from raftlog.client.options import ClientSecurity
from raftlog.client.quorum_queries import Call, call_all
from raftlog.errors import ApiError, CorruptLogError, DamagedIdentityError, ErrorCode, FatalError
from raftlog.limits import check as check_limits
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.node.config.node import NodeConfig
from raftlog.node.recovery.mending import (
    DESCRIBE,
    SPANS_MAX,
    Answered,
    Got,
    Section,
    Span,
    fetch_missing,
    waits_for,
)
from raftlog.node.recovery.salvage import Salvage, replace_log, salvage
from raftlog.node.replica.replica import Replica
from raftlog.node.security.authorization import authorization_of
from raftlog.node.security.configured import accesses_of, authentication_of, quotas_of
from raftlog.node.security.guard import Authentication, Duties, LogReaders
from raftlog.node.security.single_calls import check_call
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import DirectoryLock, set_aside_before
from raftlog.node.transport import peer_tls, transport_of
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.unary import Caller, Explicit, UnaryLink, unary_handler
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

log = structlog.get_logger(__name__)

SET_ASIDE_MAX = 3
"""Most damaged states that a directory keeps: a disk that damages more of them is replaced."""
AGAIN_S = 1.0
"""Time in seconds between two rounds of requests."""
TIMEOUT_S = 10.0
RECORDS_MAX_BYTES = 1 << 20
"""Most bytes of records in one answer, unless the first batch alone is larger."""
_METHOD = "/raftlog.wire.quorum.v1.Quorum/FetchMissingRecords"
QUORUM = pb.DESCRIPTOR.services_by_name["Quorum"]
Damage = CorruptLogError | DamagedIdentityError


class Records(Protocol):
    """The whole records of a controller's log."""

    @property
    def identity(self) -> NodeIdentity:
        """Identity of its directory."""

    def sections(self, offset: int) -> Sequence[Section]:
        """Return the sections with the spans that end above ``offset``."""

    def read(self, section: int, offset: int, until: int, max_bytes: int) -> bytes:
        """Return whole batches, at least one. Raises ApiError OFFSET_OUT_OF_RANGE."""


class WholeRecords(Records):
    """The log of a controller that serves: one section."""

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

    @override
    def read(self, section: int, offset: int, until: int, max_bytes: int) -> bytes:
        # CorruptLogError: the replica has failed.
        replica = self._replica
        if section == 0 and replica.log_start_offset <= offset < until <= replica.log_end_offset:
            # ValueError: no boundary of a batch.
            with suppress(ValueError):
                return replica.read(offset, until, max_bytes)
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in the log here")


def answer_missing(
    request: pb.FetchMissingRecordsRequest, records: Records
) -> pb.FetchMissingRecordsResponse:
    """Return the answer to a controller whose log is damaged. Raises ApiError."""
    check_limits(request)
    identity = records.identity
    if request.cluster_id not in ("", identity.cluster_id):
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this node is of cluster {identity.cluster_id!r}",
            field="cluster_id",
        )
    if NO_GENERATION not in (request.generation, identity.generation) and (
        request.generation != identity.generation
    ):
        raise ApiError(
            ErrorCode.INCONSISTENT_GENERATION,
            f"this node's log is of generation {identity.generation}",
            field="generation",
        )
    for field in ("fetch_offset", "end_offset"):
        if not 0 <= getattr(request, field) < 2**62:
            raise ApiError(ErrorCode.INVALID_REQUEST, "no offset of a log", field=field)
    response = pb.FetchMissingRecordsResponse(node_id=identity.node_id)
    if request.section != DESCRIBE:
        response.records = records.read(
            request.section,
            request.fetch_offset,
            request.end_offset,
            max(0, min(request.max_bytes, RECORDS_MAX_BYTES)),
        )
        return response
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


def sections_of(response: pb.FetchMissingRecordsResponse) -> Sequence[Section]:
    """Return the sections that a controller describes."""
    return [
        [Span(one.base_offset, one.end_offset, one.epoch) for one in section.spans]
        for section in response.sections
    ]


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
    """How the node continues: where the damaged data is, and whether the log was mended."""

    set_aside: Path
    mended: bool


async def heal(config: NodeConfig, damage: Damage, stop: asyncio.Event) -> Healed | None:
    """Mend the log, or have the directory replaced by a new one; None if ``stop`` was set before.

    Raises CorruptLogError if the directory must not be replaced (``damage``, and why); ConfigError,
    StorageError.
    """
    lock = DirectoryLock.exclusive(config.directory)
    try:
        if set_aside_before(config.directory) >= SET_ASIDE_MAX:
            raise CorruptLogError(
                f"{damage}; data was damaged here {SET_ASIDE_MAX} times before: replace the disk",
                offset=offset_of(damage),
            )
        log.error("the directory is damaged: this node asks the others", damage=str(damage))
        found = await _salvaged(config.directory)
        transport = transport_of(config)
        try:
            async with _serving(config, found, transport):
                return await _Healing(config, damage, found, transport).run(stop)
        finally:
            await transport.close()
    finally:
        lock.release()


async def _salvaged(directory: Path) -> Salvage | None:
    """Return what is whole; None if nothing can be read."""
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
        self._said = ""

    async def run(self, stop: asyncio.Event) -> Healed | None:
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        directory, got = self._config.directory, Got()
        mending = None if self._found is None else self._found.damaged_log()
        while not stop.is_set():
            lacks = ""
            if mending is not None and self._found is not None:
                sources = others(self._config)
                failures = await fetch_missing(mending, got, sources, self._ask)
                lacks = waits_for(mending, got, sources, failures)
                if not lacks:
                    records = self._found.assemble(mending, got)
                    kept = await asyncio.to_thread(
                        replace_log, directory, self._found, mending.start_offset, records, name
                    )
                    fetched = sum(end - base for base, (end, _) in got.items())
                    log.warning(
                        "the damaged log is mended, and this node stays the voter that it was",
                        fetched=fetched,
                        set_aside=str(kept),
                    )
                    return Healed(kept, mended=True)
            why = await removed(self._config, self._identity, self._damage, self._transport)
            if not why:
                return Healed(begin_anew(directory, self._identity, name), mended=False)
            self._say(why, lacks)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await stop.wait()
        return None

    def _say(self, why: str, lacks: str) -> None:
        if self._said != lacks + why:
            self._said = lacks + why
            waits = {"waits_for": lacks} if lacks else {}
            log.warning("the damaged directory stays as it is for now", why=why, **waits)

    async def _ask(self, source: str, section: int, offset: int, end: int) -> Answered:
        request = pb.FetchMissingRecordsRequest(
            cluster_id=self._identity.cluster_id,
            replica_id=self._identity.node_id,
            generation=self._identity.generation,
            section=section,
            fetch_offset=offset,
            end_offset=end,
            max_bytes=RECORDS_MAX_BYTES,
        )
        call = Call(_METHOD, request, pb.FetchMissingRecordsResponse)
        (called,) = await call_all(source, [call], TIMEOUT_S, self._security)
        if called.response is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, called.failure)
        check_limits(called.response)
        return Answered(sections_of(called.response), called.response.records)


@asynccontextmanager
async def _serving(
    config: NodeConfig, found: Salvage | None, transport: GrpcServerTransport
) -> AsyncIterator[None]:
    """Answer other damaged controllers from what is whole here."""
    if found is None:
        yield
        return
    authentication, authorization = (
        authentication_of(config.settings),
        authorization_of(config.settings),
    )
    readers = None if authorization is None else LogReaders(authorization, lambda: None)
    accesses = accesses_of(config)

    async def describe(request: pb.DescribeQuorumRequest, caller: Caller) -> None:
        raise ApiError(
            ErrorCode.KAFKA_STORAGE_ERROR, "the log of this controller is damaged: see its log"
        )

    for one in config.listeners:
        duties = Duties(readers, None, quotas_of(config.settings), nodes_come=one.for_nodes)
        fetch = serve_records(found, authentication, duties)
        await transport.listen(
            one.bind.address,
            {},
            name=one.name,
            extra_handlers=[
                unary_handler(
                    QUORUM, explicit={"DescribeQuorum": describe, "FetchMissingRecords": fetch}
                )
            ],
            access=accesses[one.name],
        )
    yield
