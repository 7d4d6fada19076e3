"""A builder of committed logs for tests of the broker."""

from collections.abc import Iterable
from typing import Any

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2 as rec


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")[:16]


class LogMaker:
    """Encodes batches one after the other, and keeps them to fold an image at any offset."""

    def __init__(self) -> None:
        self.end = 0
        self.epoch = 1
        self.batches: list[tuple[int, bytes]] = []

    def append(self, *messages: object, client_id: int = 0) -> bytes:
        """One batch, of a numbered write if there is a client; returns its bytes."""
        data = batch.encode(
            [record(message).data for message in messages],
            base_offset=self.end,
            epoch=self.epoch,
            timestamp_ms=1000 + self.end,
            client_id=client_id,
            sequence=1 if client_id else 0,
        )
        self.end += len(messages)
        self.batches.append((self.end - 1, data))
        return data

    @property
    def last(self) -> int:
        return self.end - 1

    def since(self, offset: int, until: int | None = None) -> bytes:
        """Return the batches from ``offset`` on."""
        until = self.end if until is None else until
        return b"".join(data for last, data in self.batches if offset <= last < until)

    def image(self, offset: int) -> Image:
        """Fold up to the newest batch that ends at or below ``offset``."""
        builder = ImageBuilder(Image())
        for last, data in self.batches:
            if last <= offset:
                builder.apply_chunk(data)
        return builder.snapshot()

    # --- records ---------------------------------------------------------------------------------

    def leader(self, leader_id: int = 1) -> bytes:
        return self.append(rec.LeaderChangeRecord(leader_id=leader_id, voters=[1, 2, 3]))

    def register(
        self,
        broker_id: int,
        incarnation: str = "i-1",
        *,
        fenced: bool = True,
        listeners: Iterable[rec.Listener] = (),
    ) -> int:
        """Append a registration; returns the broker epoch."""
        epoch = self.end
        default = rec.Listener(name="PLAINTEXT", host=f"b{broker_id}", port=9092)
        self.append(
            rec.RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=incarnation,
                broker_epoch=epoch,
                end_points=list(listeners) or [default],
                fenced=fenced,
                registration_version=1,
                process=rec.ProcessProof(
                    boot_id="boot", directory_id="d", lock_device=1, lock_inode=2
                ),
            )
        )
        return epoch

    def change(self, broker_id: int, broker_epoch: int, **fields: Any) -> bytes:
        return self.append(
            rec.BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker_epoch, reason="test", **fields
            )
        )

    def unfence(self, broker_id: int, broker_epoch: int) -> bytes:
        return self.change(broker_id, broker_epoch, fenced=False)

    def fence(self, broker_id: int, broker_epoch: int) -> bytes:
        return self.change(broker_id, broker_epoch, fenced=True)

    def unregister(self, broker_id: int, broker_epoch: int) -> bytes:
        return self.append(
            rec.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker_epoch)
        )

    def topic(self, name: str, *partitions: tuple[list[int], int]) -> bytes:
        """A topic whose partitions are (replicas, leader)."""
        return self.append(
            rec.TopicRecord(name=name, topic_id=topic_id(name)),
            *(
                rec.PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id(name),
                    replicas=replicas,
                    isr=replicas,
                    leader=leader,
                )
                for index, (replicas, leader) in enumerate(partitions)
            ),
        )

    def config(
        self, value: str, *, name: str = "retention.ms", kind: int = 4, resource: str = ""
    ) -> bytes:
        return self.append(
            rec.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
        )
