"""Exactly-once clients in the image, compared with a plain model."""

import random
from typing import Any

import pytest

from raftlog import batch
from raftlog.metadata.describe import image_to_dict
from raftlog.metadata.entities import HASH_MASK, WINDOW
from raftlog.metadata.fold import ImageBuilder, apply, fold_identity
from raftlog.metadata.image import FoldError, Image
from raftlog.metadata.records import (
    Record,
    UnknownRecordError,
    client_group,
    decoded,
    group_of,
    record,
)
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.wire.records.v1 import records_pb2 as pb

Batch = tuple[list[Record], dict[str, Any]]


def config(value: str) -> Record:
    return record(pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value=value))


class ClientsModel:
    """Clients as plain dicts, with a random history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clients: dict[int, dict[str, Any]] = {}
        self.batches: list[Batch] = []
        self.offset = 0
        self.time = 1000

    def add(self, records: list[Record], **identity: Any) -> int:
        self.time += self.rng.randrange(3)
        place = {"base_offset": self.offset, "epoch": 3, "timestamp_ms": self.time}
        self.batches.append((records, place | identity))
        self.offset += len(records)
        return self.offset - 1

    def open(self) -> None:
        client_id = self.add([record(pb.OpenClientRecord(name=f"c{self.offset}"))])
        self.clients[client_id] = {
            "id": client_id,
            "name": f"c{client_id}",
            "principal": "",
            "last_write_ms": self.time,
            "all_below_done": 1,
            "results": {},
        }

    def close(self) -> None:
        client_id = self.rng.choice(sorted(self.clients))
        identity = {"client_id": client_id, "sequence": 999} if self.rng.random() < 0.3 else {}
        self.add([record(pb.CloseClientRecord(client_id=client_id))], **identity)
        del self.clients[client_id]

    def write(self) -> None:
        client = self.clients[self.rng.choice(sorted(self.clients))]
        done = self.rng.choice(
            [0, client["all_below_done"], client["all_below_done"] + self.rng.randrange(2 * WINDOW)]
        )
        begin = max(done, client["all_below_done"])
        sequence = self.rng.randrange(begin, begin + WINDOW)
        if sequence in client["results"]:
            return
        records = [config(str(self.offset)) for _ in range(self.rng.randrange(1, 4))]
        offset = self.add(records, client_id=client["id"], sequence=sequence, all_below_done=done)
        client["results"] = {
            key: value for key, value in client["results"].items() if key >= begin
        } | {sequence: offset}
        client["all_below_done"], client["last_write_ms"] = begin, self.time

    def run(self, steps: int) -> None:
        for _ in range(steps):
            roll = self.rng.random()
            if roll < 0.1 or not self.clients:
                self.open()
            elif roll < 0.15:
                self.close()
            elif roll < 0.2:
                self.add(
                    [config("plain")], client_id=self.offset + 5, sequence=1
                )  # nobody of that id
            else:
                self.write()

    def described(self) -> list[dict[str, Any]]:
        return [
            {
                **client,
                "results": [
                    {"sequence": n, "offset": at, "epoch": 3}
                    for n, at in sorted(client["results"].items())
                ],
            }
            for _, client in sorted(self.clients.items())
        ]


def whole(model: ClientsModel) -> Image:
    builder = ImageBuilder(Image())
    for records, header in model.batches:
        builder.apply_batch(records, **header)
    return builder.snapshot()


def encoded(model: ClientsModel) -> bytes:
    return b"".join(batch.encode(records, **header) for records, header in model.batches)


@pytest.mark.parametrize("seed", range(8))
def test_image_equals_the_model_for_every_way_of_folding(seed: int) -> None:
    model = ClientsModel(seed)
    model.run(300)
    image = whole(model)
    assert image_to_dict(image)["clients"] == model.described()
    assert any(client["results"] for client in model.described())
    chunk = encoded(model)
    by_chunk, by_batch = ImageBuilder(Image()), ImageBuilder(Image())
    by_chunk.apply_chunk(chunk)
    for header in batch.headers(chunk):
        by_batch.apply_decoded(header, [decoded(data) for data in batch.records(chunk, header)])
    for other in (by_chunk.snapshot(), by_batch.snapshot()):
        assert image_to_dict(other) == image_to_dict(image)


@pytest.mark.parametrize("seed", range(4))
def test_clients_fold_group_by_group_to_the_same_hash(seed: int) -> None:
    model = ClientsModel(seed)
    model.run(300)
    drafts: dict[object, ImageBuilder] = {}
    for records, header in model.batches:
        for index, one in enumerate(records):
            offset = header["base_offset"] + index
            draft = drafts.setdefault(
                group_of(one.type, one.message, offset), ImageBuilder(Image())
            )
            draft.timestamp_ms = header["timestamp_ms"]
            apply(draft, one.type, one.message, offset, header["epoch"])
        if client_id := header.get("client_id", 0):
            draft = drafts.setdefault(client_group(client_id), ImageBuilder(Image()))
            draft.timestamp_ms = header["timestamp_ms"]
            done = header.get("all_below_done", 0)
            fold_identity(draft, client_id, header["sequence"], done, offset, header["epoch"])
    total = sum(draft.snapshot().state_hash for draft in drafts.values())
    assert total & HASH_MASK == whole(model).state_hash


def opened(*writes: dict[str, int]) -> ImageBuilder:
    builder = ImageBuilder(Image(offset=6))
    builder.apply_batch(
        [record(pb.OpenClientRecord(name="c"))], base_offset=7, epoch=1, timestamp_ms=50
    )
    for write in writes:
        fold_write(builder, **write)
    return builder


def fold_write(builder: ImageBuilder, **identity: Any) -> None:
    place = {"base_offset": builder.offset + 1, "epoch": 1, "timestamp_ms": 60}
    builder.apply_batch([config("v")], **place, client_id=7, **identity)


def test_finished_results_and_closed_clients_are_dropped() -> None:
    builder = opened(
        *({"sequence": n} for n in (1, 3, 2, WINDOW)), {"sequence": 4, "all_below_done": 3}
    )
    image = builder.snapshot()
    assert sorted(image.client_results) == [(7, 3), (7, 4), (7, WINDOW)]
    before = opened().snapshot()
    plain = ImageBuilder(Image(offset=6))
    plain.apply_batch([config("v")], base_offset=7, epoch=1, timestamp_ms=50)
    builder.apply_batch(
        [record(pb.CloseClientRecord(client_id=7))], base_offset=13, epoch=1, timestamp_ms=61
    )
    closed = builder.snapshot()
    assert not len(closed.clients)
    assert not len(closed.client_results)
    assert closed.state_hash == plain.snapshot().state_hash != before.state_hash


@pytest.mark.parametrize(
    "write",
    [
        {"sequence": 2},
        {"sequence": 4},
        {"sequence": 3 + WINDOW},
        {"sequence": 5, "all_below_done": 6},
    ],
)
def test_number_that_no_controller_accepts_is_a_defect(write: dict[str, int]) -> None:
    builder = opened({"sequence": 4, "all_below_done": 3})
    fold_write(builder, sequence=2 + WINDOW)
    with pytest.raises(FoldError):
        fold_write(builder, **write)


def test_unknown_level_stops_this_build() -> None:
    level = pb.FeatureLevelRecord(
        name="metadata.version", feature_level=LATEST_METADATA_VERSION + 1
    )
    with pytest.raises(
        UnknownRecordError, match=f"raises metadata.version to {LATEST_METADATA_VERSION + 1}"
    ):
        apply(ImageBuilder(Image()), 12, level, 0, 1)
