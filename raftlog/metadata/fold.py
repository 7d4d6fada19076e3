"""The fold: the effect of each record type on the image.

The one place where state changes, for every program of raftlog.

Why: docs/decisions/020-one-fold-everywhere.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, starmap
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from raftlog import batch
from raftlog.config_writes import codec
from raftlog.config_writes.codec import entity_or_none
from raftlog.config_writes.writes import Change, entity
from raftlog.metadata import versions
from raftlog.metadata.acl_fold import add_entry, remove_entry
from raftlog.metadata.causes import Cause
from raftlog.metadata.clients import close_client, fold_identity, open_client
from raftlog.metadata.entities import (
    Applied,
    Broker,
    Leader,
    Listener,
    Partition,
    Process,
    Progress,
    Topic,
    VoterEntry,
    Voters,
    bytes_hash,
)
from raftlog.metadata.export_cursors import fold_export_cursor
from raftlog.metadata.flat_map import FlatMutation
from raftlog.metadata.hostnames import fold_hostname
from raftlog.metadata.image import FoldError, ImageDraft
from raftlog.metadata.imported import (
    change_detail,
    fold_imported,
    put_details,
    remove_with_topic,
)
from raftlog.metadata.key_values import fold_key_value, fold_lease, remove_lease
from raftlog.metadata.new_partitions import NotNextError, put_new
from raftlog.metadata.records import Record, RecordType, UnknownRecordError, parse_body
from raftlog.wire.records.v1 import records_pb2 as pb

_CAUSES: frozenset[int] = frozenset(Cause)
RUN_RECORDS_MIN = 3
"""Least size of a batch in which runs of records of one type are looked for."""


class ImageBuilder(ImageDraft):
    """The builder of an image: it folds records into the image after ``base``: the same code in
    controller, broker and replay.
    """

    __slots__ = ()

    def apply_batch(
        self,
        records: list[Record],
        *,
        base_offset: int,
        epoch: int,
        timestamp_ms: int,
        client_id: int = 0,
        sequence: int = 0,
        all_below_done: int = 0,
    ) -> None:
        """Fold one whole batch of decoded records, and the parts of its header that change state.

        Raises FoldError.
        """
        self._begin_batch(base_offset, timestamp_ms)
        if len(records) < RUN_RECORDS_MIN:
            for index, record in enumerate(records):
                apply(self, record.type, record.message, base_offset + index, epoch)
        else:
            _apply_runs(self, records, _messages, base_offset, epoch)
        self.offset, self.epoch = base_offset + len(records) - 1, epoch
        if client_id:
            fold_identity(self, client_id, sequence, all_below_done, self.offset, epoch)

    def apply_configs(
        self, changes: Sequence[Change], *, base_offset: int, epoch: int, timestamp_ms: int
    ) -> None:
        """Fold a batch of config records that are decoded as changes: as ``apply_batch``."""
        self._begin_batch(base_offset, timestamp_ms)
        change_configs(self, changes)
        self.offset, self.epoch = base_offset + len(changes) - 1, epoch

    def apply_decoded(self, header: batch.BatchHeader, records: list[Record]) -> None:
        """Fold one whole batch of the log whose records were decoded before. Raises FoldError."""
        self.apply_batch(
            records,
            base_offset=header.base_offset,
            epoch=header.epoch,
            timestamp_ms=header.timestamp_ms,
            client_id=header.client_id,
            sequence=header.sequence,
            all_below_done=header.all_below_done,
        )

    def apply_chunk(self, chunk: bytes, *, until: int | None = None, verify: bool = False) -> None:
        """Fold the batches of a chunk, up to the offset ``until`` (exclusive, a batch boundary) if
        given.

        Batches at or below the image's offset are skipped. Raises FoldError, UnknownRecordError,
        CorruptLogError.
        """
        for header in batch.headers(chunk, verify=verify):
            if header.last_offset <= self.offset:
                continue
            if until is not None and header.end_offset > until:
                break
            self.apply_encoded(chunk, header)

    def apply_encoded(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Fold one batch of a chunk.

        The hot path of every node that did not make the records itself.
        """
        changes = codec.decoded(chunk, header)
        if changes is None:
            self.apply_bodies(header, batch.bodies(chunk, header))
            return
        self.apply_configs(
            changes,
            base_offset=header.base_offset,
            epoch=header.epoch,
            timestamp_ms=header.timestamp_ms,
        )
        self._remember_write(header)

    def apply_bodies(self, header: batch.BatchHeader, bodies: Iterable[batch.Body]) -> None:
        """Fold one batch of the log, given as its header and bodies. Raises FoldError,
        UnknownRecordError.
        """
        offset, epoch = header.base_offset, header.epoch
        self._begin_batch(offset, header.timestamp_ms)
        if header.record_count < RUN_RECORDS_MIN:
            for type_, version, body in bodies:
                apply(self, type_, parse_body(type_, version, body), offset, epoch)
                offset += 1
        else:
            _apply_runs(self, bodies, _parsed, offset, epoch)
        self.offset, self.epoch = header.last_offset, epoch
        self._remember_write(header)

    def _begin_batch(self, base_offset: int, timestamp_ms: int) -> None:
        """Begin a batch. Raises FoldError if it does not follow the image."""
        if base_offset != self.offset + 1:
            raise FoldError(
                f"batch at offset {base_offset} does not follow the image at {self.offset}"
            )
        self.timestamp_ms = timestamp_ms

    def _remember_write(self, header: batch.BatchHeader) -> None:
        """Fold the result of a numbered write, after its records."""
        if header.client_id:
            fold_identity(
                self,
                header.client_id,
                header.sequence,
                header.all_below_done,
                header.last_offset,
                header.epoch,
            )


