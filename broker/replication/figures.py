"""The counters of the data plane's shell; the replicas keep all others."""

from __future__ import annotations

from raftlog.node.observability.figures import Latency


class Figures:
    """Counters since the start, and latencies."""

    def __init__(self) -> None:
        self.bytes_in = 0
        """Bytes of batches appended, as a leader or a follower."""
        self.messages_in = 0
        self.bytes_out = 0
        """Bytes sent to consumers."""
        self.replication_bytes_out = 0
        """Bytes sent to followers."""
        self.produce_requests = 0
        self.produce = Latency()
        """Time from a produce request until its answer."""
        self.flush = Latency()
        """Time from the request to sync the disk until it is done."""

    def appended(self, size_bytes: int, records: int) -> None:
        """Count an appended chunk."""
        self.bytes_in += size_bytes
        self.messages_in += records
