"""Topics and partitions in the image: the effect of their records.

Most of a log, and most of a snapshot, consists of new partitions. Adding partitions one at a time
would rewrite the topic and an entry in three indexes each time; adding a run of them writes the
shared parts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftlog.metadata.entities import (
    Partition,
    Standing,
    Topic,
    bytes_hash,
    entity_bytes,
    standing_of,
)
from raftlog.metadata.image import BLOCK, BLOCK_BITS, FoldError, ImageDraft, add_count
from raftlog.metadata.imported import change_detail, put_details, remove_with_topic
from raftlog.metadata.records import RecordType
from raftlog.wire.records.v1 import records_pb2 as pb


class NotNextError(ValueError):
    """A partition does not follow the last one of its topic."""

    def __init__(self, partition: Partition, topic: str, following: int) -> None:
        super().__init__(
            f"partition {partition.index} of {topic!r} does not follow: the next index is "
            f"{following}"
        )
        self.index, self.topic, self.following = partition.index, topic, following


def put_new(image: ImageDraft, partitions: Iterable[Partition]) -> None:
    """Add partitions, each of which must be the next one of its topic; ideally a topic's partitions
    come together. Raises KeyError for an unknown topic, and NotNextError; the image is unusable
    afterwards.
    """
    held, encode, hash_of = image.partitions, entity_bytes, bytes_hash
    topic: Topic | None = None
    topic_id, following = b"", 0
    block, bits_of = 0, dict[tuple[int, ...], int]()
    state_hash = state_bytes = 0
    led, standings = dict[int, int](), dict[Standing, int]()
    accounts, counts = image.accounts_in_its_own_way, image.counts_standings
    for partition in partitions:
        index = partition.index
        if topic is None or partition.topic_id != topic_id or index >> BLOCK_BITS != block:
            if topic is not None:
                # With the count so far, which the topic's next block reads.
                _end_block(image, topic, following, block, bits_of)
            topic = image.topics[partition.topic_id]
            # The topic's own bytes object, shared by all keys.
            topic_id, following = topic.id, topic.partition_count
            block, bits_of = index >> BLOCK_BITS, {}
        if index != following:
            raise NotNextError(partition, topic.name, following)
        following += 1
        held[topic_id, index] = partition
        replicas = partition.replicas
        bits_of[replicas] = bits_of.get(replicas, 0) | 1 << (index & (BLOCK - 1))
        if counts:
            led[partition.leader] = led.get(partition.leader, 0) + 1
            if standing := standing_of(partition):
                standings[standing] = standings.get(standing, 0) + 1
        if accounts:
            image.replace("partition", (), None, partition)
            continue
        content = encode(("partition", partition))
        state_hash += hash_of(content)
        state_bytes += len(content)
    if topic is not None:
        _end_block(image, topic, following, block, bits_of)
    for broker_id, more in led.items():
        add_count(image.leader_counts, broker_id, more)
    for standing, more in standings.items():
        add_count(image.standings, standing, more)
    image.state_hash += state_hash
    image.state_bytes += state_bytes


def _recount(image: ImageDraft, old: Partition, new: Partition | None) -> None:
    """Update the counts for a partition that has changed."""
    if not image.counts_standings:
        return
    if new is None or new.leader != old.leader:
        add_count(image.leader_counts, old.leader, -1)
        if new is not None:
            add_count(image.leader_counts, new.leader, 1)
    before, after = standing_of(old), standing_of(new) if new is not None else None
    if before != after:
        if before is not None:
            add_count(image.standings, before, -1)
        if after is not None:
            add_count(image.standings, after, 1)


def _end_block(
    image: ImageDraft,
    topic: Topic,
    following: int,
    block: int,
    bits_of: dict[tuple[int, ...], int],
) -> None:
    """Write the data shared by the partitions in one block of a topic. ``bits_of``: the partitions'
    bits, by replicas.
    """
    image.topics[topic.id] = Topic(topic.id, topic.name, following)
    of_broker: dict[int, int] = {}
    for replicas, bits in bits_of.items():
        for broker_id in replicas:
            of_broker[broker_id] = of_broker.get(broker_id, 0) | bits
    for broker_id, bits in of_broker.items():
        image.replicas_of.draft(broker_id).add((topic.id, block), bits)


def fold_topic(image: ImageDraft, message: pb.TopicRecord, offset: int, epoch: int) -> None:
    """Fold a TopicRecord. Raises FoldError if the topic exists."""
    topic_id = message.topic_id
    if topic_id in image.topics or message.name in image.topic_ids:
        raise FoldError(f"topic {message.name!r} at offset {offset} already exists")
    image.topics[topic_id] = Topic(topic_id, message.name, 0)
    image.topic_ids[message.name] = topic_id
    image.replace("topic", (topic_id,), None, message.name)


def fold_partition(image: ImageDraft, message: pb.PartitionRecord, offset: int, epoch: int) -> None:
    """Fold a PartitionRecord."""
    fold_partitions(image, (message,), offset)


def fold_partitions(
    image: ImageDraft, messages: Iterable[pb.PartitionRecord], first_offset: int
) -> int:
    """Fold a run of PartitionRecords in one batch, and return its length. Raises FoldError for the
    first record that contradicts the state.
    """
    count = 0
    imported: list[pb.PartitionRecord] = []

    def partitions() -> Iterator[Partition]:
        nonlocal count
        topic_id = b""
        for message in messages:
            count += 1
            if message.HasField("imported"):
                imported.append(message)
            if message.topic_id != topic_id:
                # One object shared by a topic's partitions.
                topic_id = message.topic_id
            # Sliced in C: building a tuple from the field itself would access each item separately.
            replicas, isr = tuple(message.replicas[:]), tuple(message.isr[:])
            yield Partition(
                topic_id,
                message.partition_id,
                replicas,
                replicas if isr == replicas else isr,
                tuple(message.removing_replicas[:]),
                tuple(message.adding_replicas[:]),
                message.leader,
                message.leader_recovery_state,
                message.leader_epoch,
                message.partition_epoch,
                tuple(message.eligible_leader_replicas[:]),
                tuple(message.last_known_elr[:]),
            )

    try:
        put_new(image, partitions())
    except NotNextError as error:
        raise FoldError(
            f"partition {error.index} of {error.topic!r} at offset {first_offset + count - 1} does "
            f"not follow: the next index is {error.following}"
        ) from error
    except KeyError as error:
        raise names_nothing(RecordType.PARTITION, first_offset + count - 1, error) from error
    if imported:
        put_details(image, imported)
    return count


def changed_partition(old: Partition, message: pb.PartitionChangeRecord) -> Partition:
    """Return the partition after a PartitionChangeRecord."""
    has = message.HasField
    replicas = tuple(message.replicas.ids[:]) if has("replicas") else old.replicas
    # KRaft's rule: the leader epoch grows when a leader is named, even the same one, or when a
    # replica is removed.
    new_leadership = has("leader") or (
        replicas is not old.replicas and not set(old.replicas) <= set(replicas)
    )
    leader_epoch = (
        message.leader_epoch if has("leader_epoch") else old.leader_epoch + new_leadership
    )
    return Partition(
        old.topic_id,
        old.index,
        replicas,
        tuple(message.isr.ids[:]) if has("isr") else old.isr,
        tuple(message.removing_replicas.ids) if has("removing_replicas") else old.removing_replicas,
        tuple(message.adding_replicas.ids) if has("adding_replicas") else old.adding_replicas,
        message.leader if has("leader") else old.leader,
        (
            message.leader_recovery_state
            if has("leader_recovery_state")
            else old.leader_recovery_state
        ),
        leader_epoch,
        old.partition_epoch + 1,
        (
            tuple(message.eligible_leader_replicas.ids[:])
            if has("eligible_leader_replicas")
            else old.elr
        ),
        tuple(message.last_known_elr.ids[:]) if has("last_known_elr") else old.last_known_elr,
    )


def fold_partition_change(
    image: ImageDraft, message: pb.PartitionChangeRecord, offset: int, epoch: int
) -> None:
    """Fold a PartitionChangeRecord. Raises KeyError if the partition does not exist."""
    key = (message.topic_id, message.partition_id)
    old = image.partitions[key]
    new = changed_partition(old, message)
    image.partitions[key] = new
    image.replace("partition", (), old, new)
    _recount(image, old, new)
    if message.HasField("imported") or (image.imported and new.replicas != old.replicas):
        change_detail(image, message)
    if new.replicas is not old.replicas and new.replicas != old.replicas:
        for broker_id in sorted(set(old.replicas) - set(new.replicas)):
            image.replicas_of.remove(broker_id, key)
        for broker_id in sorted(set(new.replicas) - set(old.replicas)):
            image.replicas_of.add(broker_id, key)


def remove_topic(image: ImageDraft, message: pb.RemoveTopicRecord, offset: int, epoch: int) -> None:
    """Fold a RemoveTopicRecord. Raises KeyError if the topic does not exist."""
    topic = image.topics[message.topic_id]
    if message.with_configs:
        remove_with_topic(image, topic)
    for index in range(topic.partition_count):
        key = (topic.id, index)
        partition = image.partitions[key]
        # A log can name a broker twice, although no controller does; it has one replica.
        for broker_id in dict.fromkeys(partition.replicas):
            image.replicas_of.remove(broker_id, key)
        del image.partitions[key]
        image.replace("partition", (), partition, None)
        _recount(image, partition, None)
    del image.topics[topic.id]
    del image.topic_ids[topic.name]
    image.replace("topic", (topic.id,), topic.name, None)


def names_nothing(type_: int, offset: int, error: KeyError) -> FoldError:
    """Return the error for a record that names an entity that does not exist."""
    return FoldError(
        f"record {RecordType(type_).name} at offset {offset} names {error}, which does not exist"
    )
