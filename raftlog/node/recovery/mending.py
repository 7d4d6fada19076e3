"""The loop of a controller that mends its log, and its decisions, without I/O: which records are
missing, and which records of other controllers are the very same.

A leader puts one batch at an offset in its epoch, and never another: (offset, epoch) names a batch
for ever, on whatever disk it is, even where it was truncated since. And if two logs have the same
batch, they are equal below it (log matching, Raft section 5.3). So a log is known from its end:

* The mark of the last write says where the log ended, and in which epoch: that record is certain.
* If a record of an epoch is certain, every batch of this epoch below it is.
* If a batch of a *section* is certain, all of the section below it is. A section is a set of
  batches that a log had at one time. A hole in a write-ahead log may have been a truncation, and
  divides what is before it from what is behind it [else a batch that had been truncated might be
  put back in the place of the one that was acknowledged later].

What is not certain is not taken, and what nobody has is waited for.

A snapshot is a state that was committed. The log may begin at its end if the record before that is
certain; or if the log ends there or before, as it then has nothing that was not decided.

Why: docs/decisions/039-a-damaged-log-is-mended.md
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.node.storage.api import SnapshotId
from raftlog.node.storage.chunks import walk
from raftlog.node.storage.wal import LogEnd
from raftlog.text import named

DESCRIBE = -1
"""Section number of a request for the description."""
NAMED_MAX = 8
SNAPSHOTS_MAX = 64
"""Most snapshots that a controller names."""
SNAPSHOT_MAX_BYTES = 1 << 40
SPANS_MAX = 1_024
"""Most spans, and most sections, of a damaged log that are described: it had that many holes."""
OWN = ""
"""Source of what is whole in the damaged log itself."""


class Span(NamedTuple):
    """Whole batches of one epoch that follow each other: offsets [``base``, ``end``)."""

    base: int
    end: int
    epoch: int


Section = Sequence[Span]
"""Ascending spans of a log that had all of them at one time."""


class Piece(NamedTuple):
    """Certain records, and where they are whole."""

    base: int
    end: int
    epoch: int
    source: str
    section: int


def require_sections(sections: Sequence[Section]) -> None:
    """Raise ApiError INVALID_REQUEST for a description that no log has."""
    spans = sum(map(len, sections))
    if spans > SPANS_MAX or len(sections) > SPANS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{spans} spans, {SPANS_MAX} is the most")
    for section in sections:
        end, epoch = 0, 0
        for span in section:
            if not end <= span.base < span.end < 2**62 or span.epoch < epoch:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"a span of [{span.base}, {span.end}) in epoch {span.epoch} after"
                    f" {end} in epoch {epoch}",
                    field="sections",
                )
            end, epoch = span.end, span.epoch


class DamagedLog:
    """A log with gaps, and what its own disk and others' have of it.

    ``sections``: those on its own disk, oldest first. ``start_epoch``: epoch of the record before
    ``start_offset``.
    """

    def __init__(
        self,
        start_offset: int,
        end: LogEnd,
        sections: Sequence[Section],
        *,
        start_epoch: int = 0,
        snapshots: Iterable[SnapshotId] = (),
    ) -> None:
        """``snapshots``: those that are whole on its own disk."""
        self.start_offset, self.end_offset = start_offset, end.offset
        self.starts_behind = SnapshotId(start_offset, start_epoch)
        """Id of a snapshot that ends at the start."""
        self._offered: dict[str, Sequence[Section]] = {OWN: sections}
        self._snapshots: dict[str, Sequence[SnapshotId]] = {OWN: sorted(snapshots)}
        self._top = {start_epoch: start_offset - 1} if start_offset else {}
        """Highest certain offset by epoch."""
        self._certain: list[Piece] = []
        self._reached: dict[tuple[str, int], int] = {}
        if end.offset > start_offset:
            self._top[end.epoch] = end.offset - 1
        self._follow()
        self._begin_behind_snapshot()

    @property
    def lacks_snapshot(self) -> bool:
        """True if no whole snapshot on its own disk has the records before the start."""
        own = self._snapshots[OWN]
        return self.start_offset > 0 and not any(one.end_offset >= self.start_offset for one in own)

    def offer(
        self, source: str, sections: Sequence[Section], snapshots: Sequence[SnapshotId] = ()
    ) -> None:
        """Note what another controller has, in place of what it had before. Raises ApiError."""
        require_sections(sections)
        if len(snapshots) > SNAPSHOTS_MAX:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{len(snapshots)} snapshots")
        self._offered[source], self._snapshots[source] = sections, sorted(snapshots)
        self._reached = {key: offset for key, offset in self._reached.items() if key[0] != source}
        self._certain = [piece for piece in self._certain if piece.source != source]
        self._follow()
        self._begin_behind_snapshot()

    def certain(self, source: str = OWN) -> Iterator[Piece]:
        """Yield what is certain, and whole at ``source``."""
        yield from (piece for piece in self._certain if piece.source == source)

    def missing(self, have: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
        """Return the offsets [begin, end) of the log that are neither certain and whole here, nor
        among those that the node ``have`` got meanwhile.
        """
        own = [(piece.base, piece.end) for piece in self.certain()]
        return gaps(self.start_offset, self.end_offset, [*own, *have])

    def wanted(self, have: Iterable[tuple[int, int]] = ()) -> list[Piece]:
        """Return what to fetch from others for the missing records, as far as anybody has them."""
        found = []
        for begin, end in self.missing(have):
            at = begin
            while at < end:
                piece = self._elsewhere(at)
                if piece is None:
                    at = min(
                        (p.base for p in self._certain if p.source != OWN and p.base > at),
                        default=end,
                    )
                    continue
                found.append(piece._replace(base=at, end=min(end, piece.end)))
                at = piece.end
        return found

    def wanted_snapshot(
        self, have: Iterable[tuple[int, int]] = ()
    ) -> tuple[str, SnapshotId] | None:
        """Return the snapshot to fetch, and its source, if a snapshot is missing, or records that
        nobody has: the lowest one that the log may begin with.
        """
        have = list(have)
        nowhere = self.missing([*have, *((one.base, one.end) for one in self.wanted(have))])
        if not nowhere and not self.lacks_snapshot:
            return None
        lowest = max([self.start_offset, *(end for _, end in nowhere)])
        return min(
            (
                (source, one)
                for source, snapshots in self._snapshots.items()
                for one in snapshots
                if source != OWN and one.end_offset >= lowest and self._may_begin_with(one)
            ),
            key=lambda found: found[1],
            default=None,
        )

    def fetched(self, snapshot_id: SnapshotId) -> None:
        """Note that a snapshot of another controller is on its own disk now."""
        self._snapshots[OWN] = sorted([*self._snapshots[OWN], snapshot_id])
        self._begin_behind_snapshot()

    def _may_begin_with(self, one: SnapshotId) -> bool:
        return one.end_offset >= self.end_offset or (
            one.end_offset >= self.start_offset
            and one.end_offset - 1 <= self._top.get(one.epoch, -1)
        )

    def _elsewhere(self, offset: int) -> Piece | None:
        return next(
            (p for p in self._certain if p.source != OWN and p.base <= offset < p.end), None
        )

    def _follow(self) -> None:
        """Find everything that is certain, from what is, until nothing more follows."""
        moved = True
        while moved:
            moved = False
            for source, sections in self._offered.items():
                for number, section in enumerate(sections):
                    reach = self._reach(section)
                    if reach > self._reached.get((source, number), -1):
                        self._reached[source, number] = reach
                        self._accept(source, number, section, reach)
                        moved = True

    def _reach(self, section: Section) -> int:
        """Return the highest certain offset of a section; -1: none is certain."""
        for span in reversed(section):
            top = self._top.get(span.epoch, -1)
            if span.base <= top:
                return min(span.end - 1, top)
        return -1

    def _accept(self, source: str, number: int, section: Section, reach: int) -> None:
        self._certain = [p for p in self._certain if (p.source, p.section) != (source, number)]
        for span in section:
            if span.base <= reach:
                end = min(span.end, reach + 1)
                self._certain.append(Piece(span.base, end, span.epoch, source, number))
                self._top[span.epoch] = max(self._top.get(span.epoch, -1), end - 1)

    def _begin_behind_snapshot(self) -> None:
        """Let the log begin at the end of a whole snapshot, if records are missing below."""
        for one in reversed(self._snapshots[OWN]):
            end = one.end_offset
            if end > self.start_offset and self._may_begin_with(one):
                if any(begin < end for begin, _ in self.missing()):
                    self.start_offset, self.starts_behind = end, one
                    self.end_offset = max(self.end_offset, end)
                return


def gaps(start: int, end: int, have: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of [``start``, ``end``) that none of the ranges covers."""
    found, at = [], start
    for begin, behind in sorted(have):
        if begin >= end:
            break
        if begin > at:
            found.append((at, begin))
        at = max(at, behind)
    if at < end:
        found.append((at, end))
    return found


