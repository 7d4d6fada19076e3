"""The image: all metadata at one offset, immutable; and the draft of the next one.

An image costs a handful of references, so a pending one, a committed one and one at LAO live side
by side for the price of their difference. ``Image`` and ``ImageDraft`` both offer the maps below
for look-ups (``ImageView``); only an ``Image`` may be iterated, and iteration order means
nothing.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from raftlog.errors import FatalError
from raftlog.metadata import pmap
from raftlog.metadata.acls import AccessControlEntry, AclIndex
from raftlog.metadata.entities import (
    HASH_MASK,
    Applied,
    Broker,
    Client,
    ClientResult,
    ExportCursor,
    Hostname,
    KeyValue,
    Leader,
    Lease,
    Partition,
    Progress,
    Topic,
    Voters,
    bytes_hash,
    entity_bytes,
)
from raftlog.metadata.flat_map import FlatMutation
from raftlog.metadata.replica_index import ReplicaIndex, Replicas

PartitionKey = tuple[bytes, int]
ConfigKey = tuple[int, str]
ClientResultKey = tuple[int, int]


class FoldError(FatalError):
    """A committed record contradicts the state to which it is applied.

    The same on every node: stop, never skip.
    """


class Image(msgspec.Struct, frozen=True, eq=False):
    """All metadata after the record at ``offset`` (inclusive; -1: nothing yet), which is always the
    end of a log batch.
    """

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = 0
    state_hash: int = 0
    features: pmap.Map[str, int] = msgspec.field(default_factory=pmap.empty)
    brokers: pmap.Map[int, Broker] = msgspec.field(default_factory=pmap.empty)
    topics: pmap.Map[bytes, Topic] = msgspec.field(default_factory=pmap.empty)
    topic_ids: pmap.Map[str, bytes] = msgspec.field(default_factory=pmap.empty)
    partitions: pmap.Map[PartitionKey, Partition] = msgspec.field(default_factory=pmap.empty)
    replicas_of: pmap.Map[int, Replicas] = msgspec.field(default_factory=pmap.empty)
    """Broker id -> the partitions of which it has a replica, so that fencing it touches only those.
    """
    configs: pmap.Map[ConfigKey, dict[str, str]] = msgspec.field(default_factory=pmap.empty)
    """(resource type, resource name) -> its configs. The dicts are never changed in place."""
    applied: pmap.Map[int, Applied] = msgspec.field(default_factory=pmap.empty)
    clients: pmap.Map[int, Client] = msgspec.field(default_factory=pmap.empty)
    client_results: pmap.Map[ClientResultKey, ClientResult] = msgspec.field(
        default_factory=pmap.empty
    )
    """(client id, sequence) -> the result of that write."""
    hostnames: pmap.Map[str, Hostname] = msgspec.field(default_factory=pmap.empty)
    export_cursors: pmap.Map[str, ExportCursor] = msgspec.field(default_factory=pmap.empty)
    acls: pmap.Map[bytes, AccessControlEntry] = msgspec.field(default_factory=pmap.empty)
    acl_index: AclIndex = msgspec.field(default_factory=AclIndex)
    """Index of ``acls``, for verdicts."""
    key_values: pmap.Map[str, KeyValue] = msgspec.field(default_factory=pmap.empty)
    keys_of_lease: pmap.Map[int, pmap.Map[str, bool]] = msgspec.field(default_factory=pmap.empty)
    """Lease id -> its keys, so that its end touches only those."""
    leases: pmap.Map[int, Lease] = msgspec.field(default_factory=pmap.empty)
    imported: pmap.Map[tuple[str, str], str] = msgspec.field(default_factory=pmap.empty)
    """(kind, key) -> JSON: entities of an imported log that raftlog does not have."""
    leader: Leader | None = None
    progress: Progress | None = None
    voters: Voters | None = None
    """Voters named by the log; None: it names none, and the configured set counts."""
    state_bytes: int = 0
    """Size of all entities' canonical bytes: about the size of a snapshot."""
    key_value_bytes: int = 0
    """Size of all keys and values of the key-value store, in bytes."""

    def snapshot(self) -> Image:
        """Return this image."""
        return self


