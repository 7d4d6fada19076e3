"""Check the files of one range of offsets, as values, not as exceptions: one fault must not hide
the others.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import msgspec

from raftlog.errors import CorruptLogError, RaftlogError, WrongDataError
from raftlog.segments.bucket_rule import of_range
from raftlog.segments.compare import check_buckets, check_forms
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.manifest import RECORDS, Manifest, Segment
from raftlog.segments.place import Place
from raftlog.segments.said import Said
from raftlog.segments.verify import check_segment


class Fault(msgspec.Struct, frozen=True, order=True):
    """Something that is not as it must be.

    Offsets are inclusive; ``check`` is one of the table in docs/export.md, ``message`` says all of
    it.
    """

    first_offset: int
    last_offset: int
    check: str
    file: str
    message: str


class Checked(msgspec.Struct, frozen=True):
    """What was found out about one range of offsets."""

    faults: list[Fault]
    batches: int = 0
    records: int = 0
    ends: dict[int, int] = {}
    said: Said = Said()


def check_range(
    place: Place, manifest: Manifest, raw: Segment, offsets: Collection[int] = ()
) -> Checked:
    """Check a raw segment and the Parquet files of its offsets.

    ``offsets``: of which it is asked whether a batch ends there.
    """
    covering = [
        one
        for one in manifest.of_kind(RECORDS)
        if one.base_offset <= raw.last_offset and one.last_offset >= raw.base_offset
    ]
    faults: list[Fault] = []
    # A Parquet file belongs to the range in which it begins, so that each is hashed once.
    own = [one for one in covering if one.base_offset >= raw.base_offset]
    begins = {one.base_offset for one in own}
    for segment in (raw, *own, *(one for one in manifest.buckets if one.base_offset in begins)):
        try:
            check_segment(place, segment, *manifest.owner)
        except WrongDataError as error:
            faults.append(
                Fault(segment.base_offset, segment.last_offset, "FILE", segment.file, str(error))
            )
    if faults:
        return Checked(faults)
    asked = [offset for offset in offsets if raw.base_offset <= offset <= raw.last_offset]
    try:
        facts = check_forms(place, raw, covering, asked)
        said = facts.said
        for one in own:
            if shared := of_range(manifest, one):
                said = said.with_silent(check_buckets(place, one, shared))
    except CorruptExportError as error:
        check = "CHAIN" if error.file == raw.file else "FORMS"
        return Checked(
            [Fault(max(0, error.base_offset), raw.last_offset, check, error.file, str(error))]
        )
    except (ExportMismatchError, CorruptLogError) as error:
        return Checked([Fault(raw.base_offset, raw.last_offset, "CHAIN", raw.file, str(error))])
    except ExportError:
        # Nothing could be read: that says nothing of what is there.
        raise
    except RaftlogError as error:
        return Checked([Fault(raw.base_offset, raw.last_offset, "FILE", raw.file, str(error))])
    return Checked([], facts.batches, facts.records, facts.ends, said)


def between(raw: tuple[Segment, ...]) -> list[Fault]:
    """Epochs never go back from one file to the next; of offsets the manifest has been checked
    already.
    """
    faults = []
    for left, right in pairwise(raw):
        if right.first_epoch < left.last_epoch:
            message = (
                f"{right.describe()} begins in epoch {right.first_epoch}, and the file before it"
                f" ends in epoch {left.last_epoch}: one of the two is from another log"
            )
            faults.append(Fault(right.base_offset, right.last_offset, "CHAIN", right.file, message))
    return faults
