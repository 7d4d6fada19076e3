"""Comparison of the contents of images with equal hashes."""

from msgspec.structs import replace

from raftlog.metadata.entities import Topic
from raftlog.metadata.image import NO_REPLICAS, Image, Replicas
from simulation.checks.states import difference

TOPIC = b"t" * 16


def _image() -> Image:
    topics = Image().topics.mutate()
    topics[TOPIC] = Topic(TOPIC, "topic", 1)
    index = Image().replicas_of.mutate()
    index[1] = Replicas.of([(TOPIC, 0)])
    return replace(
        Image(), offset=3, state_hash=7, topics=topics.finish(), replicas_of=index.finish()
    )


def test_same_contents_are_not_a_difference() -> None:
    assert difference(_image(), _image()) == ""
    assert difference(Image(), Image()) == ""


def test_differing_field_of_an_entity_is_reported() -> None:
    image = _image()
    topics = image.topics.mutate()
    topics[TOPIC] = Topic(TOPIC, "topic", 2)
    assert "topics[" in difference(replace(image, topics=topics.finish()), image)


def test_missing_or_additional_entity_is_reported() -> None:
    without = replace(_image(), topics=Image().topics)
    assert "is missing" in difference(without, _image())
    assert "not missing" in difference(_image(), without)


def test_missing_index_entry_is_reported_and_an_empty_one_is_not() -> None:
    without = replace(_image(), replicas_of=Image().replicas_of)
    assert "replicas_of[1] is missing" in difference(without, _image())
    empty = Image().replicas_of.mutate()
    empty[1] = NO_REPLICAS
    assert difference(replace(without, replicas_of=empty.finish()), without) == ""


def test_difference_compares_scalars_of_images_too() -> None:
    assert "timestamp_ms is 1, not 0" in difference(replace(_image(), timestamp_ms=1), _image())
    assert "state_bytes" in difference(replace(_image(), state_bytes=1), _image())