class ImageDraft:
    """A draft of an image: mutable maps over those of ``base``.

    Usable again after ``snapshot``.
    """

    __slots__ = (
        "_base",
        "acl_index",
        "acls",
        "applied",
        "brokers",
        "client_results",
        "clients",
        "configs",
        "epoch",
        "export_cursors",
        "features",
        "hostnames",
        "imported",
        "key_value_bytes",
        "key_values",
        "keys_of_lease",
        "leader",
        "leases",
        "offset",
        "partitions",
        "progress",
        "replicas_of",
        "state_bytes",
        "state_hash",
        "timestamp_ms",
        "topic_ids",
        "topics",
        "voters",
    )

    def __init__(self, base: Image) -> None:
        self._reset(base)

    def _reset(self, base: Image) -> None:
        self._base = base
        self.offset, self.epoch, self.timestamp_ms = base.offset, base.epoch, base.timestamp_ms
        self.state_hash, self.state_bytes = base.state_hash, base.state_bytes
        self.features = base.features.mutate()
        self.brokers = base.brokers.mutate()
        self.topics = base.topics.mutate()
        self.topic_ids = base.topic_ids.mutate()
        self.partitions = base.partitions.mutate()
        self.replicas_of = ReplicaIndex(base.replicas_of)
        self.configs = base.configs.mutate()
        self.applied = base.applied.mutate()
        self.clients = base.clients.mutate()
        self.client_results = base.client_results.mutate()
        self.hostnames = base.hostnames.mutate()
        self.export_cursors = base.export_cursors.mutate()
        self.acls, self.acl_index = base.acls.mutate(), base.acl_index
        self.key_values = base.key_values.mutate()
        self.keys_of_lease = base.keys_of_lease.mutate()
        self.key_value_bytes = base.key_value_bytes
        self.leases = base.leases.mutate()
        self.imported = base.imported.mutate()
        self.leader, self.progress, self.voters = base.leader, base.progress, base.voters

    def snapshot(self) -> Image:
        """Return the image of everything folded so far."""
        image = Image(
            self.offset,
            self.epoch,
            self.timestamp_ms,
            self.state_hash & HASH_MASK,
            self.features.finish(),
            self.brokers.finish(),
            self.topics.finish(),
            self.topic_ids.finish(),
            self.partitions.finish(),
            self.replicas_of.finish(),
            self.configs.finish(),
            self.applied.finish(),
            self.clients.finish(),
            self.client_results.finish(),
            self.hostnames.finish(),
            self.export_cursors.finish(),
            self.acls.finish(),
            self.acl_index,
            self.key_values.finish(),
            self.keys_of_lease.finish(),
            self.leases.finish(),
            self.imported.finish(),
            self.leader,
            self.progress,
            self.voters,
            self.state_bytes,
            self.key_value_bytes,
        )
        self._reset(image)
        return image

    def snapshot_of_configs(self) -> Image:
        """Return the image, where nothing but config values was folded since the last one: all
        other maps are those of that image.
        """
        image = self._base = replace(
            self._base,
            offset=self.offset,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            state_hash=self.state_hash & HASH_MASK,
            configs=self.configs.finish(),
            state_bytes=self.state_bytes,
        )
        self.configs = image.configs.mutate()
        self.state_hash = image.state_hash
        return image

    def abandon(self) -> None:
        """Undo everything folded since the last snapshot; this draft must not be used any more.

        Its base can be folded forward again at once: no newer version is left.
        """
        del self._base
        if isinstance(self.configs, FlatMutation):
            self.configs.abandon()

    @property
    def accounts_in_its_own_way(self) -> bool:
        """True if ``replace`` must be called for each change, even where many are accounted at
        once.
        """
        return type(self).replace is not ImageDraft.replace

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Account an entity's change in the state hash and in the size of the state."""
        if old is not None:
            content = entity_bytes((kind, *key, old))
            self.state_hash -= bytes_hash(content)
            self.state_bytes -= len(content)
        if new is not None:
            content = entity_bytes((kind, *key, new))
            self.state_hash += bytes_hash(content)
            self.state_bytes += len(content)


ImageView = Image | ImageDraft
"""The look-ups that decisions need: of an image, or of a draft. Only an image may be iterated."""
