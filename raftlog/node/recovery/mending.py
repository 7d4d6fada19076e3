"""The loop of a controller that mends its log, and its decisions, without I/O: which records are
missing, and which records of other controllers are certain to be the same.

In its epoch, a leader never writes two different batches at one offset: (offset, epoch) identifies
a batch forever, on any disk, even if it was truncated later. If two logs have the same batch, they
are also equal below it (log matching, Raft section 5.3). So the log can be determined from its end:

* The mark of the last write tells where the log ended, and in which epoch: that record is certain.
* If a record of an epoch is certain, so is every batch of this epoch below it.
* If the first batch of an undamaged log is certain, so is the record before it: that log knows its
  epoch even if retention has deleted it.
* If a batch of a *section* is certain, so is everything below it in the section. A section is a set
  of batches that a log had at one time. A hole in a write-ahead log may hide a truncation, so it
  separates the batches before it from those after it. (Otherwise a truncated batch might be
  restored in place of the one that was acknowledged later.)

Uncertain batches are not used; if no controller has a batch, mending waits for it.

A snapshot is a committed state. The log may begin at a snapshot's end if the record before that is
certain, or if the log itself ends there or earlier and so contains no later decision.

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
"""Section number in a request for the description."""
NAMED_MAX = 8
SNAPSHOTS_MAX = 64
"""Maximum number of snapshots in a controller's description."""
SNAPSHOT_MAX_BYTES = 1 << 40
SPANS_MAX = 1_024
"""Maximum number of spans, and of sections, in the description of a damaged log."""
OWN = ""
"""Source name for the intact parts of the damaged log itself."""


class Span(NamedTuple):
    """Whole, contiguous batches of one epoch: offsets [``base``, ``end``)."""

    base: int
    end: int
    epoch: int


Section = Sequence[Span]
"""Ascending spans of a log, all of which the log had at one time."""


class Piece(NamedTuple):
    """Certain records, and the source and section that contain them intact."""

    base: int
    end: int
    epoch: int
    source: str
    section: int


def require_sections(sections: Sequence[Section]) -> None:
    """Raise ApiError INVALID_REQUEST for a description that no log can have."""
    spans = sum(map(len, sections))
    if spans > SPANS_MAX or len(sections) > SPANS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{spans} spans in {len(sections)} sections: the limit for both is {SPANS_MAX}",
        )
    for section in sections:
        end, epoch = 0, 0
        for span in section:
            if not end <= span.base < span.end < 2**62 or span.epoch < epoch:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"the span [{span.base}, {span.end}) in epoch {span.epoch} cannot follow offset"
                    f" {end} in epoch {epoch}",
                    field="sections",
                )
            end, epoch = span.end, span.epoch


class DamagedLog:
    """A log with gaps, and the intact parts of it on its own disk and on those of other
    controllers.

    ``sections``: those on its own disk, oldest first. ``start_epoch``: the epoch of the record
    before ``start_offset``.
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
        """``snapshots``: the intact ones on its own disk."""
        self.start_offset, self.end_offset = start_offset, end.offset
        self.starts_behind = SnapshotId(start_offset, start_epoch)
        """Id of a snapshot that ends at the log start."""
        self._offered: dict[str, Sequence[Section]] = {OWN: sections}
        self._snapshots: dict[str, Sequence[SnapshotId]] = {OWN: sorted(snapshots)}
        self._starts: dict[str, SnapshotId] = {}
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
        """True if no intact snapshot on its own disk contains the records before the start."""
        own = self._snapshots[OWN]
        return self.start_offset > 0 and not any(one.end_offset >= self.start_offset for one in own)

    def offer(
        self,
        source: str,
        sections: Sequence[Section],
        snapshots: Sequence[SnapshotId] = (),
        log_start: SnapshotId | None = None,
    ) -> None:
        """Record what another controller has, replacing its previous description. ``log_start``:
        id of a snapshot that ends at the start of its log, if that is undamaged. Raises ApiError.
        """
        require_sections(sections)
        if log_start is not None and not (0 < log_start.end_offset < 2**62 and log_start.epoch > 0):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"no log starts at {log_start}", field="log_start"
            )
        if len(snapshots) > SNAPSHOTS_MAX:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{len(snapshots)} snapshots: the limit is {SNAPSHOTS_MAX}",
            )
        self._offered[source], self._snapshots[source] = sections, sorted(snapshots)
        self._starts.pop(source, None)
        if log_start is not None:
            self._starts[source] = log_start
        self._reached = {key: offset for key, offset in self._reached.items() if key[0] != source}
        self._certain = [piece for piece in self._certain if piece.source != source]
        self._follow()
        self._begin_behind_snapshot()

    def certain(self, source: str = OWN) -> Iterator[Piece]:
        """Yield the pieces that are certain, and intact at ``source``."""
        yield from (piece for piece in self._certain if piece.source == source)

    def missing(self, have: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of offsets that are neither certain and intact on its own
        disk nor in ``have``, the ranges fetched meanwhile.
        """
        own = [(piece.base, piece.end) for piece in self.certain()]
        return gaps(self.start_offset, self.end_offset, [*own, *have])

    def wanted(self, have: Iterable[tuple[int, int]] = ()) -> list[Piece]:
        """Return the pieces to fetch for the missing records, as far as other controllers have
        them.
        """
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
        """Return the snapshot to fetch and its source, or None.

        One is needed if a snapshot is missing, or if no controller has some of the records. It is
        the lowest one with which the log may begin.
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
        """Record that another controller's snapshot is now on its own disk."""
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
        """Derive everything that is certain, until nothing more follows."""
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
            moved |= self._follow_starts()

    def _follow_starts(self) -> bool:
        """Derive the records before the starts of undamaged logs. Return whether any is new."""
        moved = False
        for source, start in self._starts.items():
            whole = next(iter(self._offered[source]), ())  # An undamaged log is one section.
            last = start.end_offset - 1
            if (
                whole
                and whole[0].base == start.end_offset <= self._reached.get((source, 0), -1)
                and self._top.get(start.epoch, -1) < last
            ):
                self._top[start.epoch], moved = last, True
        return moved

    def _reach(self, section: Section) -> int:
        """Return the highest certain offset of a section, or -1."""
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
        """Let the log begin at the end of an intact snapshot, if records before that are
        missing.
        """
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

    Raises ApiError unless they are the requested batches, whole and in order; CorruptLogError for a
    wrong checksum or offset.
    """
    end = piece.base
    for base, behind, epoch, _, _ in walk(records, piece.base):
        if epoch != piece.epoch or behind > piece.end:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"received [{base}, {behind}) in epoch {epoch}, but requested [{piece.base},"
                f" {piece.end}) in epoch {piece.epoch}",
                field="records",
            )
        end = behind
    if end == piece.base:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"received no records at {piece.base}", field="records"
        )
    return end


Got = dict[int, tuple[int, bytes]]
"""Fetched records by their first offset, with their end."""


class Request(NamedTuple):
    """A request to another controller: for its description, the records of a section, or the bytes
    of a snapshot.
    """

    section: int = DESCRIBE
    offset: int = 0
    """The first offset, or the position of the first byte in the snapshot."""
    end: int = 0
    snapshot: SnapshotId | None = None


class Answered(NamedTuple):
    """Another controller's response to a request."""

    sections: Sequence[Section] = ()
    snapshots: Sequence[SnapshotId] = ()
    data: bytes = b""
    """Batches of the section, or bytes of the snapshot."""
    log_start: SnapshotId | None = None
    """Id of a snapshot that ends at the start of the controller's log, if that is undamaged."""


