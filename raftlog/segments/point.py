"""The state of an export at one point, compared with the states that controllers have recorded.

Controllers report the hash of their state at some offsets (``state_hashes`` of the manifest). The
fold must match the reports at the two offsets around the point: the one at or before it confirms
the state there, and the one at or after it confirms the bytes in between. Log hashes are compared
at the same offsets. The fold starts from a checkpoint that is followed by a matching offset, or
otherwise at the beginning of the log. (A forged checkpoint would have the right hash there only if
all of its entities were rewritten in between.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from raftlog.errors import ConfigError
from raftlog.metadata.acls import OPERATIONS_OF, AclOperation
from raftlog.metadata.config_keys import find
from raftlog.metadata.control_records import new_generation
from raftlog.metadata.entities import HASH_MASK, entity_bytes, format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KINDS, Content, decode_into
from raftlog.metadata.log_hash import LogHash, extended
from raftlog.metadata.record_text import time_text
from raftlog.metadata.snapshot import Parts, header_of
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.segments.checkpoints import batches_from, last_at, load_checkpoint, log_hash_at
from raftlog.segments.errors import ExportMismatchError, UnvouchedError
from raftlog.segments.files import Place, open_place
from raftlog.segments.manifest import RECORDS, Checkpoint, Manifest, StateHash, read_manifest
from raftlog.segments.raw import batch_bytes


class PointState(NamedTuple):
    """The state at a point of an export, and the reports that confirm it."""

    image: Image
    """State at the end of the last batch that ends at or before the point."""
    before: tuple[StateHash, ...]
    """Reports for one offset at or before the point, which match the fold; empty if the fold
    started with the empty log and there was no such report.
    """
    after: tuple[StateHash, ...]
    """Reports for one offset at or after the point, which match the fold; empty if no node vouches
    for the records up to the point.
    """
    begin: Checkpoint | None
    """The checkpoint from which the fold started, or None for the beginning of the log."""

    @property
    def vouched_by(self) -> str:
        """Text that names the nodes that vouch for the state, with their offset; or empty."""
        who = ", ".join(dict.fromkeys(one.describe() for one in self.after))
        return f"{who} at offset {self.after[0].offset}" if who else ""


class ExportedState(NamedTuple):
    """The state at a point of an export, limited to the kinds of entities that raftlog has."""

    image: Image
    header: SnapshotHeader
    """Header for a snapshot of the state, with all generations of the log."""
    vouched_by: str | None
    """Text that names the nodes that have recorded the state; empty if none, or None if the state
    is not from an export.
    """
    left_out: dict[str, int]
    """For an imported log, the number of entities by kind that raftlog does not have."""


def exported_state(
    target: str, *, offset: int | None, time_ms: int | None = None, unvouched: bool = False
) -> ExportedState:
    """Return the state at a point of an export; without an offset and a time, at its end.

    Raises ConfigError if both are given, UnvouchedError if no controller has recorded the hash of
    the state, there or later, unless ``unvouched``; otherwise like ``point_of`` and ``state_at``.
    """
    if offset is not None and time_ms is not None:
        raise ConfigError("give --at-offset or --at-time, not both")
    place = open_place(target)
    manifest = read_manifest(place)
    point = point_of(place, manifest, offset=offset, time_ms=time_ms)
    if not unvouched:
        _require_vouched(place, manifest, point)
    found = state_at(place, manifest, point)
    # An imported log has no generation; without one, nothing would be fenced or raised.
    generations = manifest.generations or (
        manifest.generation or new_generation(manifest.cluster_id),
    )
    header = header_of(found.image, cluster_id=manifest.cluster_id, generations=generations)
    image, left_out = found.image, dict[str, int]()
    if manifest.origin:
        image, left_out = own_part(image, header)
        header = header_of(image, cluster_id=manifest.cluster_id, generations=generations)
    return ExportedState(image, header, found.vouched_by, left_out)


def _require_vouched(place: Place, manifest: Manifest, point: int) -> None:
    if manifest.doubt:
        raise UnvouchedError(f"{manifest.doubt}. To use it anyway, pass --unvouched")
    recorded = any(point <= one.offset < manifest.end_offset for one in manifest.state_hashes)
    if point < manifest.end_offset and not recorded:
        raise UnvouchedError(
            f"no controller vouches for the state at offset {point} of {place}, as no state was"
            " recorded at that offset or later: choose an earlier point, or pass --unvouched to use"
            " the state anyway"
        )


def state_at(place: Place, manifest: Manifest, offset: int) -> PointState:
    """Fold an export up to an offset, and on to the next offset that a controller has recorded.

    Raises ConfigError if the export does not contain the state at the offset, ExportMismatchError
    if a controller had another state or another log; CorruptExportError, ExportError, FoldError,
    UnknownRecordError.
    """
    if not manifest.history_begin <= offset < manifest.end_offset:
        raise ConfigError(
            f"offset {offset} is not in {place}, which contains offsets {manifest.history_begin} to"
            f" {manifest.end_offset - 1}"
        )
    recorded = {
        at: tuple(reports)
        for at, reports in groupby(sorted(manifest.state_hashes), lambda one: one.offset)
        if at < manifest.end_offset
    }
    last = max((at for at in recorded if at <= offset), default=None)
    until = min((at for at in recorded if at >= offset), default=offset)
    begin = None if last is None else last_at(manifest.checkpoints, offset=last)
    if begin is None and manifest.history_begin > 0 and manifest.state_from is None:
        raise ConfigError(_begins_late(place, manifest, offset))
    image, agreed = _folded(place, manifest, begin, offset, until, recorded)
    for at in (None if begin is None else last, until):
        if at in recorded and at not in agreed:
            raise ExportMismatchError(
                f"{recorded[at][0].describe()} recorded the state at offset {at}, but no batch of"
                " this export ends there"
            )
    return PointState(
        image,
        recorded[last] if last in agreed and last is not None else (),
        recorded[until] if until in agreed else (),
        begin,
    )


def _begins_late(place: Place, manifest: Manifest, offset: int) -> str:
    known = manifest.checkpoints[0].offset if manifest.checkpoints else None
    text = f"{place} begins at offset {manifest.history_begin} and lacks the state before that"
    if known is None:
        return text
    return f"{text}: its first known state is at offset {known}, after offset {offset}"


def _folded(
    place: Place,
    manifest: Manifest,
    begin: Checkpoint | None,
    offset: int,
    until: int,
    recorded: Mapping[int, Sequence[StateHash]],
) -> tuple[Image, set[int]]:
    """Return the image at the offset, and the recorded offsets at which the fold was compared."""
    builder = ImageBuilder(Image())
    if begin is not None:
        builder = ImageBuilder(load_checkpoint(place, manifest.owner, begin))
    elif manifest.history_begin:
        builder.offset = manifest.history_begin - 1
    known = log_hash_at(begin, builder)
    agreed: set[int] = set()
    found: Image | None = None

    def compare() -> None:
        for one in recorded.get(builder.offset, ()):
            _require_same(one, builder.state_hash & HASH_MASK, known)
            agreed.add(one.offset)

    compare()
    for chunk, header in batches_from(place, manifest, builder.offset + 1):
        if header.last_offset > offset and found is None:
            found = builder.snapshot()
        if header.last_offset > until:
            break
        builder.apply_encoded(chunk, header)
        known = extended(known, batch_bytes(chunk, header))
        compare()
    return (builder.snapshot() if found is None else found), agreed


def _require_same(one: StateHash, state_hash: int, known: LogHash) -> None:
    """Raise ExportMismatchError unless a report agrees with the fold."""
    if one.state_hash != format_hash(state_hash):
        raise ExportMismatchError(
            f"at offset {one.offset} the fold of this export has the state hash"
            f" {format_hash(state_hash)}, but {one.describe()} had {one.state_hash}"
        )
    if (
        known.is_known
        and one.log_hash
        and one.log_hash_begin_offset == known.begin_offset
        and one.log_hash != known.digest.hex()
    ):
        raise ExportMismatchError(
            f"up to offset {one.offset} the log hash of this export is {known.digest.hex()}, but"
            f" {one.describe()} had the log hash {one.log_hash}"
        )


def point_of(place: Place, manifest: Manifest, *, offset: int | None, time_ms: int | None) -> int:
    """Return the offset of a point: the last one that is neither after the offset nor later than
    the time; without both, the end.

    Raises ConfigError for a time that the export does not cover; ExportError.
    """
    last = manifest.end_offset - 1 if offset is None else offset
    if time_ms is None:
        return last
    from raftlog.segments.parquet_files import offset_at

    if time_ms >= manifest.exported_ms + 1000:
        raise ConfigError(
            f"{place} was written at {manifest.exported_at} and lacks the records committed from"
            f" then to {time_text(time_ms)}. Its last offset is {manifest.end_offset - 1}"
        )
    found = offset_at(place, manifest.of_kind(RECORDS), time_ms)
    if found is None:
        begin = min((one.min_timestamp_ms for one in manifest.segments), default=0)
        raise ConfigError(
            f"{place} contains no record from {time_text(time_ms)} or before: it begins at"
            f" {time_text(begin)}"
        )
    return min(found, last)


def own_part(image: Image, header: SnapshotHeader) -> tuple[Image, dict[str, int]]:
    """Return the part of an imported state with which a raftlog cluster can start, and the number
    of entities by kind that are left out.

    Left out are the kinds of the other system, its feature levels, controllers and voters, its
    broker registrations (whose processes cannot come back here), and the configs and access control
    entries that raftlog does not know.
    """
    draft, left_out = Parts(flat=False), Counter[str]()
    for kind in KINDS:
        kept: list[bytes] = []
        for key in sorted(kind.keys(image)):
            for content in kind.contents(image, key):
                if _is_known(kind.name, content):
                    kept.append(entity_bytes(content))
                else:
                    left_out[content[0] if kind.name == "imported" else kind.name] += 1
        decode_into(draft, kind.name, kept)
    return draft.finish(header), dict(left_out)


def _is_known(kind: str, content: Content) -> bool:
    if kind == "config":
        return find(content[0], content[2]) is not None
    if kind == "acl":
        entry = content[0]
        return entry.operation in _OPERATIONS and entry.resource_type in OPERATIONS_OF
    return kind not in _OF_THE_OTHER_SYSTEM


_OPERATIONS = frozenset(AclOperation)
_OF_THE_OTHER_SYSTEM = frozenset({"broker", "feature", "imported", "leader", "voters"})
