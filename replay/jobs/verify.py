"""Verify that an export is intact, that both of its forms are equal, and that it folds to the
states that the nodes reported.

* ``FILE``: a file is missing, differs from the manifest in size or hash, or belongs to another log.
* ``CHAIN``: a batch has a wrong CRC32C, or does not follow the previous batch in offset, epoch and
  time, within or across files.
* ``FORMS``: a Parquet row differs from the raw batch in some column.
* ``MANIFEST``: the manifest contradicts the log about its owner or feature levels.
* ``LOG_HASH``: the bytes' log hash differs from the one in the manifest, the log, or a node's
  report.
* ``CHECKPOINT``: a checkpoint is damaged, belongs to another log, is not in the manifest, or
  differs from the fold of the log.
* ``STATE``: the fold's state hash differs from the one that a node reported at an offset.

Each task checks the files of a range of offsets. An export with checkpoints is folded in slices
between them (raftlog/segments/verify.py); an export without checkpoints is folded by entity group.
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
    """Comparison at an offset for which nodes reported a state hash.

    ``said_by``: the nodes that reported ``state_hash``. ``folded``: the fold's hash; null if not
    folded.
    """

    offset: int
    epoch: int
    state_hash: str
    said_by: list[str]
    folded: str | None

    @property
    def agrees(self) -> bool:
        """Whether the fold's state hash is the same, or the log was not folded."""
        return self.folded in (None, self.state_hash)


class VerifyResult(msgspec.Struct, frozen=True):
    """Result of a verification.

    ``states``: the last checks by offset, of ``states_total``. ``end``: the end of the export; null
    if it was not folded. ``slices``: number of slices folded between the ``checkpoints``; 0 if
    none.
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
        """Whether there are no faults."""
        return not self.total


class Fold(NamedTuple):
    """Result of a fold: the state hash at each requested offset, the faults, and the number of
    slices (0 if folded by entity group).
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
    """Fold up to ``end``, inclusive: in slices between the valid checkpoints or, if there are none,
    by entity group, as only that can then be done in parallel.
    """
    if not known and pool.size > 1:
        # If the log does not fold, the single slice below finds out where.
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
    """Check the files, then fold if the files are intact and the history is complete."""
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
    """Return a fault for a state that was reported for another log: no batch ends at its offset, or
    that batch has another epoch.
    """
    if ends.get(one.offset) == one.epoch:
        return []
    ends_there = f"a batch of epoch {ends[one.offset]}" if one.offset in ends else "no batch"
    message = (
        f"{one.describe()} reported its state after a batch of epoch {one.epoch} that ends at"
        f" offset {one.offset}, but {ends_there} ends there"
    )
    return [Fault(one.offset, one.offset, "CHAIN", "", message)]


def _states(said: list[StateHash], hashes: dict[int, str]) -> list[StateCheck]:
    """Return one check per distinct report for an offset."""
    who: dict[tuple[int, int, str], list[str]] = {}
    for one in said:
        who.setdefault((one.offset, one.epoch, one.state_hash), []).append(one.describe())
    return [
        StateCheck(offset, epoch, state_hash, sorted(by), hashes.get(offset))
        for (offset, epoch, state_hash), by in sorted(who.items())
    ]


def _disagreement(one: StateCheck) -> Fault:
    message = (
        f"at offset {one.offset} the fold gives the state hash {one.folded}, but"
        f" {', '.join(one.said_by)} had {one.state_hash}: the node's memory, the export, or this"
        " build's fold is wrong"
    )
    return Fault(one.offset, one.offset, "STATE", "", message)


def render(result: VerifyResult, console: Console) -> None:
    """Print the result as text."""
    if result.states:
        table = listing(
            "",
            result.states,
            Field("offset", "offset"),
            Field("epoch", "epoch"),
            Field("state hash", "state_hash", kind=FIXED),
            Field("reported by", "said_by", ", ".join),
            Field(
                "fold",
                lambda one: "agrees" if one.agrees and one.folded else one.folded or "not folded",
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
            f"reported by {', '.join(result.end_said_by)}"
            if result.end_said_by
            else "not reported by any node"
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
        f"Verified: {', '.join(parts)}: every hash, checksum, offset and epoch is correct, and"
        " both forms are equal",
        soft_wrap=True,
    )
    if result.end is not None:
        agree = "recorded state agrees" if result.states_total == 1 else "recorded states agree"
        console.print(f"{result.states_total} {agree} with the fold")
        if result.checkpoints:
            console.print(
                f"{counted(result.checkpoints, 'checkpoint')}: each equals the fold of the log\n"
                f"(folded in {counted(result.slices, 'slice')})"
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
