"""Files that an export does not count: what a writer that died left behind, what was merged into
other files, and checkpoints that are too many.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from raftlog.segments import files
from raftlog.segments.errors import ExportError
from raftlog.segments.manifest import BUCKETS, CHECKPOINTS, KINDS, Manifest
from raftlog.segments.manifest_model import FILES
from raftlog.segments.place import Place

KEEP_RETIRED_MS = 3_600_000
"""So long files that were merged stay: whoever has read the manifest before may be reading them."""
_MADE_AGAIN = (CHECKPOINTS, BUCKETS)
"""Directories of what can be made again from the log, wherever in it it lies."""


def remove_leftovers(place: Place, manifest: Manifest) -> None:
    """Remove what a writer that crashed left behind.

    Raises ExportError for a file that is not ours, OSError.
    """
    known = {segment.file for segment in manifest.segments} | {one.file for one in manifest.retired}
    for kind in KINDS:
        for name in place.names(kind):
            if f"{kind}/{name}" in known:
                continue
            ours = FILES[kind].fullmatch(name.removeprefix(files.TEMP_PREFIX))
            if ours and (name.startswith(files.TEMP_PREFIX) or int(ours[1]) >= manifest.end_offset):
                place.remove(f"{kind}/{name}")
            elif not name.startswith("."):
                raise _foreign(place, f"{kind}/{name}")
    known |= {one.file for one in manifest.checkpoints} | {one.file for one in manifest.buckets}
    there = set(place.names(""))
    for kind in _MADE_AGAIN:
        for name in place.names(kind) if kind in there else ():
            file = f"{kind}/{name}"
            if file in known:
                continue
            if FILES[kind].fullmatch(name.removeprefix(files.TEMP_PREFIX)):
                place.remove(file)
            elif not name.startswith("."):
                raise _foreign(place, file)


def _foreign(place: Place, file: str) -> ExportError:
    return ExportError(f"{place}/{file} is not part of this export: move it away")


def remove_retired(place: Place, manifest: Manifest, now_ms: int) -> Manifest:
    """Remove retired files whose time is over; the manifest without them. Raises OSError."""
    over = [one for one in manifest.retired if one.since_ms + KEEP_RETIRED_MS <= now_ms]
    counting = (manifest.segments, manifest.checkpoints, manifest.buckets)
    counted = {one.file for some in counting for one in some}
    for one in over:
        if one.file in counted:
            raise ExportError(
                f"{place}: the manifest names {one.file} both as part of the export and as retired"
            )
        # Gone already, if a writer crashed between this and its manifest.
        with suppress(FileNotFoundError):
            place.remove(one.file)
    return (
        replace(manifest, retired=tuple(one for one in manifest.retired if one not in over))
        if over
        else manifest
    )
