"""The fold: the effect of each record type on the image (for topics and partitions, see
``partitions.py``). In every program of raftlog, state changes only here.

A client numbers its writes. The header of a numbered write's batch names the client and the number,
and folding it stores the result: a retry finds it in this controller's pending image or the next
controller's, and is not executed again. Results of numbers that the client declares finished are
dropped, so that a client never has more than ``WINDOW`` results
(docs/decisions/017-exactly-once-writes.md).

Keys of the key-value store and leases are separate groups: the fold of one does not look at the
other, and the index of a lease's keys is made from the keys alone. The controller ensures that no
key outlives its lease: it deletes the keys before, or in the batch, that removes the lease.

Why: docs/decisions/020-one-fold-everywhere.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, starmap
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from raftlog import batch
from raftlog.config_writes import records as config_records
from raftlog.config_writes.records import Change, entity, entity_or_none
from raftlog.metadata import pmap, versions
from raftlog.metadata.acls import AccessControlEntry, Binding
from raftlog.metadata.entities import (
    FIRST_SEQUENCE,
    WINDOW,
    Broker,
    Cause,
    Client,
    ClientResult,
    ExportCursor,
    Hostname,
    HostnameCause,
    KeyValue,
    Leader,
    Lease,
    Listener,
    Process,
    VoterEntry,
    Voters,
    bytes_hash,
)
from raftlog.metadata.flat_map import FlatMutation
from raftlog.metadata.image import FoldError, ImageDraft, add_count
from raftlog.metadata.imported import fold_imported
from raftlog.metadata.partitions import (
    fold_partition,
    fold_partition_change,
    fold_partitions,
    fold_topic,
    names_nothing,
    remove_topic,
)
from raftlog.metadata.records import (
    CHANGES_NOTHING,
    Record,
    RecordType,
    UnknownRecordError,
    parse_body,
)
from raftlog.wire.records.v1 import records_pb2 as pb

_CAUSES: frozenset[int] = frozenset(Cause)
RUN_RECORDS_MIN = 3
"""Minimum size of a batch in which to look for runs of records of one type."""


class ImageBuilder(ImageDraft):
    """A builder that folds records into the image after ``base``: the same code in controller,
    broker and replay.
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
        """Fold a batch of config records that are decoded as changes; see ``apply_batch``."""
        self._begin_batch(base_offset, timestamp_ms)
        change_configs(self, changes)
        self.offset, self.epoch = base_offset + len(changes) - 1, epoch

    def apply_decoded(self, header: batch.BatchHeader, records: list[Record]) -> None:
        """Fold one whole batch of the log whose records are already decoded. Raises FoldError."""
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
        given. Raises FoldError, UnknownRecordError, CorruptLogError.

        Skips batches at or below the image's offset.
        """
        for header in batch.headers(chunk, verify=verify):
            if header.last_offset <= self.offset:
                continue
            if until is not None and header.end_offset > until:
                break
            self.apply_encoded(chunk, header)

    def apply_encoded(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Fold one batch of a chunk. The hot path of every node that did not create the records
        itself.
        """
        changes = config_records.decoded(chunk, header)
        if changes is None:
            self.apply_bodies(header, batch.bodies(chunk, header))
            return
        self.apply_plain(header, changes)

    def apply_plain(self, header: batch.BatchHeader, changes: Sequence[Change]) -> None:
        """Fold one batch of the log whose records only make these changes to config values."""
        self._begin_batch(header.base_offset, header.timestamp_ms)
        change_configs(self, changes)
        self.offset, self.epoch = header.last_offset, header.epoch
        self._remember_write(header)

    def apply_bodies(self, header: batch.BatchHeader, bodies: Iterable[batch.Body]) -> None:
        """Fold one batch of the log, given as header and bodies. Raises FoldError,
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


class FileBuilder(ImageBuilder):
    """A builder that folds a log from a file, without maintaining the counts of partitions."""

    __slots__ = ()
    counts_standings = False


def apply(image: ImageDraft, type_: int, message: Any, offset: int, epoch: int) -> None:
    """Fold one record; ``image.timestamp_ms`` is its batch's. Raises FoldError if it contradicts
    the state, UnknownRecordError.
    """
    handler = _HANDLERS.get(type_)
    if handler is None:
        raise UnknownRecordError(
            f"record type {type_} at offset {offset} is not supported by this build"
        )
    try:
        handler(image, message, offset, epoch)
    except KeyError as error:
        raise names_nothing(type_, offset, error) from error


Of = TypeVar("Of", bound=tuple[Any, ...])
"""A tuple for a record, whose first item is the record's type."""