def apply(image: ImageDraft, type_: int, message: Any, offset: int, epoch: int) -> None:
    """Fold one record; ``image.timestamp_ms`` is its batch's.

    Raises FoldError if it contradicts the state, UnknownRecordError.
    """
    handler = _HANDLERS.get(type_)
    if handler is None:
        raise UnknownRecordError(f"record type {type_} at offset {offset} is unknown to this build")
    try:
        handler(image, message, offset, epoch)
    except KeyError as error:
        raise _not_there(type_, offset, error) from error


Of = TypeVar("Of", bound=tuple[Any, ...])
"""A tuple with a record, its type first."""


def _apply_runs(
    image: ImageDraft,
    records: Iterable[Of],
    messages: Callable[[Iterable[Of]], Iterable[Any]],
    offset: int,
    epoch: int,
) -> None:
    """Fold records as ``apply`` does, but runs of one type at once where that is cheaper."""
    for type_, run in groupby(records, _TYPE):
        if type_ == RecordType.PARTITION:
            offset += _partitions(image, messages(run), offset)
        else:
            for message in messages(run):
                apply(image, type_, message, offset, epoch)
                offset += 1


_TYPE: Callable[[tuple[Any, ...]], int] = itemgetter(0)


def _messages(records: Iterable[Record]) -> Iterable[Any]:
    return map(attrgetter("message"), records)


def _parsed(bodies: Iterable[batch.Body]) -> Iterable[Any]:
    return starmap(parse_body, bodies)


def _not_there(type_: int, offset: int, error: KeyError) -> FoldError:
    return FoldError(
        f"record {RecordType(type_).name} at offset {offset} names {error}, which is not there"
    )


def _register_broker(
    image: ImageDraft, message: pb.RegisterBrokerRecord, offset: int, epoch: int
) -> None:
    broker = Broker(
        id=message.broker_id,
        epoch=message.broker_epoch,
        incarnation_id=message.incarnation_id,
        listeners=tuple(Listener(end.name, end.host, end.port) for end in message.end_points),
        features=tuple(
            (f.name, f.min_supported_version, f.max_supported_version) for f in message.features
        ),
        rack=message.rack,
        fenced=message.fenced,
        in_controlled_shutdown=message.in_controlled_shutdown,
        log_dirs=tuple(message.log_dirs),
        registration_version=message.registration_version,
        process=Process(
            message.process.boot_id,
            message.process.directory_id,
            message.process.lock_device,
            message.process.lock_inode,
        ),
        reason="registered",
        cause=Cause.REGISTERED,
    )
    image.replace("broker", (broker.id,), image.brokers.get(broker.id), broker)
    image.brokers[broker.id] = broker


def _unregister_broker(
    image: ImageDraft, message: pb.UnregisterBrokerRecord, offset: int, epoch: int
) -> None:
    old = image.brokers[message.broker_id]
    image.replace("broker", (old.id,), old, None)
    del image.brokers[old.id]


