"""Which offset an export had come to at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog.segments.manifest import Segment
from raftlog.segments.place import Place
from raftlog.segments.reading import corrupt, reading, says_content

_COLUMNS = ["offset", "timestamp_ms"]


def offset_at(place: Place, records: Sequence[Segment], time_ms: int) -> int | None:
    """The offset of the last record that is not later than a time; None: there is none.

    Records before it may be later, where log time has gone back. Raises ExportError.
    """
    for segment in reversed(records):
        if segment.max_timestamp_ms <= time_ms:
            return segment.last_offset
        if segment.min_timestamp_ms <= time_ms:
            rows = _rows(place, segment)
            early = rows["offset"].filter(pc.less_equal(rows["timestamp_ms"], time_ms))
            if len(early):
                return int(pc.max(early).as_py())
    return None


def _rows(place: Place, segment: Segment) -> pa.Table:
    with reading(place, segment), place.open(segment.file) as opened:
        try:
            return pq.read_table(opened, columns=_COLUMNS).select(_COLUMNS)
        except (pa.ArrowException, OSError, KeyError) as error:
            if not says_content(error):
                raise
            raise corrupt(segment, "its times can't be read") from error