def require_records(piece: Piece, records: bytes) -> int:
    """Return the end offset of the records that another controller sent for ``piece``.

    Raises ApiError if these are not the batches that were asked for, whole and in order;
    CorruptLogError for a wrong checksum or offset.
    """
    end = piece.base
    for base, behind, epoch, _, _ in walk(records, piece.base):
        if epoch != piece.epoch or behind > piece.end:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"[{base}, {behind}) in epoch {epoch}, where [{piece.base}, {piece.end}) in epoch"
                f" {piece.epoch} was asked for",
                field="records",
            )
        end = behind
    if end == piece.base:
        raise ApiError(ErrorCode.INVALID_RECORD, f"no records at {piece.base}", field="records")
    return end


Got = dict[int, tuple[int, bytes]]
"""Fetched records by their first offset, with their end."""


class Request(NamedTuple):
    """A request to another controller: for its description, records of a section, or bytes of a
    snapshot.
    """

    section: int = DESCRIBE
    offset: int = 0
    """The first offset, or the first byte of the snapshot."""
    end: int = 0
    snapshot: SnapshotId | None = None


class Answered(NamedTuple):
    """The answer of another controller to a request."""

    sections: Sequence[Section] = ()
    snapshots: Sequence[SnapshotId] = ()
    data: bytes = b""
    """Batches of the section, or bytes of the snapshot."""


