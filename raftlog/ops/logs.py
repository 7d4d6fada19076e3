"""Sources of a log with one interface: a running cluster, a stopped node's directory, an export.
Also the hashes of state and log that nodes have reported, against which a replay is checked.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from raftlog import batch
from raftlog.errors import ApiError, ConfigError, CorruptLogError, ErrorCode
from raftlog.metadata.entities import format_hash
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import DIGEST_BYTES
from raftlog.metadata.records import RecordType, parse
from raftlog.metadata.snapshot import SnapshotLoader
from raftlog.metadata.snapshot_file import Footer, SnapshotId, SnapshotVerifier
from raftlog.node.storage.directory import META_FILE
from raftlog.segments.files import open_place
from raftlog.segments.manifest import MANIFEST_NAME, RAW, StateHash, read_manifest
from raftlog.segments.raw import batch_bytes, read_headed
from raftlog.text import printable
from raftlog.transport.api import Transport

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from raftlog.client.controller_client import ControllerClient
    from raftlog.client.log_reader import LogInfo, LogReader
    from raftlog.node.storage.reader import LogReader as DirectoryReader
    from raftlog.ops.evidence import Survey
    from raftlog.wire.controller.v1.controller_pb2 import ControllerResponse


READ_BYTES = 1 << 20
POLL_GRACE_S = 2.0
"""Extra seconds for the response to a poll before another controller is tried."""


class LogSource(Protocol):
    """A source of a log. The start offset is inclusive, the other offsets are exclusive."""

    @property
    def cluster_id(self) -> str:
        """Cluster id of the log."""

    @property
    def generation(self) -> int:
        """Generation of the log."""

    @property
    def connections(self) -> int:
        """Number of connections made to the cluster; 0 if the log is read from files."""

    @property
    def origin(self) -> str:
        """Kind of the cluster that wrote the log, or "" for raftlog."""

    @property
    def start_offset(self) -> int:
        """First offset of the log."""

    @property
    def high_watermark(self) -> int:
        """End of the log that is known to be committed."""

    @property
    def end_offset(self) -> int:
        """End of the readable log; above the high watermark only in a stopped node's directory."""

    def now_ms(self) -> int:
        """Return the time by the clock that stamps the log: the leader's in a running cluster,
        otherwise the last batch's. Raises ConfigError if no node reports it.
        """

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole verified batches starting at ``offset``: at least one, then as many
        as fit.
        """

    def reported_hashes(self) -> list[StateHash]:
        """Return the hashes reported by nodes; their offsets may lie beyond the end. Raises
        StorageError.
        """

    def image_up_to(self, last: int) -> Image:
        """Return an image at or below offset ``last`` from which the log continues: the empty
        image, or a snapshot's. Raises ConfigError if the log begins above 0 without a snapshot;
        CorruptLogError, ApiError.
        """


@contextmanager
def open_log(
    directory: Path | None,
    export: str | None,
    addresses: Callable[[], Sequence[str]],
    timeout_s: float,
) -> Iterator[LogSource]:
    """Open the log of a stopped node's directory, of an export, or of the running cluster whose
    controllers ``addresses`` returns. Raises ConfigError, CorruptLogError, ApiError, ExportError.
    """
    if directory is not None and export is not None:
        raise ConfigError("give either --directory or --export, not both")
    if directory is not None:
        from raftlog.node.storage.reader import open_read_only

        require_node(directory)
        with open_read_only(directory) as log:
            warn_left_out(log)
            yield DirectoryLog(log)
    elif export is not None:
        source = ExportLog(export)
        if source.doubt:
            warn(source.doubt)
        yield source
    else:
        with closing(RunningLog(addresses(), timeout_s)) as running:
            yield running


def warn_left_out(log: DirectoryReader) -> None:
    """Warn about damaged snapshots: the log can still be read, but less of it may be provably
    committed.
    """
    for what in log.left_out:
        warn(f"{what}; ignoring it")


def chunks(source: LogSource, until: int, *, begin: int | None = None) -> Iterator[bytes]:
    """Yield all chunks until one reaches ``until`` (exclusive); the last one may end beyond it.

    Starts at ``begin``, which must be a batch boundary, or at the log's start. Each chunk must
    begin at the requested offset: otherwise a source that skips records would go unnoticed. Raises
    CorruptLogError.
    """
    offset = source.start_offset if begin is None else begin
    while offset < min(until, source.end_offset):
        chunk = source.read(offset, READ_BYTES)
        end = offset
        for header in batch.headers(chunk, verify=False, expect_offset=offset):
            end = header.end_offset
        if end == offset:
            raise CorruptLogError(
                f"the log has no records at offset {offset}, although it reports "
                f"{source.end_offset} as its end",
                offset=offset,
            )
        yield chunk
        offset = end


def begins_late(source: LogSource) -> str:
    """If the log does not begin at 0, return a sentence about that, else ""."""
    start = source.start_offset
    return (
        f"history begins at offset {start}: earlier records were deleted after a snapshot"
        if start
        else ""
    )


def _not_before(last: int, first: int) -> ConfigError:
    return ConfigError(
        f"offset {last} is too early: the oldest available state is at offset {first}"
    )


def _loaded(read: Callable[[int], bytes]) -> Image:
    """Return the image in a snapshot; ``read`` returns its bytes from a position onwards."""
    loader = SnapshotLoader()
    position = 0
    while data := read(position):
        loader.feed(data)
        position += len(data)
    return loader.finish()


class DirectoryLog:
    """A stopped node's log, of which only a part is provably committed.

    The proof is a progress record, which contains the high watermark at the time it was written;
    with a single voter the whole log is committed.
    """

    def __init__(self, log: DirectoryReader) -> None:
        self._log = log
        self._high_watermark: int | None = None
        self.connections = 0
        self.cluster_id = log.identity.cluster_id
        self.generation = log.identity.generation
        self.origin = ""
        self.start_offset = log.start_offset
        self.end_offset = log.end_offset

    @property
    def high_watermark(self) -> int:
        """End of the part that is proven committed, determined by reading the whole log once."""
        if self._high_watermark is None:
            self._high_watermark = self._find_high_watermark()
        return self._high_watermark

    def now_ms(self) -> int:
        """See LogSource."""
        last = 0
        for chunk in chunks(self, self.end_offset):
            *_, header = batch.headers(chunk, verify=False)
            last = header.timestamp_ms
        return last

    def assume_committed(self) -> None:
        """Treat the whole log as committed, by the operator's decision."""
        self._high_watermark = self.end_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole verified batches. Once the end of the committed part is known, committed
        batches are never mixed with others.
        """
        proven = self._high_watermark
        until = proven if proven is not None and offset < proven else self.end_offset
        return self._log.read(offset, until, max_bytes)

    def image_up_to(self, last: int) -> Image:
        """See LogSource."""
        if not self.start_offset:
            return Image()
        ends = [one for one in self._log.snapshots if one.end_offset >= self.start_offset]
        fitting = [one for one in ends if one.end_offset - 1 <= last]
        if not fitting:
            raise _not_before(last, min(one.end_offset for one in ends) - 1)
        return _loaded(lambda position: self._log.read_snapshot(fitting[-1], position, READ_BYTES))

    def reported_hashes(self) -> list[StateHash]:
        """Return the hashes in the snapshots next to the log."""
        return hashes_in_directory(self._log)

    def _find_high_watermark(self) -> int:
        # The content of a snapshot is committed.
        proven, single = (
            max([self.start_offset, *(one.end_offset for one in self._log.snapshots)]),
            False,
        )
        for chunk in chunks(self, self.end_offset):
            for header in batch.headers(chunk, verify=False):
                for data in batch.records(chunk, header):
                    if data.type == RecordType.PROGRESS:
                        proven = max(proven, parse(data).high_watermark)
                    elif data.type == RecordType.LEADER_CHANGE:
                        single = len(parse(data).voters) == 1
                    elif data.type == RecordType.VOTERS:
                        single = single and len(parse(data).voters) == 1
        return self.end_offset if single else proven


class ExportLog:
    """The raw segments of an export, read in order."""

    def __init__(self, target: Path | str) -> None:
        self._place = open_place(target)
        manifest = read_manifest(self._place)
        self._segments = manifest.of_kind(RAW)
        self._said = manifest.state_hashes
        self._next = -1
        self.connections = 0
        self._batches: Iterator[bytes] = iter(())
        self.cluster_id = manifest.cluster_id
        self.generation = manifest.generation
        self.origin = manifest.origin
        self.doubt = manifest.doubt
        """Known error in the exported state, or ""."""
        self.start_offset = manifest.history_begin
        self.high_watermark = self.end_offset = manifest.end_offset

    def now_ms(self) -> int:
        """See LogSource."""
        return self._segments[-1].max_timestamp_ms if self._segments else 0

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole verified batches; cheap if ``offset`` is the end of the last read."""
        if offset != self._next:
            self._batches = self._all_from(offset)
        parts: list[bytes] = []
        size = 0
        for data in self._batches:
            parts.append(data)
            size += len(data)
            if size >= max_bytes:
                break
        chunk = b"".join(parts)
        for header in batch.headers(chunk, verify=False):
            self._next = header.end_offset
        return chunk

    def reported_hashes(self) -> list[StateHash]:
        """Return the hashes in the manifest."""
        return list(self._said)

    def image_up_to(self, last: int) -> Image:
        """See LogSource; an export has no snapshots."""
        if self.start_offset:
            raise ConfigError(
                f"this export begins at offset {self.start_offset}, and does not contain the state "
                "before that"
            )
        return Image()

    def _all_from(self, offset: int) -> Iterator[bytes]:
        for segment in self._segments:
            if segment.last_offset >= offset:
                owner = self.cluster_id, self.generation
                for found in read_headed(self._place, segment, owner=owner, begin_offset=offset):
                    yield batch_bytes(*found)


