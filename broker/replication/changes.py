"""The entities that the batches between two images touched: saves a scan of the whole image."""

from __future__ import annotations

from collections.abc import Iterable

from broker.partition.events import Changes
from raftlog.config_writes.messages import Change
from raftlog.metadata.image import ConfigKey
from raftlog.metadata.records import Record, RecordType
from raftlog.node.storage.partition_api import PartitionKey

KEPT_MAX = 200_000
"""Number of touched entities beyond which a scan of everything is no dearer."""
_PARTITION = frozenset({RecordType.PARTITION, RecordType.PARTITION_CHANGE})
_BROKER = frozenset(
    {
        RecordType.REGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.UNREGISTER_BROKER,
    }
)


class ChangeCollector:
    """The changes since the last ``take``, which returns None when anything may have changed."""

    def __init__(self) -> None:
        self._all = True
        self._clear()

    def _clear(self) -> None:
        self._partitions: dict[PartitionKey, None] = {}
        self._topics: dict[bytes, None] = {}
        self._brokers: dict[int, None] = {}
        self._configs: dict[ConfigKey, None] = {}

    def note(self, records: Iterable[Record]) -> None:
        """Note the records of an applied batch."""
        if self._all:
            return
        for record in records:
            message, kind = record.message, record.type
            if kind in _PARTITION:
                self._partitions[message.topic_id, message.partition_id] = None
            elif kind in _BROKER:
                self._brokers[message.broker_id] = None
            elif kind == RecordType.CONFIG:
                self._configs[message.resource_type, message.resource_name] = None
            elif kind == RecordType.REMOVE_TOPIC:
                self._topics[message.topic_id] = None
        if len(self._partitions) > KEPT_MAX:
            self.everything()

    def note_configs(self, changes: Iterable[Change]) -> None:
        """Note the records of a batch that sets config values and does nothing else."""
        if not self._all:
            for resource_type, resource_name, _, _ in changes:
                self._configs[resource_type, resource_name] = None

    def everything(self) -> None:
        """Note that the image was replaced: anything may differ."""
        self._all = True
        self._clear()

    def take(self) -> Changes | None:
        """Return the entities touched since the last call."""
        if self._all:
            self._all = False
            return None
        taken = Changes(
            tuple(self._partitions), tuple(self._topics), tuple(self._brokers), tuple(self._configs)
        )
        self._clear()
        return taken
