from broker.metadata.view import ChangeCollector
from broker.partition.events import Changes
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2 as pb

TOPIC = bytes(16)


def test_batch_names_each_entity_that_it_changes_once() -> None:
    collector = ChangeCollector()
    assert collector.take() is None
    collector.note(
        [
            record(pb.TopicRecord(name="t", topic_id=TOPIC)),
            record(pb.PartitionRecord(topic_id=TOPIC, partition_id=1)),
            record(pb.PartitionChangeRecord(topic_id=TOPIC, partition_id=2)),
            record(pb.PartitionChangeRecord(topic_id=TOPIC, partition_id=1)),
            record(pb.RegisterBrokerRecord(broker_id=4)),
            record(pb.BrokerRegistrationChangeRecord(broker_id=5)),
            record(pb.UnregisterBrokerRecord(broker_id=4)),
            record(pb.ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas")),
            record(pb.NoOpRecord()),
        ]
    )
    collector.note([record(pb.RemoveTopicRecord(topic_id=TOPIC))])
    assert collector.take() == Changes(((TOPIC, 1), (TOPIC, 2)), (TOPIC,), (4, 5), ((2, "t"),))
    assert collector.take() == Changes()


def test_replaced_image_counts_as_changed_everywhere_once() -> None:
    collector = ChangeCollector()
    collector.take()
    collector.everything()
    collector.note([record(pb.RegisterBrokerRecord(broker_id=4))])
    assert collector.take() is None
    assert collector.take() == Changes()