class RunningLog:
    """The committed log of a running cluster, up to its high watermark when this was created. Close
    it.
    """

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        self._addresses, self._timeout_s = tuple(addresses), timeout_s
        self._rng = random.Random()
        self._runner = asyncio.Runner()
        try:
            self._transport, self._reader, info = self._runner.run(self._connect())
        except BaseException:
            self._runner.close()
            raise
        self.cluster_id = info.cluster_id
        self.generation = info.generation
        self.origin = ""
        self.start_offset = info.log_start_offset
        self.high_watermark = self.end_offset = info.high_watermark
        self._snapshot_id = info.snapshot_id
        self.generations = info.generations
        """All generations of the log, oldest first."""
        self._client: ControllerClient | None = None
        self.listener: Callable[[bytes], None] | None = None
        """Function that is called with every chunk read, or None."""
        self._state_hashes = _StateHashes(self._transport, addresses, info)

    async def _connect(self) -> tuple[Transport, LogReader, LogInfo]:
        from raftlog.client.admission import require_listener
        from raftlog.client.log_reader import LogReader
        from raftlog.client.security import security_of_environment
        from raftlog.transport.grpc_transport import GrpcTransport

        tls, token = security_of_environment()
        files = None if tls is None else tls.files
        require_listener(self._addresses, plaintext=tls is None, files=files)
        transport = GrpcTransport(tls=tls, token=token)
        reader = LogReader(transport, self._addresses, rng=self._rng, timeout_s=self._timeout_s)
        try:
            return transport, reader, await reader.info()
        except BaseException:
            reader.close()
            await transport.close()
            raise

    def now_ms(self) -> int:
        """See LogSource."""
        from raftlog.client.security import security_of_environment
        from raftlog.ops.collector import LOOK_S, Collector

        async def look() -> Survey:
            collector = Collector(security_of_environment())
            return await collector.survey(self._addresses, min(self._timeout_s, LOOK_S))

        survey = self._runner.run(look())
        if survey.ahead_ms is None:
            raise ConfigError(
                "no controller reports its time (DescribeNode, which needs DESCRIBE on CLUSTER): "
                "give --from with a date instead of --since"
            )
        return survey.at_ms

    @property
    def connections(self) -> int:
        """Number of connections made to controllers."""
        return self._reader.connections

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole verified batches."""
        chunk = self._runner.run(self._reader.read(offset, max_bytes, max_wait_ms=1000))
        if self.listener is not None:
            self.listener(chunk)
        return chunk

    def call(self, body: Message, *, principal: str = "") -> ControllerResponse:
        """Send another request to the active controller. Raises ApiError; refused items are in the
        response.
        """
        from raftlog.client.controller_client import ControllerClient

        async def ask() -> ControllerResponse:
            if self._client is None:
                self._client = ControllerClient(self._transport, self._addresses, rng=self._rng)
            return await self._client.call(
                body, timeout_s=self._timeout_s, principal=principal, raise_refused=False
            )

        return self._runner.run(ask())

    def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        """Read as ``read`` does, but return b"" if no new records are committed within ``wait_s``.
        Raises ApiError at most ``POLL_GRACE_S`` later.
        """
        chunk = self._runner.run(self._poll(offset, max_bytes, wait_s))
        for header in batch.headers(chunk, verify=False):
            self.high_watermark = self.end_offset = max(self.high_watermark, header.end_offset)
        if self.listener is not None:
            self.listener(chunk)
        return chunk

    async def _poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        try:
            async with asyncio.timeout(wait_s + POLL_GRACE_S):
                return await self._reader.read(offset, max_bytes, max_wait_ms=int(wait_s * 1000))
        except TimeoutError:
            # Its late response must not be taken for that to the next request.
            self._reader.close()
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answers") from None

    def reported_hashes(self) -> list[StateHash]:
        """Return the hashes reported by the quorum's nodes."""
        return self._runner.run(self._state_hashes.ask())

    def image_up_to(self, last: int) -> Image:
        """Return the image of the newest snapshot, the only one that the cluster names: see
        LogSource.
        """
        if self._snapshot_id is None:
            return Image()
        if self._snapshot_id.end_offset - 1 > last:
            raise _not_before(last, self._snapshot_id.end_offset - 1)
        loader = SnapshotLoader()
        self._runner.run(self._reader.snapshot(self._snapshot_id, loader.feed))
        return loader.finish()

    def close(self) -> None:
        """Close the connections and the event loop."""
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        self._reader.close()
        if self._client is not None:
            self._client.close()
        await self._transport.close()


