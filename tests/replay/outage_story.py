"""Fifty seconds of a small cluster with known outages."""

from log_history import LogHistory

from raftlog.wire.records.v1 import records_pb2 as pb

HOUR_MS = 3_600_000


class OutageStory(LogHistory):
    """A log in which time passes only on request. ``start_ms``: start of the fifty seconds; an hour
    ends after 27 of them.
    """

    def __init__(self) -> None:
        super().__init__(71)
        self.rng.randrange = lambda *_: 0  # type: ignore[method-assign]
        self.timestamp_ms += HOUR_MS - self.timestamp_ms % HOUR_MS - 27_000
        self.start_ms = self.timestamp_ms
        self._begin()
        self._all_fall()
        self._return()

    def at(self, second: float) -> None:
        self.timestamp_ms = self.start_ms + round(1000 * second)

    def _begin(self) -> None:
        """Topic a: two partitions on 1, 2, 3, led by 1 and 2, min ISR 2. Topic b: one on 1."""
        self.append(
            pb.ConfigRecord(
                resource_type=4, resource_name="", name="min.insync.replicas", value="3"
            )
        )
        self.create_topic("a", 2)
        self.alter_config("a", "min.insync.replicas", "2")
        for value, principal in (("1", "User:alice"), ("2", "User:bob"), ("1", "User:alice")):
            self.alter_config("a", "retention.ms", value, principal)
        topic_id = bytes(16)
        created = pb.PartitionRecord(
            topic_id=topic_id, partition_id=0, replicas=[1], isr=[1], leader=1
        )
        self.append(pb.TopicRecord(name="b", topic_id=topic_id), created)
        self.topics["b"] = topic_id

    def _all_fall(self) -> None:
        """3 at 10 s, 2 at 20 s (both of a under min ISR), 1 at 25 s: no leader until 28 s."""
        self.at(10)
        self.set_fenced(3, fenced=True)
        self.at(20)
        self.set_fenced(2, fenced=True)
        self.at(25)
        self.set_fenced(1, fenced=True)

    def _return(self) -> None:
        self.at(28)
        self.set_fenced(1, fenced=False)
        self.at(31)
        self.set_fenced(2, fenced=False)
        self.alter_isr("a", 0, [1, 2])
        self.at(35)
        self.alter_config("a", "min.insync.replicas", "1")
        self.at(36)
        self.alter_isr("a", 0, [1])
        self.at(37)
        self.alter_isr("a", 0, [1, 2])
        self.at(40)
        self.elect(2, heard_ms=2_000)
        self.at(45)
        self.append(self.leaving(2, fenced=True))
        self.at(47)
        self.set_fenced(2, fenced=False)
        self.at(50)
        self.progress()
