"""What the data plane counts by itself; the rest the replicas know."""

from __future__ import annotations

from raftlog.node.observability.latency import Latency


class Figures:
    """Counters since the start, and times."""

    def __init__(self) -> None:
        self.bytes_in = 0
        """Of batches appended, as a leader or a follower."""
        self.messages_in = 0
        self.bytes_out = 0
        """To consumers."""
        self.replication_bytes_out = 0
        """To followers."""
        self.produce_requests = 0
        self.produce = Latency()
        """From a produce request until its answer."""
        self.flush = Latency()
        """From asking the disk to sync until it has."""

    def appended(self, size_bytes: int, records: int) -> None:
        """A chunk was written."""
        self.bytes_in += size_bytes
        self.messages_in += records