ANSWER_WITHIN_S = 2.0
"""Timeout of each answer in seconds; the export does not wait for slower nodes."""


class _StateHashes:
    """Queries to all nodes of a running quorum for their image's hash, and once for the hash of
    each of their snapshots.
    """

    def __init__(self, transport: Transport, addresses: Sequence[str], log: LogInfo) -> None:
        self._transport, self._addresses = transport, tuple(addresses)
        self._cluster_id, self._generation = log.cluster_id, log.generation
        self._asked: set[tuple[int, SnapshotId]] = set()

    async def ask(self) -> list[StateHash]:
        """Return the answers that arrive. Never raises."""
        from raftlog.client.quorum_queries import ask_quorum
        from raftlog.client.security import security_of_environment

        quorum = await ask_quorum(self._addresses, ANSWER_WITHIN_S, security_of_environment())
        found: list[StateHash] = []
        for answer in quorum.answers:
            found += await self._said_by(answer)
        return found

    async def _said_by(self, answer: Any) -> list[StateHash]:
        from raftlog.client.log_reader import fetch_footer

        one = answer.description
        if one is None or (one.cluster_id, one.generation) != (self._cluster_id, self._generation):
            return []
        said: list[StateHash] = []
        if one.image_offset >= 0 and len(one.state_hash) == 16:
            footer = Footer(
                int.from_bytes(one.state_hash, "big"), one.log_hash_begin_offset, one.log_hash
            )
            said.append(
                _state_hash(one.image_offset, one.image_epoch, footer, one.node_id, "image")
            )
        for snapshot in one.snapshots:
            snapshot_id = SnapshotId(snapshot.end_offset, snapshot.epoch)
            if (one.node_id, snapshot_id) in self._asked:
                continue
            found = await fetch_footer(
                self._transport,
                answer.endpoint,
                snapshot_id,
                cluster_id=self._cluster_id,
                timeout_s=ANSWER_WITHIN_S,
            )
            if found is not None:
                self._asked.add((one.node_id, snapshot_id))
                said.append(
                    _state_hash(
                        snapshot.end_offset - 1, snapshot.epoch, found, one.node_id, "snapshot"
                    )
                )
        return said


