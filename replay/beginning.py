"""The beginning of a fold: the empty state, or the last checkpoint before the range in question.

A job that begins with a checkpoint believes it: it reads nothing of what lies below. So its answer
names the checkpoint, and ``verify`` folds what leads to it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import msgspec

from raftlog.metadata.image import Image
from raftlog.metadata.kinds import by_group, put
from raftlog.segments.checkpoints import last_at, load_checkpoint
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Checkpoint
from raftlog.segments.parquet_files import offset_at
from replay.kernels.folding import Groups, Unaccounted
from replay.opened import Export
from replay.request import JobRequest

BEGIN_IN_BETWEEN = ("state", "diff", "history")
"""Jobs that need no record below the checkpoint that they begin with."""


class Began(msgspec.Struct, frozen=True):
    """The checkpoint that an answer began with: nothing up to its offset was read."""

    offset: int
    file: str
    state_hash: str

    @property
    def words(self) -> str:
        """Description of the beginning, for people."""
        return (
            f"Began with the checkpoint at offset {self.offset}; nothing below it was read\n"
            "(verify folds what leads to it; --from-the-beginning does without it)"
        )


def begun(export: Export, request: JobRequest) -> Export:
    """Return the export from the last checkpoint that can answer the question; without one, the
    whole export.

    A state needs a checkpoint at or before its point, a diff at or before its first point, and a
    history before its first offset.
    """
    if request.from_the_beginning:
        return export
    offsets, until_ms = [export.at_offset], None
    if request.job == "diff":
        begin = begin_offset(export, request)
        offsets.append(-1 if begin is None else begin)
    elif request.job == "history":
        offsets.append(since_of(request))
        until_ms = None if request.since_ms is None else request.since_ms - 1
    one = last_at(export.manifest.checkpoints, offset=_least(offsets), timestamp_ms=until_ms)
    if one is None:
        return export
    behind = tuple(each for each in export.segments if each.last_offset > one.offset)
    # One at least: an engine wants to see columns, where there are no rows, too.
    return replace(export, segments=behind or export.segments[-1:], begin=one)


def begin_offset(export: Export, request: JobRequest) -> int | None:
    """Return the offset where a diff begins, -1: before the first record; None: no diff."""
    if request.from_time_ms is None or request.from_offset is not None:
        return request.from_offset
    found = offset_at(open_place(export.target), export.segments, request.from_time_ms)
    return -1 if found is None else found


def since_of(request: JobRequest) -> int | None:
    """Return the offset behind which the changes of a history are asked for; None: it begins at a
    time.

    -1: all of them.
    """
    if request.from_offset is not None:
        return request.from_offset - 1
    return -1 if request.since_ms is None else None


def _least(bounds: list[int | None]) -> int | None:
    return min((one for one in bounds if one is not None), default=None)


def began(export: Export) -> Began | None:
    """Return the description of an answer's beginning; None: it is that of the log."""
    one = export.begin
    return None if one is None else Began(one.offset, one.file, one.state_hash)


def base_of(export: Export) -> Image:
    """Return the state that a fold of the export continues from.

    Raises CorruptExportError and its kinds.
    """
    if export.begin is None:
        return Image()
    return _loaded(export.target, export.manifest.owner, export.begin)


def part_of_base(export: Export, groups: Groups) -> Image:
    """Return these groups of ``base_of``, without its state hash.

    A fold of some groups starts from their states alone [a topic that is deleted before the first
    record of these groups would still hold its name].
    """
    base = base_of(export)
    if export.begin is None or groups.all:
        return base
    draft = Unaccounted(Image())
    for one in by_group(base, groups.has, imported=bool(export.manifest.origin)):
        put(draft, one.body)
    draft.offset = base.offset
    return draft.snapshot()


def topic_there(export: Export, name: str) -> str | None:
    """Return the id of the topic that has this name in ``base_of``, if there is one."""
    found = base_of(export).topic_ids.get(name)
    return None if found is None else found.hex()


@lru_cache(maxsize=1)
def _loaded(target: str, owner: tuple[str, int], one: Checkpoint) -> Image:
    """Load the image of a checkpoint. Images are immutable: a fold that goes on makes another."""
    return load_checkpoint(open_place(target), owner, one)
