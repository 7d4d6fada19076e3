"""What is wrong with the checkpoints of an export, as far as files alone show it.

Which state a checkpoint should hold only a fold knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.errors import WrongDataError
from raftlog.segments.checkpoints import load_checkpoint, names
from raftlog.segments.manifest import CHECKPOINTS, MANIFEST_NAME, Manifest
from raftlog.segments.place import Place
from raftlog.segments.ranges import Fault

CHECK = "CHECKPOINT"


def checkpoint_faults(place: Place, manifest: Manifest, last_offset: int) -> Iterator[Fault]:
    """What is wrong with the checkpoints up to an offset, without a fold: each is there, whole, of
    this log, and says what the manifest says; and none is there that the manifest does not name.
    """
    for one in manifest.checkpoints:
        if one.offset > last_offset:
            break
        try:
            load_checkpoint(place, manifest.owner, one)
        except WrongDataError as error:
            yield Fault(one.offset, one.offset, CHECK, one.file, str(error))
    yield from _unnamed(place, manifest)


def _unnamed(place: Place, manifest: Manifest) -> Iterator[Fault]:
    known = {one.file for one in manifest.checkpoints} | {one.file for one in manifest.retired}
    for name in names(place):
        file, end_offset = f"{CHECKPOINTS}/{name}", name.partition("-")[0]
        # What lies beyond the end may be of a writer that is about to publish it.
        if file in known or not end_offset.isdigit() or int(end_offset) > manifest.end_offset:
            continue
        last = int(end_offset) - 1
        message = (
            f"{file} is there, and {MANIFEST_NAME} does not name it: it was dropped from there, or"
            " a writer that crashed has left it (the next raftlog export removes such files)"
        )
        yield Fault(last, last, CHECK, file, message)
