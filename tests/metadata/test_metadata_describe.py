import json

from raftlog.metadata.describe import image_to_dict
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KINDS
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2 as pb


def test_an_image_as_json_is_sorted_whatever_the_order_of_its_records() -> None:
    messages = [
        pb.LeaderChangeRecord(leader_id=2, voters=[1, 2, 3]),
        *(
            pb.RegisterBrokerRecord(broker_id=b, broker_epoch=1, registration_version=1)
            for b in (30, 1, 200)
        ),
        *(pb.TopicRecord(name=name, topic_id=name.encode() * 16) for name in "zam"),
        *(
            pb.PartitionRecord(partition_id=i, topic_id=b"z" * 16, replicas=[30, 1], leader=30)
            for i in range(11)
        ),
        *(
            pb.ConfigRecord(resource_type=2, resource_name="z", name=name, value=name)
            for name in "ba"
        ),
        pb.ConfigRecord(resource_type=2, resource_name="a", name="k", value=""),
        *(pb.FeatureLevelRecord(name=name, feature_level=1) for name in "ba"),
        pb.ProgressRecord(
            lowest_acknowledged_offset=3,
            high_watermark=5,
            applied=[
                pb.AppliedOffset(broker_id=b, broker_epoch=1, applied_offset=b) for b in (30, 1)
            ],
        ),
    ]
    builder = ImageBuilder(Image())
    builder.apply_batch(
        [record(message) for message in messages], base_offset=0, epoch=4, timestamp_ms=99
    )
    image = builder.snapshot()
    described = image_to_dict(image)
    assert json.loads(json.dumps(described)) == described
    assert (described["offset"], described["epoch"], described["timestamp_ms"]) == (
        len(messages) - 1,
        4,
        99,
    )
    assert described["state_hash"] == format_hash(image.state_hash)
    assert len(described["state_hash"]) == 32
    assert described["leader"] == {"epoch": 4, "leader_id": 2, "voters": [1, 2, 3]}
    assert described["progress"] == {"lowest_acknowledged_offset": 3, "high_watermark": 5}
    assert list(described["features"]) == ["a", "b"]
    assert [broker["id"] for broker in described["brokers"]] == [1, 30, 200]
    assert [topic["name"] for topic in described["topics"]] == ["a", "m", "z"]
    assert described["topics"][2]["id"] == (b"z" * 16).hex()
    assert [partition["index"] for partition in described["topics"][2]["partitions"]] == list(
        range(11)
    )
    assert [(entry["resource_name"], list(entry["values"])) for entry in described["configs"]] == [
        ("a", ["k"]),
        ("z", ["a", "b"]),
    ]
    assert [applied["broker_id"] for applied in described["applied"]] == [1, 30]


def test_the_empty_image() -> None:
    described = image_to_dict(Image())
    assert (described.pop("offset"), described.pop("state_hash")) == (-1, "0" * 32)
    assert (described.pop("epoch"), described.pop("timestamp_ms")) == (0, 0)
    assert [described.pop(one) for one in ("leader", "progress", "voters")] == [None] * 3
    assert described.pop("features") == {}
    within = {"partitions", "client_results"}
    others = {kind.plural for kind in KINDS} - within - {"leader", "progress", "voters", "features"}
    assert described == {key: [] for key in others - {""} | {"imported"}}
