"""A log in which hosts are mapped for every cause: as a build of before their causes wrote it and
decided on it, and as this one does.

``old_mappings.json`` was made by the code at f2ea890, at metadata.version 5, from the very story
below: the log, its state hashes, a snapshot, and what a controller that took over decided.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from test_broker_ids import ADOPT_S, Ids, at
from test_features import Quorum

from controller.decisions.brokers.hostnames import COLLECT_INTERVAL_S, is_stale
from controller.settings import ControllerSettings
from raftlog import batch
from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, parse
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

RECORDED = Path(__file__).with_suffix(".json")
OLD_LEVEL, KNOWN_LEVEL = 5, 6
FEATURES = [
    pb.FeatureRange(name="lao.version", max_supported_version=1),
    pb.FeatureRange(
        name="metadata.version", min_supported_version=1, max_supported_version=KNOWN_LEVEL
    ),
]


def alter(hostname: str, broker_id: int | None) -> rpc.AlterHostnamesRequest:
    return rpc.AlterHostnamesRequest(
        alterations=[rpc.HostnameAlteration(hostname=hostname, broker_id=broker_id)]
    )


class Controller(Ids):
    """Brokers of one build, whatever the newest one knows; and the log that is written."""

    def __init__(self, brokers: int = 0, **fields: Any) -> None:
        self.batches: list[bytes] = []
        quorum = Quorum(dict.fromkeys((1, 2, 3), KNOWN_LEVEL))
        super().__init__(brokers, quorum=quorum, **fields)

    def _fold(self, records: list[Record]) -> None:
        data = [each.data for each in records]
        self.batches.append(
            batch.encode(
                data, base_offset=self.pending.offset + 1, epoch=self.epoch, timestamp_ms=0
            )
        )
        super()._fold(records)

    def register(self, broker_id: int, incarnation: str = "", **fields: Any) -> int:
        return super().register(broker_id, incarnation, **{"features": FEATURES, **fields})

    def chosen(self, host: str, port: int = 9092) -> list[Any]:
        """The id that a broker there would get, and where it is from; or what it is told."""
        decision = self.decide(self.wanted(host, port, features=FEATURES))
        if decision.error is not None:
            return [host, int(decision.error.code)]
        maps = [one.message.hostname for one in decision.records if one.type == RecordType.HOSTNAME]
        return [host, decision.body.broker_id, int(decision.body.id_source), maps]


class Story(Controller):
    """Mappings by registrations and by hand, before and behind a registration; one of either that
    is deleted, and one that is stale.
    """

    def __init__(self, level: int) -> None:
        super().__init__(settings=ControllerSettings(bootstrap_metadata_version=level))
        for broker_id in (1, 2, 3, 4, 5):
            self.on(broker_id, f"h{broker_id}")
        self.create_on((1, 2, 3, 4, 5))
        self.send(alter("before", 3))
        self.silence(3, 4)
        self.on(3, "h3b", incarnation="3b")
        self.on(4, "h4b", incarnation="4b")
        for host, meant in (
            ("h1", 1),
            ("spare", 2),
            ("unused", 77),
            ("wrong", 78),
            ("wrong", None),
            ("behind", 4),
        ):
            self.send(alter(host, meant))
        self.kept_at = self.pending.snapshot()
        self.wait(COLLECT_INTERVAL_S)
        self.send(alter("late", 3))
        self.lose(2)
        self.taken_at = self.pending.snapshot()
        self.lose(5)
        self.missing_at = self.pending.snapshot()


def decided(image: Image) -> dict[str, Any]:
    """What a controller decides that takes over at the image: what is stale, what an alteration
    changes, and who gets which id.
    """
    at_ = Controller(image=image, epoch=9, bootstrap=False)
    told: dict[str, Any] = {
        "mapped": [
            [one.name, one.broker_id, one.offset] for _, one in sorted(image.hostnames.items())
        ],
        "stale": [name for name, one in sorted(image.hostnames.items()) if is_stale(image, one)],
        "altered": [
            [name, len(at_.decide(alter(name, one.broker_id)).records)]
            for name, one in sorted(image.hostnames.items())
        ],
        "registered": [
            [broker_id, len(at_.decide(again(broker_id, host)).records)]
            for broker_id, host in ((1, "h1"), (2, "h2"), (2, "spare"), (3, "h3b"), (4, "behind"))
        ],
    }
    at_.wait(ADOPT_S + COLLECT_INTERVAL_S)
    told["kept"] = sorted(at_.pending.snapshot().hostnames)
    told["chosen"] = [
        at_.chosen(host)
        for host in ("h1", "h2", "h3", "h3b", "spare", "unused", "behind", "late", "new")
    ]
    return told


def again(broker_id: int, host: str) -> rpc.RegisterBrokerRequest:
    """A registration of another process that has the id."""
    return rpc.RegisterBrokerRequest(
        broker_id=broker_id,
        cluster_id="test-cluster",
        incarnation_id=f"again-{broker_id}",
        listeners=at(host),
        features=FEATURES,
        registration_version=1,
        previous_broker_epoch=-1,
    )


def images(batches: list[bytes]) -> list[Image]:
    """After each batch."""
    draft, found = ImageBuilder(Image()), []
    for data in batches:
        draft.apply_chunk(data)
        found.append(draft.snapshot())
    return found


def decoded(data: bytes) -> list[Record]:
    (header,) = batch.headers(data)
    return [
        Record(one.type, one.version, one.body, parse(one)) for one in batch.records(data, header)
    ]


def snapshot_of(image: Image) -> bytes:
    return b"".join(pieces(image, header_of(image, cluster_id="c", generations=())))


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def old() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(RECORDED.read_text())
    return recorded


def old_batches() -> list[bytes]:
    return [unpacked(text) for text in old()["batches"]]


def told() -> dict[str, Any]:
    """What is recorded, of the build that runs this."""
    story = Story(OLD_LEVEL)
    hashes = [format_hash(image.state_hash) for image in images(story.batches)]
    return {
        "batches": [packed(data) for data in story.batches],
        "state_hashes": hashes,
        "snapshot": packed(snapshot_of(story.taken_at)),
        "decided": {
            str(image.offset): json.loads(json.dumps(decided(image)))
            for image in (story.kept_at, story.taken_at, story.missing_at)
        },
    }


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(told()) + "\n")
