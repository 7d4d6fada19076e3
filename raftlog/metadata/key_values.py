"""Keys of the key-value store and leases in the image: the base of locks and elections.

Keys and leases are groups of their own, so neither fold looks at the other. The keys of a lease are
an index of the keys alone; the controller ensures that no key outlives its lease: it deletes them
before, or in the batch, that removes it.
"""

from __future__ import annotations

from raftlog.metadata import pmap
from raftlog.metadata.entities import KeyValue, Lease
from raftlog.metadata.image import ImageDraft
from raftlog.wire.records.v1 import records_pb2 as pb


def fold_key_value(image: ImageDraft, message: pb.KeyValueRecord, offset: int, epoch: int) -> None:
    """Fold a KeyValueRecord. Raises KeyError for the deletion of a key that does not exist."""
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
    """Put or remove a key, and update the facts derived from it."""
    if old is not None:
        image.key_value_bytes -= _size(old)
        if old.lease_id and (new is None or new.lease_id != old.lease_id):
            _leave(image, key, old.lease_id)
    if new is None:
        del image.key_values[key]
        return
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
