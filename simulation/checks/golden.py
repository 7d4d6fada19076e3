"""The committed log and, by offset, the state hashes, configs, registrations and voter sets that
follow from it. All checkers compare nodes with it. Configs and registrations are read from the
records, not from raftlog's own fold.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

from raftlog import batch
from raftlog.endpoint import Voter, VotersAt
from raftlog.errors import FatalError
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Partition
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, decoded
from simulation.checks.api import BrokerView, CheckFailedError, fail
from simulation.checks.node_log import Logged, LogHashes

BatchListener = Callable[[Logged, list[Record]], None]
Note = Callable[[Any, int, int], None]
"""Called with a record's message, its offset, and the epoch of its batch."""


class Standing(NamedTuple):
    """The state of a broker's registration from ``offset`` on. ``broker_epoch``: -1 if there is
    none.
    """

    offset: int
    broker_epoch: int
    fenced: bool
    controller_epoch: int
    """Controller epoch of the record that set this state."""
    committed_at: float


NOT_REGISTERED = Standing(-1, -1, True, 0, 0.0)


class GoldenLog:
    """The committed log. End offsets are exclusive; the offset of an image is inclusive."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.now = now
        self.batches: list[Logged] = []
        self._ends: list[int] = []
        self._builder = ImageBuilder(Image())
        self.hashes: dict[int, tuple[int, int]] = {-1: (0, 0)}
        """Offset of an image -> (epoch, state hash)."""
        self.log_hashes = LogHashes()
        """Hash of the log up to each offset, computed independently from the bytes."""
        self.images: dict[int, Image] = {-1: Image()}
        """Image at each batch end, by the offset of the batch's last record."""
        self.voter_sets: list[VotersAt] = []
        self.generation = NO_GENERATION
        """The generation at the end; NO_GENERATION if the next leader has to choose one."""
        self.generations: list[int] = []
        self.listeners: list[BatchListener] = []
        self._configs: dict[tuple[int, str, str], tuple[list[int], list[str | None]]] = {}
        self._standings: dict[int, list[Standing]] = {}
        self._topics: dict[str, tuple[list[int], list[bool]]] = {}
        self._topic_names: dict[bytes, str] = {}
        self._notes: dict[int, Note] = {
            RecordType.CONFIG: self._config_changed,
            RecordType.REGISTER_BROKER: self._stand,
            RecordType.BROKER_REGISTRATION_CHANGE: self._registration_changed,
            RecordType.UNREGISTER_BROKER: self._unregistered,
            RecordType.TOPIC: self._topic_created,
            RecordType.REMOVE_TOPIC: self._topic_removed,
            RecordType.LEADER_CHANGE: self._leader_changed,
            RecordType.RECOVERY: self._recovered,
        }
        self._subscribers: dict[int, list[Note]] = {}

    def on(self, note: Note, *types: RecordType) -> None:
        """Call ``note`` for each committed record of these types, after its batch was applied."""
        for one in types:
            self._subscribers.setdefault(one, []).append(note)

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, end_offset: int) -> tuple[int, int] | None:
        """Return (epoch, hash chain) of the log below an offset; None if no batch ends there."""
        if end_offset == 0:
            return 0, 0
        index = bisect_left(self._ends, end_offset)
        if index == len(self._ends) or self._ends[index] != end_offset:
            return None
        return self.batches[index].header.epoch, self.batches[index].chain

    def append(self, logged: Logged) -> None:
        """Append the next committed batch. Raises CheckFailedError if it cannot be folded."""
        header = logged.header
        records = [decoded(data) for data in batch.records(logged.data, header)]
        try:
            self._builder.apply_decoded(header, records)
        except FatalError as error:
            raise CheckFailedError(
                f"what is committed at {header.base_offset} cannot be folded: {error}"
            ) from error
        self.log_hashes.append(logged, records)
        self.batches.append(logged)
        self._ends.append(logged.end_offset)
        image = self.images[header.last_offset] = self._builder.snapshot()
        self.hashes[header.last_offset] = (header.epoch, image.state_hash)
        if logged.voters is not None:
            self.voter_sets.append(logged.voters)
        for offset, record in enumerate(records, header.base_offset):
            if (note := self._notes.get(record.type)) is not None:
                note(record.message, offset, header.epoch)
        for offset, record in enumerate(records, header.base_offset):
            for note in self._subscribers.get(record.type, ()):
                note(record.message, offset, header.epoch)
        for listener in self.listeners:
            listener(logged, records)

    def _leader_changed(self, message: Any, offset: int, epoch: int) -> None:
        if self.generation == NO_GENERATION:
            if message.generation in (NO_GENERATION, *self.generations):
                fail(
                    f"generations: the leader of epoch {epoch} begins generation"
                    f" {message.generation} at {offset}, after {self.generations}"
                )
            self.generation = message.generation
            self.generations.append(self.generation)
        elif message.generation != self.generation:
            fail(
                f"generations: the leader of epoch {epoch} says generation {message.generation} at"
                f" {offset}, the log is of {self.generation}"
            )

    def _recovered(self, message: Any, offset: int, epoch: int) -> None:
        if message.previous_generation != self.generation:
            fail(
                f"generations: the recovery at {offset} ends generation"
                f" {message.previous_generation}, the log is of {self.generation}"
            )
        self.generation = NO_GENERATION

    def behind(self, end_offset: int) -> list[Logged]:
        return self.batches[bisect_right(self._ends, end_offset) :]

    def image(self) -> Image:
        return self.images[self.end - 1]

    def partition(self, key: tuple[bytes, int]) -> Partition | None:
        """Return a partition's state at the end of the log, by raftlog's own fold."""
        return self._builder.partitions.get(key)

    def voters_at(self, end_offset: int) -> tuple[Voter, ...] | None:
        """Return the last voter set in the log below an offset; None if there is none."""
        index = bisect_left(self.voter_sets, end_offset, key=lambda found: found.offset)
        return (self.voter_sets[index - 1].voters or None) if index else None

    def config(self, kind: int, resource: str, key: str, offset: int) -> str | None:
        offsets, values = self._configs.get((kind, resource, key), ((), ()))
        index = bisect_right(offsets, offset)
        return values[index - 1] if index else None

    def topics(self, offset: int) -> tuple[str, ...]:
        """Return the sorted topic names at ``offset``."""
        found = []
        for name, (offsets, there) in self._topics.items():
            index = bisect_right(offsets, offset)
            if index and there[index - 1]:
                found.append(name)
        return tuple(sorted(found))

    def topic_name(self, topic_id: bytes) -> str:
        return self._topic_names[topic_id]

    def existence(self, topic: str, first: int, last: int) -> set[bool]:
        """Return the answers to "does the topic exist?" at offsets ``first`` to ``last``."""
        offsets, states = self._topics.get(topic, ((), ()))
        before, until = bisect_right(offsets, first), bisect_right(offsets, last)
        return {bool(before) and states[before - 1], *states[before:until]}

    def standing(self, broker_id: int) -> Standing:
        history = self._standings.get(broker_id)
        return history[-1] if history else NOT_REGISTERED

    def standing_at(self, broker_id: int, offset: int) -> Standing:
        history = self.standings(broker_id)
        index = bisect_right(history, offset, key=lambda standing: standing.offset)
        return history[index - 1] if index else NOT_REGISTERED

    def is_unfenced(self, host: BrokerView) -> bool:
        """Return whether this process of a broker is registered and unfenced at the log's end."""
        standing, service = self.standing(host.id), host.service
        return (
            service is not None
            and not standing.fenced
            and standing.broker_epoch == service.lifecycle.epoch
        )

    def standings(self, broker_id: int) -> list[Standing]:
        return self._standings.get(broker_id, [])

    def _config_changed(self, message: Any, offset: int, epoch: int) -> None:
        key = (message.resource_type, message.resource_name, message.name)
        offsets, values = self._configs.setdefault(key, ([], []))
        offsets.append(offset)
        values.append(message.value if message.HasField("value") else None)

    def _stand(self, message: Any, offset: int, epoch: int) -> None:
        standing = Standing(offset, message.broker_epoch, message.fenced, epoch, self.now())
        self._standings.setdefault(message.broker_id, []).append(standing)

    def _registration_changed(self, message: Any, offset: int, epoch: int) -> None:
        if message.HasField("fenced"):
            self._stand(message, offset, epoch)

    def _unregistered(self, message: Any, offset: int, epoch: int) -> None:
        standing = Standing(offset, -1, True, epoch, self.now())
        self._standings.setdefault(message.broker_id, []).append(standing)

    def _topic_created(self, message: Any, offset: int, epoch: int) -> None:
        self._topic_names[message.topic_id] = message.name
        self._topic(message.name, offset, True)

    def _topic_removed(self, message: Any, offset: int, epoch: int) -> None:
        self._topic(self._topic_names[message.topic_id], offset, False)

    def _topic(self, name: str, offset: int, there: bool) -> None:
        offsets, states = self._topics.setdefault(name, ([], []))
        offsets.append(offset)
        states.append(there)
