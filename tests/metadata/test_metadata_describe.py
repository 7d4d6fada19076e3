import pytest

from raftlog.metadata.config_keys import (
    BROKER_NAME,
    config_keys,
    inherited,
    topic_config,
    unclean_election_enabled,
)
from raftlog.metadata.describe import image_to_dict
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KINDS
from raftlog.metadata.records import record
from raftlog.wire.records.v1 import records_pb2 as pb


def test_empty_image_is_described_with_every_kind() -> None:
    described = image_to_dict(Image())
    assert (described.pop("offset"), described.pop("state_hash")) == (-1, "0" * 32)
    assert (described.pop("epoch"), described.pop("timestamp_ms")) == (0, 0)
    assert [described.pop(one) for one in ("leader", "voters")] == [None] * 2
    assert described.pop("features") == {}
    within = {"partitions", "client_results"}
    others = {kind.plural for kind in KINDS} - within - {"leader", "voters", "features"}
    assert described == {key: [] for key in others - {""} | {"imported"}}


ID = bytes(range(16))


def image(*configs: tuple[int, str, str, str]) -> Image:
    records = [record(pb.TopicRecord(name="t", topic_id=ID))]
    records += [
        record(pb.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value))
        for kind, resource, name, value in configs
    ]
    builder = ImageBuilder(Image())
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=0)
    return builder.snapshot()


def test_topic_config_comes_from_the_strongest_layer() -> None:
    key = "retention.ms"
    default = (config_keys(2) or {})[key].default
    assert topic_config(image(), "t", key) == default
    shared = (4, "", "log.retention.ms", "5")
    assert topic_config(image(shared), "t", key) == "5"
    assert topic_config(image(shared, (2, "t", key, "6")), "t", key) == "6"
    assert topic_config(image((4, "1", "log.retention.ms", "7")), "t", key) == default, (
        "one broker's own is not a layer"
    )
    assert topic_config(image((2, "u", key, "8")), "t", key) == default


def test_only_keys_with_a_broker_name_are_inherited() -> None:
    assert inherited(image()) == {}
    both = ((4, "", "log.retention.ms", "5"), (4, "", "num.io.threads", "9"))
    assert inherited(image(*both)) == {"retention.ms": "5"}
    assert (
        topic_config(image((4, "", "num.io.threads", "9")), "t", "segment.ms")
        == (config_keys(2) or {})["segment.ms"].default
    )
    with pytest.raises(KeyError):
        topic_config(image(), "t", "num.io.threads")


def test_every_broker_name_belongs_to_a_key_with_its_default() -> None:
    topic, broker = config_keys(2) or {}, config_keys(4) or {}
    for key, name in BROKER_NAME.items():
        assert topic[key].default == broker[name].default, key
        assert topic[key].type == broker[name].type, key


@pytest.mark.parametrize(
    ("configs", "enabled"),
    [
        ((), False),
        (((4, "", "true"),), True),
        (((4, "", "true"), (2, "t", "false")), False),
        (((2, "t", "true"),), True),
    ],
)
def test_unclean_leaders_are_allowed_by_the_topic_or_the_cluster_default(
    configs: tuple[tuple[int, str, str], ...], enabled: bool
) -> None:
    key = "unclean.leader.election.enable"
    made = image(*((kind, name, key, value) for kind, name, value in configs))
    assert unclean_election_enabled(made, ID) is enabled
    assert not unclean_election_enabled(made, bytes(16)), "no topic"
