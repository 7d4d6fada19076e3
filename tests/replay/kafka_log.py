"""A Kafka cluster's log to break by hand: records that its controller would write, and others."""

import base64
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "kafka_import"))

import kafka_writer as kafka
import pytest

from replay.kafka.copies import find_copies
from replay.kafka.importing import Imported, Importer

__all__ = ["KafkaLog", "imported", "kafka", "real"]
KEPT = Path(__file__).parents[1] / "kafka_import"


def uuid(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")


class KafkaLog:
    """Five unfenced brokers. Topics have one partition, with the given replicas."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset, self.epoch, self.ids = 0, 0, 1000
        self.waited_ms = 0
        """Total waiting time in addition to 10 ms a record."""
        self.topics: dict[str, str] = {}
        self.epochs: dict[int, int] = {}
        self.elect(101)
        for broker_id in range(1, 6):
            self.register(broker_id)

    def append(self, *records: Any) -> int:
        """Append one batch; return its base offset."""
        base = self.end_offset
        stamped = {"epoch": self.epoch, "timestamp_ms": 1000 + 10 * base + self.waited_ms}
        self.batches.append(kafka.batch(base, records, **stamped))
        self.end_offset += len(records)
        return base

    def elect(self, leader_id: int) -> int:
        self.epoch += 1
        return self.append(kafka.leader_change(leader_id))

    def registration(self, broker_id: int, **values: Any) -> bytes:
        defaults = {
            "broker_id": broker_id, "broker_epoch": self.end_offset,
            "incarnation_id": uuid(self.end_offset + 1), "end_points": [], "features": [],
            "rack": None, "fenced": True,
        }  # fmt: skip
        return kafka.metadata("RegisterBrokerRecord", **defaults | values)

    def register(self, broker_id: int, **values: Any) -> int:
        """Register a new incarnation, unfenced at once."""
        at = self.append(self.registration(broker_id, **values))
        self.epochs[broker_id] = values.get("broker_epoch", at)
        self.append(self.standing(broker_id, fenced=-1))
        return at

    def standing(self, broker_id: int, **values: Any) -> bytes:
        epoch = self.epochs[broker_id]
        return kafka.metadata(
            "BrokerRegistrationChangeRecord", broker_id=broker_id, broker_epoch=epoch, **values
        )

    def topic(self, name: str, replicas: list[int], **values: Any) -> int:
        """Create a topic; return the offset of its partition's record."""
        self.ids += 1
        id_ = self.topics[name] = values.pop("topic_id", uuid(self.ids))
        said = {"replicas": replicas, "isr": replicas, "leader": replicas[0]} | values
        return self.append(kafka.topic(name, id_), kafka.partition(0, id_, **said)) + 1

    def changed(self, name: str, **values: Any) -> bytes:
        return kafka.metadata(
            "PartitionChangeRecord", partition_id=0, topic_id=self.topics[name], **values
        )

    def change(self, name: str, **values: Any) -> int:
        return self.append(self.changed(name, **values))

    def clear_elr(self, name: str = "") -> int:
        """Clear the eligible leader replicas of a topic, or of all."""
        return self.append(kafka.metadata("ClearElrRecord", topic_name=name))

    def delete(self, name: str) -> int:
        return self.append(kafka.metadata("RemoveTopicRecord", topic_id=self.topics.pop(name)))

    def voters(self, *names: str) -> int:
        entries = [
            {
                "voter_id": ord(name[0]), "voter_directory_id": uuid(ord(name[1])), "endpoints": [],
                "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
            }
            for name in names
        ]  # fmt: skip
        return self.append(kafka.control("VotersRecord", voters=entries))

    def import_into(self, directory: Path, **options: Any) -> Imported:
        node = kafka.write_node(directory / "node", b"".join(self.batches))
        return imported(node, directory / "exported", **options)


def imported(node: Path, target: Path, **options: Any) -> Imported:
    """Import the logs below a directory."""
    with Importer(find_copies([node]), str(target), **options) as importer:
        return importer.run()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the logs of three real controllers (``kafka``), and their export
    (``exported``). The active one was killed, and then the next one stopped.
    """
    directory = tmp_path_factory.mktemp("real")
    kafka.unpack(KEPT / "kafka-4.4.0.tar.gz", directory / "kafka")
    imported(directory / "kafka", directory / "exported")
    return directory