def _change_registration(
    image: ImageDraft, message: pb.BrokerRegistrationChangeRecord, offset: int, epoch: int
) -> None:
    old = image.brokers[message.broker_id]
    if old.epoch != message.broker_epoch:
        raise FoldError(
            f"registration change at offset {offset} is for epoch {message.broker_epoch} of broker"
            f" {old.id}, not {old.epoch}"
        )
    if message.cause not in _CAUSES:
        raise UnknownRecordError(
            f"the cause {message.cause} at offset {offset} is unknown to this build"
        )
    new = replace(
        old,
        fenced=message.fenced if message.HasField("fenced") else old.fenced,
        in_controlled_shutdown=(
            message.in_controlled_shutdown
            if message.HasField("in_controlled_shutdown")
            else old.in_controlled_shutdown
        ),
        log_dirs=tuple(message.log_dirs) or old.log_dirs,
        reason=message.reason,
        cause=Cause(message.cause),
    )
    image.replace("broker", (old.id,), old, new)
    image.brokers[old.id] = new


def _topic(image: ImageDraft, message: pb.TopicRecord, offset: int, epoch: int) -> None:
    topic_id = message.topic_id
    if topic_id in image.topics or message.name in image.topic_ids:
        raise FoldError(f"topic {message.name!r} at offset {offset} is there already")
    image.topics[topic_id] = Topic(topic_id, message.name, 0)
    image.topic_ids[message.name] = topic_id
    image.replace("topic", (topic_id,), None, message.name)


def _partition(image: ImageDraft, message: pb.PartitionRecord, offset: int, epoch: int) -> None:
    _partitions(image, (message,), offset)


