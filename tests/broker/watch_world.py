"""A view, a watch hub on it, and recording watchers."""

from collections.abc import Sequence
from typing import Any

from broker_log import LogMaker, topic_id

from broker.metadata.view import View
from broker.watch.hub import Sending, WatchHub
from raftlog.metadata.changes import Change, ChangeRecorder, Position, ordered_changes
from raftlog.metadata.image import Image
from raftlog.metadata.selectors import parse_selectors, path_of
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as rec

ME = 7
LAO, TIP = int(pb.REPEATABLE), int(pb.LATEST)


class Reader:
    def __init__(
        self, name: str, selectors: Sequence[str], mode: int, since: pb.WatchToken | None
    ) -> None:
        self.name, self.selectors, self.mode = name, selectors, mode
        self.begun = since
        self.changes: list[pb.WatchChange] = []
        self.tokens: list[pb.WatchToken] = []
        self.responses: list[pb.WatchResponse] = []
        self.room = True
        self.end: pb.WatchResponse | None = None

    def hear(self, told: Sending) -> None:
        assert self.end is None, "nothing comes after the end"
        response = pb.WatchResponse.FromString(told.data)
        self.responses.append(response)
        self.changes += response.changes
        assert told.ends == response.HasField("error")
        if told.ends:
            self.end = response
        elif response.HasField("token"):
            self.tokens.append(response.token)

    @property
    def ended(self) -> pb.WatchResponse:
        """The last response, which must have come."""
        assert self.end is not None
        return self.end


class World:
    """``permitted``: the paths that each principal may see, by kind (None: all)."""

    def __init__(self, *, history_max_bytes: int = 1 << 30, image_max_bytes: int = 1 << 30) -> None:
        self.view, self.log = View(ME, max_bytes=image_max_bytes), LogMaker()
        self.hidden: set[tuple[str, str]] = set()
        self.readers: dict[str, Reader] = {}
        self.now = 0.0
        self._draft, self._truth, self._folded = ChangeRecorder(Image()), list[Change](), 0
        self.hub = WatchHub(
            history_max_bytes=history_max_bytes,
            generation=lambda: self.view.generation,
            image_of=lambda mode: self.view.tip if mode == TIP else self.view.repeatable,
            permits=lambda asker, kind, key: (kind, key) not in self.hidden,
            has_room=lambda name: self.readers[name].room,
        )
        self.view.tip_listener = self.hub
        self.view.reset(0)
        self.log.leader()
        self.log.unfence(ME, self.log.register(ME))
        self.show()

    def apply(self, until: int | None = None) -> None:
        chunk = self.log.since(self.view.applied + 1, until)
        if chunk:
            self.view.apply(chunk, high_watermark=self.log.end)
        self.moved()

    def receive(self, lao: int | None = None) -> None:
        """Apply everything that the log contains, and receive LAO: by default its last offset."""
        self.apply()
        self.lao(self.log.last if lao is None else lao)

    def show(self, lao: int | None = None) -> None:
        """Receive, and do all pending work."""
        self.receive(lao)
        self.work()

    def lao(self, offset: int) -> None:
        self.view.hear(self.log.epoch, offset, self.log.end)
        self.moved()

    def moved(self) -> None:
        image = self.view.repeatable
        self.hub.moved(self.view.applied if image is None else image.offset)

    def watch(
        self,
        name: str,
        *selectors: str,
        mode: int = LAO,
        since: pb.WatchToken | None = None,
        initial: bool = False,
        asker: Any = None,
        progress_ms: int = 1000,
    ) -> Reader:
        reader = self.readers[name] = Reader(name, selectors, mode, since)
        self.hub.watch(
            name, parse_selectors(selectors), mode=mode, asker=asker, since=since,
            initial=initial, progress_ms=progress_ms, now=self.now,
        )  # fmt: skip
        return reader

    def work(self) -> int:
        pieces = 0
        while (told := self.hub.work(self.now)) is not None:
            pieces += 1
            assert pieces < 100_000, "it never ends"
            for one in told:
                self.readers[one.handle].hear(one)
        return pieces

    def config(self, topic: str, value: str, name: str = "retention.ms") -> int:
        self.log.config(value, name=name, kind=2, resource=topic)
        return self.log.last

    def topic(self, name: str, partitions: int = 1) -> int:
        self.log.topic(name, *(([ME], ME) for _ in range(partitions)))
        return self.log.last

    def remove(self, name: str) -> int:
        self.log.append(rec.RemoveTopicRecord(topic_id=topic_id(name)))
        return self.log.last

    def truth(self) -> list[Change]:
        """Return all changes of the log, by one fold."""
        for _, data in self.log.batches[self._folded :]:
            self._truth += ordered_changes(self._draft, data)
        self._folded = len(self.log.batches)
        return self._truth

    def expected(self, reader: Reader, after: Position, until: Position) -> list[tuple[Any, ...]]:
        selection = parse_selectors(reader.selectors)
        wanted = []
        for one in self.truth():
            value = one.after if one.after is not None else one.before
            path = path_of(one.kind, one.key, value)
            if after < one.position <= until and selection.matches(path):
                wanted.append((one.position.offset, path))
        return wanted


def token(offset: int, part: int = 0, generation: int = 0) -> pb.WatchToken:
    return pb.WatchToken(generation=generation, epoch=1, offset=offset, part=part)
