"""Which entities the batches between two images touched, so that nobody has to look through the
whole image for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.partition.events import Changes
from raftlog.config_writes.messages import Change
from raftlog.metadata.image import ConfigKey
from raftlog.metadata.records import Record, RecordType
from raftlog.node.storage.partition_api import PartitionKey

KEPT_MAX = 200_000
"""Beyond so many touched entities a look through everything is no dearer."""
_PARTITION = frozenset({RecordType.PARTITION, RecordType.PARTITION_CHANGE})
_BROKER = frozenset(
    {
        RecordType.REGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.UNREGISTER_BROKER,
    }
)


class ChangeCollector:
    """Collects until somebody takes; ``take`` gives None when anything may have changed."""

    def __init__(self) -> None:
        self._all = True
        self._clear()

    def _clear(self) -> None:
        self._partitions: dict[PartitionKey, None] = {}
        self._topics: dict[bytes, None] = {}
        self._brokers: dict[int, None] = {}
        self._configs: dict[ConfigKey, None] = {}

    def note(self, records: Iterable[Record]) -> None:
        """The records of a batch that is applied."""
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
        """The records of a batch that sets config values and does nothing else."""
        if not self._all:
            for resource_type, resource_name, _, _ in changes:
                self._configs[resource_type, resource_name] = None

    def everything(self) -> None:
        """The image was replaced: anything may differ."""
        self._all = True
        self._clear()

    def take(self) -> Changes | None:
        """What was touched since the last call."""
        if self._all:
            self._all = False
            return None
        taken = Changes(
            tuple(self._partitions), tuple(self._topics), tuple(self._brokers), tuple(self._configs)
        )
        self._clear()
        return taken