def _partitions(
    image: ImageDraft, messages: Iterable[pb.PartitionRecord], first_offset: int
) -> int:
    """Fold a run of PartitionRecords in one batch, and return its length.

    Raises FoldError for the first that contradicts the state.
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
                # One object for all of a topic.
                topic_id = message.topic_id
            # Sliced, and cut in C: a tuple of the field itself would ask for each item.
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
            )

    try:
        put_new(image, partitions())
    except NotNextError as error:
        raise FoldError(
            f"partition {error.index} of {error.topic!r} at offset {first_offset + count - 1} is"
            f" not the next one, {error.following}"
        ) from error
    except KeyError as error:
        raise _not_there(RecordType.PARTITION, first_offset + count - 1, error) from error
    put_details(image, imported)
    return count


def changed_partition(old: Partition, message: pb.PartitionChangeRecord) -> Partition:
    """Return the partition after a PartitionChangeRecord."""
    has = message.HasField
    replicas = tuple(message.replicas.ids[:]) if has("replicas") else old.replicas
    # KRaft's rule: the leader epoch grows when a leader is named (the same one too) or when a
    # replica goes.
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
    )


def _partition_change(
    image: ImageDraft, message: pb.PartitionChangeRecord, offset: int, epoch: int
) -> None:
    key = (message.topic_id, message.partition_id)
    old = image.partitions[key]
    new = changed_partition(old, message)
    image.partitions[key] = new
    image.replace("partition", (), old, new)
    if message.HasField("imported") or (image.imported and new.replicas != old.replicas):
        change_detail(image, message)
    if new.replicas is not old.replicas and new.replicas != old.replicas:
        for broker_id in sorted(set(old.replicas) - set(new.replicas)):
            image.replicas_of.remove(broker_id, key)
        for broker_id in sorted(set(new.replicas) - set(old.replicas)):
            image.replicas_of.add(broker_id, key)


def _remove_topic(
    image: ImageDraft, message: pb.RemoveTopicRecord, offset: int, epoch: int
) -> None:
    topic = image.topics[message.topic_id]
    if message.with_configs:
        remove_with_topic(image, topic)
    for index in range(topic.partition_count):
        key = (topic.id, index)
        partition = image.partitions[key]
        # A log can name a broker twice, which no controller does: it holds one replica.
        for broker_id in dict.fromkeys(partition.replicas):
            image.replicas_of.remove(broker_id, key)
        del image.partitions[key]
        image.replace("partition", (), partition, None)
    del image.topics[topic.id]
    del image.topic_ids[topic.name]
    image.replace("topic", (topic.id,), topic.name, None)


def _config(image: ImageDraft, message: pb.ConfigRecord, offset: int, epoch: int) -> None:
    value = message.value if message.HasField("value") else None
    change = (message.resource_type, message.resource_name, message.name, value)
    change_configs(image, (change,))


def change_configs(image: ImageDraft, changes: Sequence[Change]) -> None:
    """Fold ConfigRecords that are decoded as changes; a value of None deletes the key.

    The hot path of all nodes: one loop, and no call but into C. A draft that accounts in its own
    way gets each change.
    """
    configs, state_hash, state_bytes = image.configs, image.state_hash, image.state_bytes
    accounts = image.accounts_in_its_own_way
    if isinstance(configs, FlatMutation) and not accounts:
        hash_growth, bytes_growth = codec.fold(changes, *configs.written())
        image.state_hash, image.state_bytes = state_hash + hash_growth, state_bytes + bytes_growth
        return
    for change in changes:
        resource_type, resource_name, name, value = change
        resource = (resource_type, resource_name)
        values = configs.get(resource)
        old = None if values is None else values.get(name)
        if value is not None:
            configs[resource] = {name: value} if values is None else {**values, name: value}
        elif old is not None and values is not None:
            if len(values) == 1:
                del configs[resource]
            else:
                configs[resource] = {key: kept for key, kept in values.items() if key != name}
        if accounts:
            image.replace("config", (resource_type, resource_name, name), old, value)
            continue
        if old is not None:
            before = (resource_type, resource_name, name, old)
            content = entity_or_none(before) or entity(before)
            state_hash -= bytes_hash(content)
            state_bytes -= len(content)
        if value is not None:
            content = entity_or_none(change) or entity(change)
            state_hash += bytes_hash(content)
            state_bytes += len(content)
    if not accounts:
        image.state_hash, image.state_bytes = state_hash, state_bytes


def _feature_level(
    image: ImageDraft, message: pb.FeatureLevelRecord, offset: int, epoch: int
) -> None:
    old = image.features.get(message.name)
    if (
        message.name == versions.METADATA_VERSION
        and message.feature_level > versions.LATEST_METADATA_VERSION
    ):
        raise UnknownRecordError(
            f"the record at offset {offset} raises {message.name} to {message.feature_level}: "
            f"this build knows {versions.LATEST_METADATA_VERSION} at most"
        )
    if message.feature_level:
        image.features[message.name] = message.feature_level
    elif old is not None:
        del image.features[message.name]
    image.replace("feature", (message.name,), old, message.feature_level or None)


def _leader_change(
    image: ImageDraft, message: pb.LeaderChangeRecord, offset: int, epoch: int
) -> None:
    new = Leader(epoch, message.leader_id, tuple(message.voters))
    image.replace("leader", (), image.leader, new)
    image.leader = new


def _progress(image: ImageDraft, message: pb.ProgressRecord, offset: int, epoch: int) -> None:
    new = Progress(message.lowest_acknowledged_offset, message.high_watermark)
    image.replace("progress", (), image.progress, new)
    image.progress = new
    for entry in message.applied:
        applied = Applied(entry.broker_id, entry.broker_epoch, entry.applied_offset)
        image.replace("applied", (), image.applied.get(applied.broker_id), applied)
        image.applied[applied.broker_id] = applied


def _voters(image: ImageDraft, message: pb.VotersRecord, offset: int, epoch: int) -> None:
    entries = tuple(
        VoterEntry(v.voter_id, v.voter_directory_id, v.endpoint) for v in message.voters
    )
    new = Voters(offset, entries) if entries else None
    image.replace("voters", (), image.voters, new)
    image.voters = new


def _no_op(image: ImageDraft, message: Any, offset: int, epoch: int) -> None:
    """Fold a no-op: the batch itself moves the offset."""


_HANDLERS: dict[int, Callable[[ImageDraft, Any, int, int], None]] = {
    RecordType.REGISTER_BROKER: _register_broker,
    RecordType.UNREGISTER_BROKER: _unregister_broker,
    RecordType.BROKER_REGISTRATION_CHANGE: _change_registration,
    RecordType.TOPIC: _topic,
    RecordType.PARTITION: _partition,
    RecordType.PARTITION_CHANGE: _partition_change,
    RecordType.REMOVE_TOPIC: _remove_topic,
    RecordType.CONFIG: _config,
    RecordType.FEATURE_LEVEL: _feature_level,
    RecordType.LEADER_CHANGE: _leader_change,
    RecordType.PROGRESS: _progress,
    RecordType.VOTERS: _voters,
    RecordType.OPEN_CLIENT: open_client,
    RecordType.CLOSE_CLIENT: close_client,
    RecordType.NO_OP: _no_op,
    RecordType.RECOVERY: _no_op,
    RecordType.HOSTNAME: fold_hostname,
    RecordType.EXPORT_CURSOR: fold_export_cursor,
    RecordType.KEY_VALUE: fold_key_value,
    RecordType.LEASE: fold_lease,
    RecordType.REMOVE_LEASE: remove_lease,
    RecordType.IMPORTED: fold_imported,
    RecordType.ACCESS_CONTROL_ENTRY: add_entry,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: remove_entry,
}
