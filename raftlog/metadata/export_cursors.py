"""Export cursors in the image: how far exports of the log have come, so that no node drops what one
of them still needs.
"""

from __future__ import annotations

from raftlog.metadata.entities import ExportCursor
from raftlog.metadata.image import ImageDraft
from raftlog.wire.records.v1 import records_pb2 as pb


def fold_export_cursor(
    image: ImageDraft, message: pb.ExportCursorRecord, offset: int, epoch: int
) -> None:
    """Fold an ExportCursorRecord. Raises KeyError for the removal of a cursor that is not there."""
    name = message.name
    old = image.export_cursors.get(name)
    if message.HasField("end_offset"):
        new = ExportCursor(name, message.end_offset, message.target, offset, image.timestamp_ms)
        image.export_cursors[name] = new
    else:
        new = None
        del image.export_cursors[name]
    image.replace("export_cursor", (), old, new)
