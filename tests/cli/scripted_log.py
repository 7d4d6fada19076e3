"""A stopped node's log in memory."""

from types import SimpleNamespace
from typing import Any

from raftlog import batch
from raftlog.metadata.records import record
from raftlog.node.storage.chunks import read_span


class ScriptedLog:
    """A batch for each message, in one chunk; the first is a control batch."""

    def __init__(self, *messages: Any, principal: str = "") -> None:
        self.identity = SimpleNamespace(cluster_id="c", generation=0)
        made = []
        for at, message in enumerate(messages):
            fields: dict[str, Any] = {"base_offset": at, "principal": principal, "control": not at}
            made.append(batch.encode([record(message)], epoch=1, timestamp_ms=1, **fields))
        self.chunk = b"".join(made)
        self.start_offset, self.end_offset = 0, len(messages)
        self.snapshots: tuple[Any, ...] = ()

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        assert self.start_offset <= offset
        return read_span([(0, self.chunk)], offset, until, max_bytes)
