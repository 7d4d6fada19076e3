"""Verify: the export is whole, both of its forms hold the same, and it folds to the states that the
nodes had.

* ``FILE``: a file is missing, has another size or hash than the manifest says, or belongs to
  another log.
* ``CHAIN``: a batch has a wrong CRC32C, or does not follow the one before in offset, epoch and
  time; between files, too.
* ``FORMS``: a row of Parquet is not what the raw batch says, in any column.
* ``MANIFEST``: the manifest says of whose log this is, or of feature levels, what the log denies.
* ``LOG_HASH``: the log hash of the bytes is not the one that a node, the log or the manifest says.
* ``CHECKPOINT``: a checkpoint is damaged, another log's or not in the manifest, or not the state
  that the log comes to.
* ``STATE``: the state hash of the fold is not the one that a node had at an offset.

Tasks check the files, each a range of offsets. An export with checkpoints is folded in slices
between them (raftlog/segments/verify.py), one without by entity group.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from rich.console import Console

from raftlog.errors import FatalError
from raftlog.metadata.entities import format_hash
from raftlog.metadata.log_hash import LogHash
from raftlog.segments.files import open_place
from raftlog.segments.log_hashes import vouched
from raftlog.segments.manifest import RAW, Checkpoint, Segment, StateHash
from raftlog.segments.range_checks import Checked, Fault, check_range, epoch_faults
from raftlog.segments.verify import (
    WITNESS_KINDS,
    FoldedSlice,
    Slice,
    Vouching,
    checkpoint_faults,
    claim_faults,
    fold_slice,
    judge,
    plan_slices,
    silent_columns,
)
from raftlog.text import counted
from replay.engine.fold import state_hashes
from replay.engine.pool import Pool
from replay.engine.reading import end_of
from replay.errors import ReplayError
from replay.export import Export
from replay.jobs.state import Point
from replay.request import JobRequest
from replay.text import FIXED, Field, listing

SLICES_PER_WORKER = 2


class StateCheck(msgspec.Struct, frozen=True):
    """One offset at which nodes have said their state.

    ``said_by``: those that said ``state_hash``; ``folded`` None: not folded.
    """

    offset: int
    epoch: int
    state_hash: str
    said_by: list[str]
    folded: str | None

    @property
    def agrees(self) -> bool:
        """True if the fold has the same state hash, or was not made."""
        return self.folded in (None, self.state_hash)


class VerifyResult(msgspec.Struct, frozen=True):
    """``states`` are the last checks by offset, of ``states_total``.

    ``end``: where the export ends; None if it was not folded. ``slices``: the number of slices that
    were folded between the ``checkpoints``; 0 if there are none.
    """

    files: int
    batches: int
    records: int
    first_offset: int
    last_offset: int
    end: Point | None
    state_hash: str | None
    end_said_by: list[str]
    not_folded: str
    vouching: Vouching | None
    states_total: int
    states: list[StateCheck]
    total: int
    faults: list[Fault]
    checkpoints: int = 0
    slices: int = 0

    @property
    def passed(self) -> bool:
        """True if the verification found nothing."""
        return not self.total


class Fold(NamedTuple):
    """Result of a fold: the state hash at each requested offset, the findings, and the number of
    slices (0: folded by entity group).
    """

    hashes: dict[int, str]
    faults: list[Fault]
    slices: int = 0


def _fold(
    export: Export,
    pool: Pool,
    known: list[Checkpoint],
    log_hashes: dict[int, LogHash],
    offsets: Collection[int],
    end: int,
) -> Fold:
    """Fold up to ``end``, inclusive: in slices between the valid checkpoints, or by entity group.

    Without checkpoints only the groups can be folded at the same time.
    """
    if not known and pool.size > 1:
        # A log that does not fold: one slice finds out where.
        with suppress(FatalError, ReplayError):
            hashes = state_hashes(export, pool, offsets)
            return Fold({offset: format_hash(each) for offset, each in hashes.items()}, [])
    count = SLICES_PER_WORKER * pool.size if pool.size > 1 else 1
    slices = plan_slices(known, export.manifest, end, count)
    work = partial(_fold_slice, export, sorted(offsets), log_hashes)
    parts = list(pool.map(work, slices))
    folded = {offset: each for part in parts for offset, each in part.hashes.items()}
    return Fold(folded, [fault for part in parts for fault in part.faults], len(parts))


def _check(export: Export, offsets: list[int], raw: Segment) -> Checked:
    return check_range(open_place(export.target), export.manifest, raw, offsets)


def _fold_slice(
    export: Export, offsets: list[int], log_hashes: dict[int, LogHash], one: Slice
) -> FoldedSlice:
    return fold_slice(open_place(export.target), export.manifest, one, offsets, log_hashes)


def run(export: Export, request: JobRequest, pool: Pool) -> VerifyResult:
    """Check the files, then fold, if they are whole and the history is."""
    manifest, raw = export.manifest, _raw_segments(export)
    said = [one for one in manifest.state_hashes if one.offset <= raw[-1].last_offset]
    offsets = sorted({one.offset for one in said})
    checked = list(pool.map(partial(_check, export, offsets), raw))
    faults = epoch_faults(raw) + [fault for one in checked for fault in one.faults]
    ends = {offset: epoch for one in checked for offset, epoch in one.ends.items()}
    not_folded, end = "", None
    vouching, log_hashes = None, dict[int, LogHash]()
    if not faults:
        found = vouched(open_place(export.target), manifest, _last_offset(export, raw))
        vouching, log_hashes = judge(manifest, found), found.at_checkpoints
        vouching.warnings.extend(silent_columns(checked))
        faults += vouching.faults
        if raw == manifest.of_kind(RAW):
            faults += claim_faults(manifest, checked)
    place, last = open_place(export.target), raw[-1].last_offset
    damaged = list(checkpoint_faults(place, manifest, last))
    faults += damaged
    bad = {one.file for one in damaged}
    known = [one for one in manifest.checkpoints if one.offset <= last and one.file not in bad]
    folded = Fold({}, [])
    if vouching is None:
        not_folded = "files are damaged"
    elif manifest.history_begin and manifest.state_from is None:
        not_folded = f"history begins at offset {manifest.history_begin}"
    else:
        end = Point(*end_of(export))
        known = [one for one in known if one.offset <= end.offset]
        said = [one for one in said if one.offset <= end.offset]
        wanted = {end.offset, *(one.offset for one in said)}
        folded = _fold(export, pool, known, log_hashes, wanted, end.offset)
        faults += folded.faults
        faults += [fault for one in said for fault in _misplaced(one, ends)]
        if manifest.differs_from is not None and manifest.differs_from <= end.offset:
            at = manifest.differs_from
            faults.append(Fault(at, at, "STATE", "", manifest.doubt))
    states = _states(said, folded.hashes)
    faults += [_disagreement(one) for one in states if not one.agrees]
    faults.sort()
    return VerifyResult(
        files=len(raw) + len(export.segments) + len(export.bucket_files()) + len(known),
        batches=sum(one.batches for one in checked),
        records=sum(one.records for one in checked),
        first_offset=raw[0].base_offset,
        last_offset=raw[-1].last_offset,
        end=end,
        state_hash=None if end is None else folded.hashes.get(end.offset),
        end_said_by=(
            []
            if end is None
            else [who for one in states if one.offset == end.offset for who in one.said_by]
        ),
        not_folded=not_folded,
        vouching=vouching,
        states_total=len(states),
        states=states[-request.limit :],
        total=len(faults),
        faults=faults[: request.limit],
        checkpoints=len(known),
        slices=folded.slices if known else 0,
    )


def _raw_segments(export: Export) -> tuple[Segment, ...]:
    """Return the raw segments of the offsets in question."""
    last = export.segments[-1].last_offset
    return tuple(one for one in export.manifest.of_kind(RAW) if one.base_offset <= last)


def _last_offset(export: Export, raw: tuple[Segment, ...]) -> int:
    return raw[-1].last_offset if export.at_offset is None else export.at_offset


def _misplaced(one: StateHash, ends: dict[int, int]) -> list[Fault]:
    """Return a state that was said of another log's offsets: no batch ends there, or one of another
    epoch.
    """
    if ends.get(one.offset) == one.epoch:
        return []
    there = f"one of epoch {ends[one.offset]}" if one.offset in ends else "none"
    message = (
        f"{one.describe()} has said its state after a batch of epoch {one.epoch} that ends at"
        f" offset {one.offset}: there is {there}"
    )
    return [Fault(one.offset, one.offset, "CHAIN", "", message)]


def _states(said: list[StateHash], hashes: dict[int, str]) -> list[StateCheck]:
    """Return one check for each different thing said of an offset."""
    who: dict[tuple[int, int, str], list[str]] = {}
    for one in said:
        who.setdefault((one.offset, one.epoch, one.state_hash), []).append(one.describe())
    return [
        StateCheck(offset, epoch, state_hash, sorted(by), hashes.get(offset))
        for (offset, epoch, state_hash), by in sorted(who.items())
    ]


def _disagreement(one: StateCheck) -> Fault:
    message = (
        f"at offset {one.offset} the fold gives the state hash {one.folded}, and"
        f" {', '.join(one.said_by)} had {one.state_hash}: the node's memory, the export, or the"
        " fold of this build is not right"
    )
    return Fault(one.offset, one.offset, "STATE", "", message)


def render(result: VerifyResult, console: Console) -> None:
    """Print the result for people."""
    if result.states:
        table = listing(
            "",
            result.states,
            Field("offset", "offset"),
            Field("epoch", "epoch"),
            Field("state hash", "state_hash", kind=FIXED),
            Field("said by", "said_by", ", ".join),
            Field(
                "fold",
                lambda one: "agrees" if one.agrees and one.folded else one.folded or "not made",
            ),
        )
        console.print(table.table())
        if len(result.states) < result.states_total:
            console.print(
                f"the last {len(result.states)} of {result.states_total} states (raise --limit for"
                " more)"
            )
    if result.vouching is not None:
        _render_vouching(result.vouching, console)
    for fault in result.faults:
        console.print(
            f"{fault.check}: {fault.message}", highlight=False, soft_wrap=True, markup=False
        )
    if result.end is not None:
        by = (
            f"said by {', '.join(result.end_said_by)}"
            if result.end_said_by
            else "no node has said it there"
        )
        console.print(
            f"State hash at the end, offset {result.end.offset}: {result.state_hash} ({by})",
            soft_wrap=True,
        )
    elif result.not_folded:
        console.print(f"Not folded: {result.not_folded}")
    if not result.passed:
        console.print(
            f"Verification failed: {counted(result.total, 'fault')} in"
            f" {counted(result.files, 'file')}"
        )
        return
    parts = (
        counted(result.files, "file"),
        counted(result.batches, "batch", "batches"),
        counted(result.records, "record"),
        f"offsets {result.first_offset} to {result.last_offset}",
    )
    console.print(
        f"Verified: {', '.join(parts)}: every hash, checksum, offset and epoch, and both forms hold"
        " the same",
        soft_wrap=True,
    )
    if result.end is not None:
        agree = "recorded state agrees" if result.states_total == 1 else "recorded states agree"
        console.print(f"{result.states_total} {agree} with the fold")
        if result.checkpoints:
            console.print(
                f"{counted(result.checkpoints, 'checkpoint')}: each holds the state that the log"
                f" comes to\n(folded in {counted(result.slices, 'slice')})"
            )


def _render_vouching(vouching: Vouching, console: Console) -> None:
    if vouching.log_hash:
        console.print(
            f"Log hash at offset {vouching.last_offset}: {vouching.log_hash}", soft_wrap=True
        )
    for one in vouching.witnesses:
        console.print(
            f"{one.who} ({WITNESS_KINDS[one.how]}): offsets {one.first_offset} to"
            f" {one.last_offset}",
            soft_wrap=True,
            markup=False,
        )
    for warning in vouching.warnings:
        console.print(f"WARNING: {warning}", soft_wrap=True, markup=False)