def hashes_in_directory(log: DirectoryReader) -> list[StateHash]:
    """Return the hashes of the valid snapshots in a stopped node's directory; damaged ones are
    ignored. Raises StorageError.
    """
    said: list[StateHash] = []
    for snapshot_id in log.snapshots:
        with suppress(CorruptLogError):
            said.append(
                _state_hash(
                    snapshot_id.end_offset - 1,
                    snapshot_id.epoch,
                    _footer_of(log, snapshot_id),
                    log.identity.node_id,
                    "snapshot",
                )
            )
    return said


def _footer_of(log: DirectoryReader, snapshot_id: SnapshotId) -> Footer:
    """Return the footer of a snapshot that is checked from end to end. Raises CorruptLogError,
    StorageError.
    """
    verifier, position = SnapshotVerifier(), 0
    while data := log.read_snapshot(snapshot_id, position, READ_BYTES):
        verifier.feed(data)
        position += len(data)
    verifier.finish()
    assert verifier.footer is not None
    return verifier.footer


def _state_hash(offset: int, epoch: int, footer: Footer, node_id: int, source: str) -> StateHash:
    hashed = len(footer.log_hash) == DIGEST_BYTES
    return StateHash(
        offset=offset,
        epoch=epoch,
        state_hash=format_hash(footer.state_hash),
        node_id=node_id,
        source=source,
        log_hash=footer.log_hash.hex() if hashed else "",
        log_hash_begin_offset=footer.log_hash_begin_offset if hashed else -1,
    )


_NAMED = 3


def warn(text: str) -> None:
    """Print a line to stderr, escaping control characters in foreign text."""
    print(printable(text), file=sys.stderr, flush=True)


def require_node(directory: Path) -> None:
    """Raise ConfigError for an invalid data directory; the message names valid ones inside it."""
    if (directory / META_FILE).exists():
        return
    if not directory.is_dir():
        why = "it is a file" if directory.exists() else "it does not exist"
    elif (directory / MANIFEST_NAME).exists():
        why = "it is an export"
    else:
        why = f"it contains no {META_FILE}"
    raise ConfigError(f"{directory} is not a data directory of a node: {why}. {_where(directory)}")


def _where(directory: Path) -> str:
    patterns = (f"*/{META_FILE}", f"*/*/{META_FILE}")
    there = [path.parent for pattern in patterns for path in sorted(directory.glob(pattern))]
    # Brokers, which keep no log, come last.
    found = [str(path) for path in sorted(there, key=lambda path: (path / "partitions").exists())]
    if not found:
        return "A node's configuration names its data directory in log.dirs"
    return f"Data directories in it: {', '.join(found[:_NAMED])}" + (
        ", …" if found[_NAMED:] else ""
    )
