"""Bulk insertion of new partitions into an image: most of a log, and most of a snapshot, consists
of them.

One at a time, each would write its topic and an entry of three indexes anew. Here a run of them
writes the shared parts once.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.metadata.entities import Partition, Topic, bytes_hash, entity_bytes
from raftlog.metadata.image import ImageDraft
from raftlog.metadata.replica_index import BLOCK, BLOCK_BITS


class NotNextError(ValueError):
    """A partition that is not the next one of its topic."""

    def __init__(self, partition: Partition, topic: str, following: int) -> None:
        super().__init__(
            f"partition {partition.index} of {topic!r} is not the next one, {following}"
        )
        self.index, self.topic, self.following = partition.index, topic, following


def put_new(image: ImageDraft, partitions: Iterable[Partition]) -> None:
    """Add partitions, each the next one of its topic, best with a topic's partitions together.

    Raises KeyError for an unknown topic, NotNextError; the image is of no use then.
    """
    held, encode, hash_of = image.partitions, entity_bytes, bytes_hash
    topic: Topic | None = None
    topic_id, following = b"", 0
    block, bits_of = 0, dict[tuple[int, ...], int]()
    state_hash = state_bytes = 0
    accounts = image.accounts_in_its_own_way
    for partition in partitions:
        index = partition.index
        if topic is None or partition.topic_id != topic_id or index >> BLOCK_BITS != block:
            if topic is not None:
                # With the count so far: the next block of the topic looks it up.
                _end_block(image, topic, following, block, bits_of)
            topic = image.topics[partition.topic_id]
            # The topic's own bytes: one object for all keys.
            topic_id, following = topic.id, topic.partition_count
            block, bits_of = index >> BLOCK_BITS, {}
        if index != following:
            raise NotNextError(partition, topic.name, following)
        following += 1
        held[topic_id, index] = partition
        replicas = partition.replicas
        bits_of[replicas] = bits_of.get(replicas, 0) | 1 << (index & (BLOCK - 1))
        if accounts:
            image.replace("partition", (), None, partition)
            continue
        content = encode(("partition", partition))
        state_hash += hash_of(content)
        state_bytes += len(content)
    if topic is not None:
        _end_block(image, topic, following, block, bits_of)
    image.state_hash += state_hash
    image.state_bytes += state_bytes


def _end_block(
    image: ImageDraft,
    topic: Topic,
    following: int,
    block: int,
    bits_of: dict[tuple[int, ...], int],
) -> None:
    """Write the parts that the partitions of one block of a topic share.

    ``bits_of``: the partitions' bits, by their replicas.
    """
    image.topics[topic.id] = Topic(topic.id, topic.name, following)
    of_broker: dict[int, int] = {}
    for replicas, bits in bits_of.items():
        for broker_id in replicas:
            of_broker[broker_id] = of_broker.get(broker_id, 0) | bits
    for broker_id, bits in of_broker.items():
        image.replicas_of.draft(broker_id).add((topic.id, block), bits)
