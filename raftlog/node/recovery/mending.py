"""Which records of a damaged log are missing, and which of the others' are the very same: the
decision, without I/O.

A leader puts one batch at an offset in its epoch, and never another: (offset, epoch) names a batch
for ever, on whatever disk it is, even where it was truncated since. And if two logs have the same
batch, they are equal below it (log matching, Raft section 5.3). So a log is known from its end:

* What was written after the last damage is certain.
* If a record of an epoch is certain, every batch of this epoch below it is.
* If a batch of a *section* is certain, all of the section below it is. A section is a set of
  batches that a log had at one time. A hole in a write-ahead log may have been a truncation, and
  divides what is before it from what is behind it [else a batch that had been truncated might be
  put back in the place of the one that was acknowledged later].

What is not certain is not taken, and what nobody has is waited for.

Why: docs/decisions/039-a-damaged-log-is-mended.md
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.node.storage.chunks import walk

DESCRIBE = -1
"""Section number of a request for the description."""
NAMED_MAX = 8
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

    ``sections``: those on its own disk, oldest first; the last one was written after all damage,
    up to ``end_offset``. ``start_epoch``: epoch of the record before ``start_offset``.
    """

    def __init__(
        self,
        start_offset: int,
        end_offset: int,
        sections: Sequence[Section],
        *,
        start_epoch: int = 0,
        snapshots: Iterable[tuple[int, int]] = (),
    ) -> None:
        """``snapshots``: (end offset, epoch) of those that are whole."""
        self.start_offset, self.end_offset = start_offset, end_offset
        self._offered: dict[str, Sequence[Section]] = {OWN: sections}
        self._snapshots = sorted(snapshots, reverse=True)
        self._top = {start_epoch: start_offset - 1} if start_offset else {}
        """Highest certain offset by epoch."""
        self._certain: list[Piece] = []
        self._reached: dict[tuple[str, int], int] = {}
        if sections and sections[-1] and sections[-1][-1].end == end_offset:
            last = sections[-1][-1]
            self._top[last.epoch] = last.end - 1
        self._follow()
        self._begin_behind_snapshot()

    def offer(self, source: str, sections: Sequence[Section]) -> None:
        """Note what another controller has, in place of what it had before. Raises ApiError."""
        require_sections(sections)
        self._offered[source] = sections
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
        """Let the log begin at the end of a whole snapshot, if records are missing below, and the
        snapshot is certain to be of this log.
        """
        for end, epoch in self._snapshots:
            if self.start_offset < end <= self.end_offset and end - 1 <= self._top.get(epoch, -1):
                if any(begin < end for begin, _ in self.missing()):
                    self.start_offset = end
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


class Answered(NamedTuple):
    """The answer of another controller: its sections, or the records of one."""

    sections: Sequence[Section] = ()
    records: bytes = b""


Ask = Callable[[str, int, int, int], Awaitable[Answered]]
"""Function that asks a controller for a section's records of [offset, end), or, for section -1,
for its sections from an offset on. Raises ApiError, also if it is not reached.
"""


async def fetch_missing(
    log: DamagedLog, got: Got, sources: Iterable[str], ask: Ask
) -> dict[str, str]:
    """Ask all ``sources`` for the missing records, and add what proves to be of this log to
    ``got``; return why a source had no part in it.
    """
    failures: dict[str, str] = {}
    missing = log.missing(_ranges(got))
    for source in sources if missing else ():
        try:
            answered = await ask(source, DESCRIBE, missing[0][0], log.end_offset)
            log.offer(source, answered.sections)
        except ApiError as error:
            failures[source] = str(error)
    for piece in log.wanted(_ranges(got)):
        at = piece.base
        try:
            while at < piece.end and piece.source not in failures:
                records = (await ask(piece.source, piece.section, at, piece.end)).records
                end = require_records(piece._replace(base=at), records)
                got[at] = end, records
                at = end
        except (ApiError, CorruptLogError) as error:
            failures[piece.source] = str(error)
    return failures


def _ranges(got: Got) -> list[tuple[int, int]]:
    return [(base, end) for base, (end, _) in got.items()]


def waits_for(
    log: DamagedLog, got: Got, sources: Iterable[str], failures: Mapping[str, str]
) -> str:
    """Return what the log lacks still, and who may have it, for people; empty: it lacks nothing."""
    ranges = log.missing(_ranges(got))
    if not ranges:
        return ""
    offsets = ", ".join(f"{begin} to {end - 1}" for begin, end in ranges[:NAMED_MAX])
    more = f" and {len(ranges) - NAMED_MAX} more gaps" if len(ranges) > NAMED_MAX else ""
    silent = [one for one in sources if one in failures]
    whose = (
        f"; {', '.join(silent)} may have them, and did not answer"
        if silent
        else "; every other controller has answered, and none has them whole"
    )
    return f"offsets {offsets}{more} are missing{whose}"
