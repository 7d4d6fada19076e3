"""Topics that are asked for by their ids: as Kafka prints them, or in hex digits."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import structs

from raftlog.metadata.imported import PARTITION_DETAIL
from raftlog.metadata.words import parse_topic_id
from raftlog.segments.files import open_place
from raftlog.segments.raw import reading, says_content
from replay.asked import BY_ID, TOPIC
from replay.opened import Export
from replay.request import JobRequest


def by_id(export: Export, request: JobRequest) -> JobRequest:
    """Return the request for a topic's id if its key is one and no topic ever had it as a name."""
    kind, key = request.key or ("", "")
    if kind not in {TOPIC, "partition", PARTITION_DETAIL}:
        return request
    name = key if kind == TOPIC else key.rpartition("-")[0]
    if parse_topic_id(name) is None or _is_name(export, name):
        return request
    return structs.replace(request, key=(kind, BY_ID + key))


def _is_name(export: Export, name: str) -> bool:
    """Return whether a topic ever had this name. A damaged file has none: the job reports it."""
    place = open_place(export.target)
    for segment in export.segments:
        with reading(place, segment), place.open(segment.file) as opened:
            try:
                names = pq.read_table(opened, columns=["topic_name"])["topic_name"]
            except (pa.ArrowException, OSError) as error:
                if not says_content(error):
                    raise
                continue
        if pc.any(pc.equal(names, name)).as_py():
            return True
    return False