Ask = Callable[[str, Request], Awaitable[Answered]]
"""Function that sends a request to a controller. Raises ApiError, including if it cannot be
reached.
"""


class FetchedSnapshots(Protocol):
    """Storage for a snapshot that is fetched from another controller."""

    def store(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Write a part; position 0 starts over. Raises StorageError."""

    def keep(self, snapshot_id: SnapshotId) -> None:
        """Verify the complete snapshot and keep it, durably. Raises CorruptLogError,
        StorageError.
        """


DAMAGED_LOG = "the log of this controller is damaged"
"""Start of the error with which a damaged controller answers all requests for its state."""


class MendingState(NamedTuple):
    """The state of a damaged controller, for operators."""

    missing: Sequence[tuple[int, int]] = ()
    """Offsets [begin, end) of the missing records."""
    asked: Sequence[str] = ()
    """Addresses of the other controllers."""
    failures: Mapping[str, str] = MappingProxyType({})
    """Address -> why that controller could not help in the last round."""
    lacks: str = ""
    """Text about the missing data, or empty if nothing is missing that can be fetched."""
    why: str = ""
    """Why the directory was not replaced by a new one, or empty if that was not tried yet."""

    @property
    def brief(self) -> str:
        """Text about the missing data, or else why the directory was not replaced."""
        return self.lacks or self.why or "reading the intact records"

    def __str__(self) -> str:
        why = f"; {self.why}" if self.lacks and self.why else ""
        return f"mending: {self.brief}{why}; asked {named(self.asked)}"


class Mending:
    """The mending of one log, until nothing is missing."""

    def __init__(
        self, log: DamagedLog, sources: Sequence[str], ask: Ask, snapshots: FetchedSnapshots
    ) -> None:
        self.log, self.got = log, Got()
        self._sources, self._ask, self._snapshots = sources, ask, snapshots
        self.failures: dict[str, str] = {}

    @property
    def state(self) -> MendingState:
        """The current state: what is missing, and which controllers were asked."""
        return MendingState(self.missing, self._sources, self.failures, self._lacks())

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Offsets [begin, end) that are still missing."""
        return self.log.missing(self._have())

    async def run(self, go_on: Callable[[str], Awaitable[bool]]) -> bool:
        """Repeat rounds until nothing is missing; then return True.

        After each round that leaves data missing, ``go_on`` is called with a text about that data.
        ``go_on`` waits before the next round and returns True, or returns False, which this method
        then also returns.
        """
        while lacks := await self._round():
            if not await go_on(lacks):
                return False
        return True

    async def _round(self) -> str:
        """Send requests to all controllers once. Return a text about what is still missing."""
        self.failures = {}
        missing = self.missing
        for source in self._sources if missing or self.log.lacks_snapshot else ():
            try:
                request = Request(DESCRIBE, missing[0][0] if missing else self.log.end_offset)
                answered = await self._ask(source, request)
                self.log.offer(source, answered.sections, answered.snapshots, answered.log_start)
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
            what.append(f"there is no snapshot of the log before offset {self.log.start_offset}")
        if not what:
            return ""
        silent = [one for one in self._sources if one in self.failures]
        whose = (
            f"{', '.join(silent)} may have them, but did not answer"
            if silent
            else "every other controller has answered, and none has them intact"
        )
        return "; ".join([*what, whose])