def _apply_runs(
    image: ImageDraft,
    records: Iterable[Of],
    messages: Callable[[Iterable[Of]], Iterable[Any]],
    offset: int,
    epoch: int,
) -> None:
    """Fold records as ``apply`` does, but fold runs of one type at once where that is cheaper."""
    for type_, run in groupby(records, _TYPE):
        if type_ == RecordType.PARTITION:
            offset += fold_partitions(image, messages(run), offset)
        else:
            for message in messages(run):
                apply(image, type_, message, offset, epoch)
                offset += 1


_TYPE: Callable[[tuple[Any, ...]], int] = itemgetter(0)


def _messages(records: Iterable[Record]) -> Iterable[Any]:
    return map(attrgetter("message"), records)


def _parsed(bodies: Iterable[batch.Body]) -> Iterable[Any]:
    return starmap(parse_body, bodies)


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
            f"registration change at offset {offset} is for epoch {message.broker_epoch} of broker "
            f"{old.id}, whose epoch is {old.epoch}"
        )
    if message.cause not in _CAUSES:
        raise UnknownRecordError(
            f"cause {message.cause} at offset {offset} is not supported by this build"
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


def _config(image: ImageDraft, message: pb.ConfigRecord, offset: int, epoch: int) -> None:
    value = message.value if message.HasField("value") else None
    change = (message.resource_type, message.resource_name, message.name, value)
    change_configs(image, (change,))


def change_configs(image: ImageDraft, changes: Sequence[Change]) -> None:
    """Fold ConfigRecords that are decoded as changes; a value of None deletes the key.

    The hot path of all nodes: one loop, without calls except into C. A draft with its own
    accounting receives each change.
    """
    configs, state_hash, state_bytes = image.configs, image.state_hash, image.state_bytes
    accounts = image.accounts_in_its_own_way
    if isinstance(configs, FlatMutation) and not accounts:
        hash_growth, bytes_growth = config_records.fold(changes, *configs.written())
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
            f"this build supports at most {versions.LATEST_METADATA_VERSION}"
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


def _voters(image: ImageDraft, message: pb.VotersRecord, offset: int, epoch: int) -> None:
    entries = tuple(
        VoterEntry(v.voter_id, v.voter_directory_id, v.endpoint) for v in message.voters
    )
    leaving_id = message.leaving_id if message.HasField("leaving_id") else -1
    new = Voters(offset, entries, message.seats, leaving_id, message.reason) if entries else None
    image.replace("voters", (), image.voters, new)
    image.voters = new


def _no_op(image: ImageDraft, message: Any, offset: int, epoch: int) -> None:
    """Fold a record that changes nothing, except that its batch advances the offset. The offsets in
    a progress record are samples for readers of the log, not state.
    """


def open_client(image: ImageDraft, message: pb.OpenClientRecord, offset: int, epoch: int) -> None:
    """Fold an OpenClientRecord."""
    new = Client(offset, message.name, image.timestamp_ms, FIRST_SEQUENCE, message.principal)
    image.clients[offset] = new
    image.replace("client", (), None, new)


def close_client(image: ImageDraft, message: pb.CloseClientRecord, offset: int, epoch: int) -> None:
    """Fold a CloseClientRecord, which removes the client and its results. Raises KeyError if it is
    not open.
    """
    old = image.clients[message.client_id]
    _forget(image, old, old.all_below_done + WINDOW)
    del image.clients[old.id]
    image.replace("client", (), old, None)


def fold_identity(
    image: ImageDraft,
    client_id: int,
    sequence: int,
    all_below_done: int,
    last_offset: int,
    epoch: int,
) -> None:
    """Fold the identity in a batch's header, after the batch's records. Raises FoldError for a
    number outside the window.

    An id that is not open changes nothing: headers at metadata.version 1 contain any number that
    was sent, and a client may close itself.
    """
    old = image.clients.get(client_id)
    if old is None or not sequence:
        return
    done = max(old.all_below_done, all_below_done)
    key = (client_id, sequence)
    if not done <= sequence < done + WINDOW or key in image.client_results:
        raise FoldError(
            f"the batch up to offset {last_offset} is write {sequence} of client {client_id}, "
            f"outside its window, which begins at {done}"
        )
    _forget(image, old, done)
    result = ClientResult(client_id, sequence, last_offset, epoch)
    image.client_results[key] = result
    image.replace("client_result", (), None, result)
    new = replace(old, last_write_ms=image.timestamp_ms, all_below_done=done)
    image.clients[client_id] = new
    image.replace("client", (), old, new)


def _forget(image: ImageDraft, client: Client, below: int) -> None:
    """Drop the results of a client's numbers below ``below``."""
    for sequence in range(client.all_below_done, min(below, client.all_below_done + WINDOW)):
        key = (client.id, sequence)
        result = image.client_results.get(key)
        if result is not None:
            del image.client_results[key]
            image.replace("client_result", (), result, None)


_HOSTNAME_CAUSES: frozenset[int] = frozenset(HostnameCause)


def fold_hostname(image: ImageDraft, message: pb.HostnameRecord, offset: int, epoch: int) -> None:
    """Fold a HostnameRecord. Raises KeyError if a mapping to delete does not exist,
    UnknownRecordError for an unknown cause.
    """
    name = message.hostname
    if message.cause not in _HOSTNAME_CAUSES:
        raise UnknownRecordError(
            f"cause {message.cause} at offset {offset} is not supported by this build"
        )
    old = image.hostnames.get(name)
    if message.HasField("broker_id"):
        cause = HostnameCause(message.cause)
        new = Hostname(name, message.version, message.broker_id, offset, message.reason, cause)
        image.hostnames[name] = new
    else:
        new = None
        del image.hostnames[name]
    image.replace("hostname", (), old, new)


def fold_export_cursor(
    image: ImageDraft, message: pb.ExportCursorRecord, offset: int, epoch: int
) -> None:
    """Fold an ExportCursorRecord. Raises KeyError if a cursor to remove does not exist."""
    name = message.name
    old = image.export_cursors.get(name)
    if message.HasField("end_offset"):
        new = ExportCursor(name, message.end_offset, message.target, offset, image.timestamp_ms)
        image.export_cursors[name] = new
    else:
        new = None
        del image.export_cursors[name]
    image.replace("export_cursor", (), old, new)


def fold_key_value(image: ImageDraft, message: pb.KeyValueRecord, offset: int, epoch: int) -> None:
    """Fold a KeyValueRecord. Raises KeyError if a key to delete does not exist."""
    key = message.key
    old = image.key_values.get(key)
    new = None
    if message.HasField("value"):
        created = offset if old is None else old.create_offset
        new = KeyValue(key, message.value, created, offset, message.lease_id)
    elif old is None:
        raise KeyError(key)
    put_key_value(image, key, old, new)
    image.replace("kv", (), old, new)


def put_key_value(image: ImageDraft, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
    """Put or remove a key, and update the derived data."""
    if old is not None:
        image.key_value_bytes -= _size(old)
        if old.lease_id and (new is None or new.lease_id != old.lease_id):
            _leave(image, key, old.lease_id)
    if old is None or new is None:
        add_count(image.keys_in, directory_of(key), 1 if old is None else -1)
    if new is None:
        del image.key_values[key]
        image.key_names.remove(key)
        return
    if old is None:
        image.key_names.add(key)
    image.key_values[key] = new
    image.key_value_bytes += _size(new)
    if new.lease_id and (old is None or old.lease_id != new.lease_id):
        held = image.keys_of_lease.get(new.lease_id)
        keys = (pmap.empty() if held is None else held).mutate()
        keys[key] = True
        image.keys_of_lease[new.lease_id] = keys.finish()


def _leave(image: ImageDraft, key: str, lease_id: int) -> None:
    keys = image.keys_of_lease[lease_id].mutate()
    del keys[key]
    if len(keys):
        image.keys_of_lease[lease_id] = keys.finish()
    else:
        del image.keys_of_lease[lease_id]


def directory_of(key: str) -> str:
    """Return the part of a key before its last slash, or "" if none."""
    return key[: max(0, key.rfind("/"))]


def _size(one: KeyValue) -> int:
    return len(one.key) + len(one.value)


def fold_lease(image: ImageDraft, message: pb.LeaseRecord, offset: int, epoch: int) -> None:
    """Fold a LeaseRecord."""
    new = Lease(offset, message.name, message.ttl_ms, message.principal)
    image.leases[offset] = new
    image.replace("lease", (), None, new)


def remove_lease(image: ImageDraft, message: pb.RemoveLeaseRecord, offset: int, epoch: int) -> None:
    """Fold a RemoveLeaseRecord. Raises KeyError if the lease does not exist."""
    old = image.leases[message.lease_id]
    del image.leases[old.id]
    image.replace("lease", (), old, None)


def add_entry(
    image: ImageDraft, message: pb.AccessControlEntryRecord, offset: int, epoch: int
) -> None:
    """Fold an AccessControlEntryRecord. Raises FoldError if the id exists."""
    if message.id in image.acls:
        raise FoldError(f"the entry {message.id.hex()} at offset {offset} already exists")
    put_entry(image, AccessControlEntry(message.id, *Binding.of(message)))
    image.replace("acl", (), None, image.acls[message.id])


def put_entry(image: ImageDraft, entry: AccessControlEntry) -> None:
    """Put an entry into the image and its index."""
    image.acls[entry.id] = entry
    image.acl_index = image.acl_index.with_entry(entry)


def remove_entry(
    image: ImageDraft, message: pb.RemoveAccessControlEntryRecord, offset: int, epoch: int
) -> None:
    """Fold a RemoveAccessControlEntryRecord. Raises KeyError if the id does not exist."""
    old = image.acls[message.id]
    del image.acls[message.id]
    image.acl_index = image.acl_index.without(old)
    image.replace("acl", (), old, None)


_HANDLERS: dict[int, Callable[[ImageDraft, Any, int, int], None]] = {
    RecordType.REGISTER_BROKER: _register_broker,
    RecordType.UNREGISTER_BROKER: _unregister_broker,
    RecordType.BROKER_REGISTRATION_CHANGE: _change_registration,
    RecordType.TOPIC: fold_topic,
    RecordType.PARTITION: fold_partition,
    RecordType.PARTITION_CHANGE: fold_partition_change,
    RecordType.REMOVE_TOPIC: remove_topic,
    RecordType.CONFIG: _config,
    RecordType.FEATURE_LEVEL: _feature_level,
    RecordType.LEADER_CHANGE: _leader_change,
    RecordType.VOTERS: _voters,
    RecordType.OPEN_CLIENT: open_client,
    RecordType.CLOSE_CLIENT: close_client,
    RecordType.HOSTNAME: fold_hostname,
    RecordType.EXPORT_CURSOR: fold_export_cursor,
    RecordType.KEY_VALUE: fold_key_value,
    RecordType.LEASE: fold_lease,
    RecordType.REMOVE_LEASE: remove_lease,
    RecordType.IMPORTED: fold_imported,
    RecordType.ACCESS_CONTROL_ENTRY: add_entry,
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY: remove_entry,
    **dict.fromkeys(CHANGES_NOTHING, _no_op),
}
