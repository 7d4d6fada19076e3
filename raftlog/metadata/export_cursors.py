"""Export cursors in the image: the progress of exports of the log, so that no node drops records
that one of them still needs.
"""

from __future__ import annotations

from raftlog.metadata.entities import ExportCursor
from raftlog.metadata.image import ImageDraft
from raftlog.wire.records.v1 import records_pb2 as pb


def fold_export_cursor(
    image: ImageDraft, message: pb.ExportCursorRecord, offset: int, epoch: int
) -> None:
    """Fold an ExportCursorRecord. Raises KeyError if a cursor to be removed does not exist."""
    name = message.name
    old = image.export_cursors.get(name)
    if message.HasField("end_offset"):
        new = ExportCursor(name, message.end_offset, message.target, offset, image.timestamp_ms)
        image.export_cursors[name] = new
    else:
        new = None
        del image.export_cursors[name]
    image.replace("export_cursor", (), old, new)