Ask = Callable[[str, Request], Awaitable[Answered]]
"""Function that asks a controller. Raises ApiError, also if it is not reached."""


class FetchedSnapshots(Protocol):
    """The place of a snapshot that is fetched from another controller."""

    def store(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Write a part; position 0 begins anew. Raises StorageError."""

    def keep(self, snapshot_id: SnapshotId) -> None:
        """Check the snapshot whole, and keep it, durably. Raises CorruptLogError, StorageError."""


class MendingState(NamedTuple):
    """The state of a damaged controller, for people."""

    missing: Sequence[tuple[int, int]] = ()
    """Offsets [begin, end) of the missing records."""
    asked: Sequence[str] = ()
    """Addresses of the other controllers."""
    failures: Mapping[str, str] = MappingProxyType({})
    """Why one of them had no part in the last round."""
    lacks: str = ""
    """Text about the missing data; empty if nothing is missing that can be fetched."""
    why: str = ""
    """Why the directory has not been replaced by a new one; empty: that was not tried yet."""

    def __str__(self) -> str:
        known = [one for one in (self.lacks, self.why) if one]
        return f"mending: {'; '.join(known) or 'reading what is whole'}; asked {named(self.asked)}"


class Mending:
    """The mending of one log, until nothing is missing."""

    def __init__(
        self, log: DamagedLog, sources: Sequence[str], ask: Ask, snapshots: FetchedSnapshots
    ) -> None:
        self.log, self.got = log, Got()
        self._sources, self._ask, self._snapshots = sources, ask, snapshots
        self.failures: dict[str, str] = {}
        """Why a controller had no part in the last round."""

    @property
    def state(self) -> MendingState:
        """Return what is missing now, and who was asked."""
        return MendingState(self.missing, self._sources, self.failures, self._lacks())

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Offsets [begin, end) that are not here yet."""
        return self.log.missing(self._have())

    async def run(self, go_on: Callable[[str], Awaitable[bool]]) -> bool:
        """Ask for what is missing, again and again; True once nothing is.

        After each round in vain ``go_on`` is called with what is missing, and waits; False ends the
        mending.
        """
        while lacks := await self._round():
            if not await go_on(lacks):
                return False
        return True

    async def _round(self) -> str:
        """Ask all controllers once; return what is still missing, for people."""
        self.failures = {}
        missing = self.missing
        for source in self._sources if missing or self.log.lacks_snapshot else ():
            try:
                request = Request(DESCRIBE, missing[0][0] if missing else self.log.end_offset)
                answered = await self._ask(source, request)
                self.log.offer(source, answered.sections, answered.snapshots)
            except ApiError as error:
                self.failures[source] = str(error)
        for piece in self.log.wanted(self._have()):
            await self._from(piece.source, self._fetch_records(piece))
        wanted = self.log.wanted_snapshot(self._have())
        if wanted is not None:
            await self._from(wanted[0], self._fetch_snapshot(*wanted))
        return self._lacks()

    async def _from(self, source: str, fetch: Awaitable[None]) -> None:
        try:
            await fetch
        except (ApiError, CorruptLogError) as error:
            self.failures[source] = str(error)

    async def _fetch_records(self, piece: Piece) -> None:
        at = piece.base
        while at < piece.end and piece.source not in self.failures:
            request = Request(piece.section, at, piece.end)
            records = (await self._ask(piece.source, request)).data
            end = require_records(piece._replace(base=at), records)
            self.got[at] = end, records
            at = end

    async def _fetch_snapshot(self, source: str, snapshot_id: SnapshotId) -> None:
        position = 0
        while position <= SNAPSHOT_MAX_BYTES:
            request = Request(offset=position, snapshot=snapshot_id)
            data = (await self._ask(source, request)).data
            if not data:
                break
            self._snapshots.store(snapshot_id, position, data)
            position += len(data)
        self._snapshots.keep(snapshot_id)
        self.log.fetched(snapshot_id)

    def _have(self) -> list[tuple[int, int]]:
        return [(base, end) for base, (end, _) in self.got.items()]

    def _lacks(self) -> str:
        ranges = self.missing
        what = []
        if ranges:
            offsets = ", ".join(f"{begin} to {end - 1}" for begin, end in ranges[:NAMED_MAX])
            rest = len(ranges) - NAMED_MAX
            more = f" and {rest} more gaps" if rest > 0 else ""
            what.append(f"offsets {offsets}{more} are missing")
        if self.log.lacks_snapshot:
            what.append(f"no snapshot has what lies before offset {self.log.start_offset}")
        if not what:
            return ""
        silent = [one for one in self._sources if one in self.failures]
        whose = (
            f"{', '.join(silent)} may have them, and did not answer"
            if silent
            else "every other controller has answered, and none has them whole"
        )
        return "; ".join([*what, whose])
