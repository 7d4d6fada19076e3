"""Verification of an export, beyond the files of one range of offsets.

**The manifest** makes statements about the log that only a signature covers; they are compared with
the log. **Checkpoints** are first checked as files. Only a fold shows which state a checkpoint
should contain: the log is folded in slices, from one checkpoint to another, and each slice verifies
the checkpoints within it. The first slice begins with the empty state, so all slices together, in
any order or in parallel, are a fold from the beginning. A slice trusts the checkpoint with which it
begins. The previous slice verifies that checkpoint, so the slice that leads to a forged state
detects it.

**Witnesses** vouch for the bytes between two offsets. A wrong log hash is a fault. Bytes without a
witness are neither a fault nor proven: they cause a warning. So does a node's statement that only
the manifest records, as anyone who can rewrite the files can also rewrite the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from raftlog import batch
from raftlog.errors import FatalError, WrongDataError
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.fold import FileBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import LogHash, extended
from raftlog.metadata.records import UnknownRecordError
from raftlog.metadata.versions import METADATA_VERSION
from raftlog.segments.checkpoints import (
    batches_from,
    checkpoint_files,
    load_checkpoint,
)
from raftlog.segments.files import Place, open_place
from raftlog.segments.log_hashes import Claim, Vouched
from raftlog.segments.manifest import (
    CHECKPOINTS,
    MANIFEST_NAME,
    RAW,
    Checkpoint,
    Manifest,
    Segment,
    StateHash,
    read_manifest,
)
from raftlog.segments.range_checks import Checked, Fault, check_segment
from raftlog.segments.raw import corrupt, read_headed

MANIFEST_CHECK = "MANIFEST"


def claim_faults(manifest: Manifest, checked: Iterable[Checked]) -> Iterator[Fault]:
    """Yield the contradictions between the manifest and the records. ``checked``: the results for
    all ranges, by offset.
    """
    ranges = [one.record_facts for one in checked]
    own = next((one.own for one in ranges if one.own >= 0), -1)
    imported = next((one.imported for one in ranges if one.imported >= 0), -1)
    if manifest.origin and own >= 0:
        yield _fault(
            own,
            f"it claims to describe the log of {manifest.origin}, but only raftlog's own log can"
            f" contain the record at offset {own}: the audit would skip rules",
        )
    if not manifest.origin and imported >= 0:
        yield _fault(
            imported,
            f"it claims to describe raftlog's own log, but the record at offset {imported} is from"
            " another system",
        )
    levels: dict[str, int] = {}
    for one in ranges:
        levels |= one.levels
    yield from _levels(manifest, levels)


def _levels(manifest: Manifest, levels: dict[str, int]) -> Iterator[Fault]:
    """Yield the faults of the feature levels at the end. A level set before the beginning of an
    export is only in the manifest.
    """
    last = manifest.end_offset - 1
    claimed = {METADATA_VERSION: manifest.metadata_version or 0}
    if manifest.features is not None:
        claimed |= dict.fromkeys(levels, 0) | manifest.features
        if manifest.features.get(METADATA_VERSION, 0) != (manifest.metadata_version or 0):
            yield _fault(last, "its metadata_version differs from the level in its features")
    whole = not manifest.history_begin or manifest.state_from is not None
    for name, level in sorted(claimed.items()):
        if name not in levels and not whole:
            continue
        if level != levels.get(name, 0):
            yield _fault(
                last,
                f"it claims level {level} of {name} at the end, but the log sets"
                f" {levels.get(name, 0)}",
            )


def _fault(offset: int, why: str) -> Fault:
    return Fault(
        offset,
        offset,
        MANIFEST_CHECK,
        MANIFEST_NAME,
        f"{MANIFEST_NAME} does not match this log: {why}",
    )


def silent_columns(checked: Iterable[Checked]) -> list[str]:
    """Return warnings about Parquet files that lack columns for which the log has values."""
    return [
        f"{file} lacks the column{'s' if columns[1:] else ''} {', '.join(columns)}, for which the"
        f" log has values from offset {min(silent.values())} on: an older raftlog wrote the file,"
        " or the values were removed. The audit, SQL and other readers of columns do not see them:"
        " export again into an empty directory."
        for one in checked
        for file, silent in sorted(one.record_facts.silent.items())
        for columns in (sorted(silent),)
    ]


CHECKPOINT_CHECK = "CHECKPOINT"


def checkpoint_faults(place: Place, manifest: Manifest, last_offset: int) -> Iterator[Fault]:
    """Yield the faults of the checkpoints up to an offset, without a fold.

    Each must exist, be complete, belong to this log, and match the manifest; and the manifest must
    list each file.
    """
    for one in manifest.checkpoints:
        if one.offset > last_offset:
            break
        try:
            load_checkpoint(place, manifest.owner, one)
        except WrongDataError as error:
            yield Fault(one.offset, one.offset, CHECKPOINT_CHECK, one.file, str(error))
    yield from _unnamed(place, manifest)


def _unnamed(place: Place, manifest: Manifest) -> Iterator[Fault]:
    known = {one.file for one in manifest.checkpoints} | {one.file for one in manifest.retired}
    for name in checkpoint_files(place):
        file, end_offset = f"{CHECKPOINTS}/{name}", name.partition("-")[0]
        # A writer may be about to publish a file beyond the end.
        if file in known or not end_offset.isdigit() or int(end_offset) > manifest.end_offset:
            continue
        last = int(end_offset) - 1
        message = (
            f"{file} exists, but {MANIFEST_NAME} does not list it: the entry was removed, or a"
            " writer crashed and left the file (the next raftlog export removes such files)"
        )
        yield Fault(last, last, CHECKPOINT_CHECK, file, message)


class Slice(msgspec.Struct, frozen=True):
    """The log between two checkpoints, which may contain further checkpoints.

    ``begin``: the first checkpoint, or None for the beginning of the export. ``checkpoints``: those
    within the slice, including the one at its end. ``last_offset``: inclusive.
    """

    begin: Checkpoint | None
    checkpoints: tuple[Checkpoint, ...]
    last_offset: int


class FoldedSlice(msgspec.Struct, frozen=True):
    """Result of folding a slice.

    ``hashes``: the state hash at each requested offset; for an offset within a batch, the hash
    after the previous batch. ``end_offset``: exclusive. ``epoch`` and ``timestamp_ms``: those of
    the last batch.
    """

    end_offset: int
    epoch: int
    timestamp_ms: int
    hashes: dict[int, str]
    faults: list[Fault]


def plan_slices(
    checkpoints: Iterable[Checkpoint], manifest: Manifest, end: int, count: int
) -> list[Slice]:
    """Return about ``count`` slices of roughly equal size, up to offset ``end`` (inclusive).

    ``checkpoints``: the intact ones, by offset.
    """
    known = [one for one in checkpoints if one.offset <= end]
    first, records = manifest.history_begin, end + 1 - manifest.history_begin
    begins: list[Checkpoint | None] = [None]
    for number in range(1, count):
        wanted = first + records * number // count
        near = min(known, key=lambda one: abs(one.offset - wanted), default=None)
        if near is not None and near.offset < end and near not in begins:
            begins.append(near)
    slices = []
    for begin, after in pairwise([*begins, None]):
        low = -1 if begin is None else begin.offset
        high = end if after is None else after.offset
        way = tuple(one for one in known if low < one.offset <= high)
        slices.append(Slice(begin, way, high))
    return slices


def fold_slice(
    place: Place,
    manifest: Manifest,
    one: Slice,
    offsets: Collection[int],
    log_hashes: Mapping[int, LogHash],
) -> FoldedSlice:
    """Fold the raw batches of a slice, whose bytes were verified before, and compare the results
    with its checkpoints.

    ``log_hashes``: the log hash at each checkpoint's offset. Raises CorruptExportError and its
    subclasses, ExportError: files are checked elsewhere.
    """
    folding = _Folding(place, manifest, one, offsets, log_hashes)
    for chunk, header in batches_from(place, manifest, folding.next_offset, checked=True):
        if header.last_offset > one.last_offset or not folding.take(chunk, header):
            break
    return folding.result()


class _Folding:
    def __init__(
        self,
        place: Place,
        manifest: Manifest,
        one: Slice,
        offsets: Collection[int],
        log_hashes: Mapping[int, LogHash],
    ) -> None:
        self._slice, self._log_hashes = one, log_hashes
        begin = one.begin
        if begin is None:
            self._draft = FileBuilder(Image())
            self._draft.offset = manifest.history_begin - 1
        else:
            self._draft = FileBuilder(load_checkpoint(place, manifest.owner, begin))
        low = self._draft.offset
        self._wanted = sorted(
            {offset for offset in offsets if low < offset <= one.last_offset}, reverse=True
        )
        self._due = list(reversed(one.checkpoints))
        self._hashes: dict[int, str] = {}
        self._faults: list[Fault] = []
        self._broken = False

    @property
    def next_offset(self) -> int:
        return self._draft.offset + 1

    def _state_hash(self) -> str:
        return format_hash(self._draft.state_hash & HASH_MASK)

    def take(self, chunk: bytes, header: batch.BatchHeader) -> bool:
        """Fold the next batch. Return whether that succeeded."""
        self._pass(header.last_offset)
        try:
            self._draft.apply_encoded(chunk, header)
        except (FatalError, UnknownRecordError) as error:
            message = f"the log does not fold from offset {header.base_offset} on: {error}"
            self._faults.append(
                Fault(header.base_offset, self._slice.last_offset, "STATE", "", message)
            )
            self._broken = True
            return False
        while self._due and self._due[-1].offset == header.last_offset:
            self._compare(self._due.pop())
        return True

    def _pass(self, next_last_offset: int) -> None:
        """Record the hash for requested offsets before the next batch."""
        while self._wanted and self._wanted[-1] < next_last_offset:
            self._hashes[self._wanted.pop()] = self._state_hash()
        while self._due and self._due[-1].offset < next_last_offset:
            self._wrong(self._due.pop(), "no batch ends there")

    def _compare(self, one: Checkpoint) -> None:
        draft, known = self._draft, self._log_hashes.get(one.offset)
        if one.state_hash != self._state_hash():
            self._wrong(
                one,
                f"folding the log gives the state hash {self._state_hash()}, but the checkpoint has"
                f" {one.state_hash}",
            )
        elif (one.epoch, one.timestamp_ms) != (draft.epoch, draft.timestamp_ms):
            self._wrong(
                one,
                f"the batch that ends there has epoch {draft.epoch} at {draft.timestamp_ms} ms, but"
                f" the checkpoint has epoch {one.epoch} at {one.timestamp_ms} ms",
            )
        elif (
            one.log_hash
            and known is not None
            and known.digest
            and (
                one.log_hash_begin_offset,
                one.log_hash,
            )
            != (known.begin_offset, known.digest.hex())
        ):
            self._wrong(
                one,
                f"the log has the log hash {known.digest.hex()} there, but the checkpoint has"
                f" {one.log_hash}",
            )

    def _wrong(self, one: Checkpoint, why: str) -> None:
        begin = self._slice.begin
        since = "the beginning" if begin is None else f"the checkpoint at offset {begin.offset}"
        message = (
            f"{one.describe()} does not contain the state that folding the log from {since} gives:"
            f" {why}. A reader that started with it saw a wrong state"
        )
        self._faults.append(Fault(one.offset, one.offset, CHECKPOINT_CHECK, one.file, message))

    def result(self) -> FoldedSlice:
        draft = self._draft
        if not self._broken:
            self._pass(self._slice.last_offset + 1)
        return FoldedSlice(
            draft.offset + 1, draft.epoch, draft.timestamp_ms, self._hashes, self._faults
        )


LOG_HASH_CHECK = "LOG_HASH"
WITNESS_KINDS = {
    "asked": "answered just now",
    "manifest": "reported earlier, according to the manifest",
    "log": "in the log itself",
    "signature": "signed the manifest",
}
"""Descriptions of the values of ``Witness.how``."""


class Witness(msgspec.Struct, frozen=True):
    """A witness for the bytes between two offsets (inclusive).

    ``how``: ``asked`` (a node just answered), ``manifest`` (a recorded report), ``log`` (progress
    records), ``signature``.
    """

    who: str
    how: str
    first_offset: int
    last_offset: int


class Vouching(msgspec.Struct, frozen=True):
    """The log hash at ``last_offset``, its witnesses, and its faults and gaps. The hash is empty if
    unknown.
    """

    log_hash: str
    log_hash_begin_offset: int
    last_offset: int
    witnesses: list[Witness]
    faults: list[Fault]
    warnings: list[str]


def claims_beyond_end(
    end: LogHash, asked: Sequence[StateHash], read: Callable[[int], bytes]
) -> list[Claim]:
    """Compare the nodes' new reports for offsets after the export's end with the log.

    ``read`` returns the log from an offset onwards (empty at its end). A hash there covers the
    export, too.
    """
    wanted = {one.offset + 1 for one in asked if one.log_hash and one.offset >= end.end_offset}
    there: dict[int, LogHash] = {}
    known = end
    while wanted and known.digest and known.end_offset < max(wanted):
        chunk = read(known.end_offset)
        if not chunk:
            break
        for header in batch.headers(chunk, expect_offset=known.end_offset):
            known = extended(known, chunk[header.position : header.position + header.size])
            if known.end_offset in wanted:
                there[known.end_offset] = known
    return [
        Claim(
            one.offset + 1,
            one.log_hash_begin_offset,
            one.log_hash,
            one.describe(),
            (one.log_hash_begin_offset, one.log_hash) == (found.begin_offset, found.digest.hex()),
            found.digest.hex(),
            True,
        )
        for one in asked
        if one.log_hash and (found := there.get(one.offset + 1)) is not None
    ]


def judge(
    manifest: Manifest,
    found: Vouched,
    later: Iterable[Claim] = (),
    *,
    asked: bool = False,
    signed_by: str = "",
) -> Vouching:
    """Return the verdict on all claims.

    ``later``: the result of ``claims_beyond_end``. ``asked``: whether nodes were asked.
    ``signed_by``: the public key with which the manifest is signed, or empty if none was given.
    """
    end = found.end
    last, first = end.end_offset - 1, manifest.history_begin
    claims = (*found.claims, *later)
    faults = [_wrong(claim) for claim in (*claims, *found.wrong) if not claim.agrees]
    faults += _faults(manifest, found)
    witnesses = _witnesses(found, claims, last)
    if signed_by:
        witnesses.append(Witness(f"key {signed_by[:16]}…", "signature", first, last))
    return Vouching(
        end.digest.hex() if end.is_known else "",
        end.begin_offset,
        last,
        witnesses,
        faults,
        list(_warnings(manifest, found, witnesses, asked=asked)),
    )


def _wrong(claim: Claim) -> Fault:
    here = f"have the log hash {claim.found}" if claim.found else "end inside a batch"
    message = (
        f"the exported bytes from offset {claim.begin_offset} to {claim.end_offset - 1} {here}, but"
        f" {claim.who} has {claim.digest}: these are not the committed bytes"
    )
    return Fault(claim.begin_offset, claim.end_offset - 1, LOG_HASH_CHECK, "", message)


def _faults(manifest: Manifest, found: Vouched) -> list[Fault]:
    last = found.end.end_offset - 1
    faults = []
    if found.manifest_agrees is False:
        message = (
            f"the bytes in the files have the log hash {found.end.digest.hex()} at the end, offset"
            f" {last}, but the manifest has {manifest.log_hash}: these are not the exported bytes"
        )
        faults.append(Fault(manifest.history_begin, last, LOG_HASH_CHECK, "", message))
    if found.unnamed >= 0:
        message = (
            f"the progress record at offset {found.unnamed} contains no log hash, but earlier ones"
            " do: controllers always write it"
        )
        faults.append(Fault(found.unnamed, found.unnamed, LOG_HASH_CHECK, "", message))
    return faults


def _witnesses(found: Vouched, claims: Iterable[Claim], last: int) -> list[Witness]:
    """Return the furthest correct claim of each witness, as it covers everything before it."""
    furthest: dict[tuple[bool, str], Claim] = {}
    for claim in claims:
        if claim.agrees:
            furthest[claim.asked, claim.who] = claim
    witnesses = [
        Witness(
            who,
            "asked" if asked else "manifest",
            max(claim.begin_offset, found.first_known),
            min(claim.end_offset - 1, last),
        )
        for (asked, who), claim in sorted(furthest.items(), key=lambda one: (not one[0][0], one[0]))
    ]
    if found.recorded and not found.wrong:
        count = f"{found.recorded} progress record{'s' if found.recorded > 1 else ''}"
        witnesses.append(Witness(count, "log", found.first_known, found.recorded_end - 1))
    # A report for the offset where the known bytes begin covers none of them.
    return [one for one in witnesses if one.first_offset <= one.last_offset]


def _warnings(
    manifest: Manifest, found: Vouched, witnesses: Sequence[Witness], *, asked: bool
) -> Iterable[str]:
    last, begin = found.end.end_offset - 1, manifest.history_begin
    if begin and manifest.state_from is None:
        yield f"This export begins at offset {begin}: it lacks the earlier records."
    signed = any(one.how == "signature" for one in witnesses)
    if manifest.origin and not signed:
        yield (
            f"No node vouches for the bytes, because nodes of {manifest.origin} have no log hash:"
            " sign the export."
        )
        return
    if not found.end.is_known:
        if not signed:
            yield (
                "No node vouches for the bytes: the chain of log hashes begins before this export."
            )
        return
    strong = [one for one in witnesses if one.how in ("asked", "signature")]
    nodes = [one for one in witnesses if one.how in ("asked", "manifest", "signature")]
    reached = max((one.last_offset for one in nodes), default=begin - 1)
    if reached < last:
        yield f"No node vouches for {_offsets(max(reached + 1, begin), last)}."
    first = min((one.first_offset for one in nodes), default=last + 1)
    if begin < first <= last:
        yield (
            f"No node vouches for {_offsets(begin, first - 1)}: the log hash begins at offset"
            f" {first}."
        )
    if found.adopted:
        yield f"The log hash at its beginning is only a claim by {found.adopted}."
    if asked and not any(one.how == "asked" for one in witnesses):
        yield "None of the nodes that were asked vouches for any of the bytes."
    elif nodes and not strong:
        yield (
            "The nodes' reports are recorded only in this export. A person who can rewrite its"
            " files can rewrite them, too: ask the nodes (--bootstrap-controller), or check a"
            " signature (--public-key)."
        )


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def verify_export(
    target: Path | str | Place, progress: Callable[[Segment], None] | None = None
) -> Manifest:
    """Check the manifest, every file's owner, size and hash, every batch of the raw segments
    (CRC32C, offsets, counts), and each checkpoint against the manifest.

    Only a fold can verify a checkpoint's state. ``progress`` is called after each good segment.
    Raises ExportError or one of its subclasses, at the first fault.
    """
    place = open_place(target)
    manifest = read_manifest(place)
    for segment in manifest.segments:
        check_segment(place, segment, manifest.cluster_id, manifest.generation)
        if segment.kind == RAW:
            _check_batches(place, segment)
        if progress is not None:
            progress(segment)
    for bucket in manifest.buckets:
        check_segment(place, bucket, manifest.cluster_id, manifest.generation)
    for one in manifest.checkpoints:
        load_checkpoint(place, manifest.owner, one)
    return manifest


def _check_batches(place: Place, segment: Segment) -> None:
    """Check the batches of a segment: the hash shows only that the file is unchanged, this check
    shows that it is the log.
    """
    batches, offset = 0, segment.base_offset
    for _, header in read_headed(place, segment):
        batches, offset = batches + 1, header.end_offset
    if (batches, offset) != (segment.batches, segment.last_offset + 1):
        raise corrupt(
            segment,
            f"expected {segment.batches} batches up to offset {segment.last_offset}, found"
            f" {batches} up to {offset - 1}",
        )
