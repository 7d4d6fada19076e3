"""The kernels' steps equal those of the fold for every change from every state."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raftlog import batch
from raftlog.metadata.entities import Partition
from raftlog.metadata.partitions import changed_partition
from raftlog.metadata.records import record
from raftlog.segments.columns import RowBuffer
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.kernels.facts import RARE, RARE_COLUMNS, Facts
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions

TOPIC_ID = bytes(range(16))
BEGINNINGS: tuple[dict[str, Any], ...] = (
    {"replicas": [1, 2, 3], "isr": [1, 2, 3], "leader": 1},
    {"replicas": [1, 2, 3], "isr": [3], "leader": -1, "leader_epoch": 7, "partition_epoch": 9},
    {"replicas": [1, 2, 3, 4], "isr": [2], "leader": 2, "leader_recovery_state": 1,
     "adding_replicas": [4], "removing_replicas": [1]},
)  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "isr": (None, pb.IdList(), pb.IdList(ids=[1]), pb.IdList(ids=[3, 1])),
    "leader": (None, -1, 1, 2),
    # The same, another order, one more, one less, one for another.
    "replicas": (None, *(pb.IdList(ids=ids) for ids in (
        [1, 2, 3], [3, 2, 1], [1, 2, 3, 4, 5], [1, 2], [1, 2, 9],
    ))),
    "leader_recovery_state": (None, 0, 1),
    "leader_epoch": (None, 40),
}  # fmt: skip
REASSIGNMENT: dict[str, tuple[Any, ...]] = {
    "adding_replicas": (None, pb.IdList(), pb.IdList(ids=[5])),
    "removing_replicas": (None, pb.IdList(), pb.IdList(ids=[2])),
    "replicas": (None, pb.IdList(ids=[1, 5])),
}
Change = dict[str, Any]


def every(fields: dict[str, tuple[Any, ...]]) -> list[Change]:
    """Yield every choice of a value, or of none, for each field."""
    return [
        {name: value for name, value in zip(fields, chosen, strict=True) if value is not None}
        for chosen in product(*fields.values())
    ]


CHANGES = [*every(FIELDS), *every(REASSIGNMENT)]


def records_of(histories: list[tuple[Change, list[Change]]]) -> pa.Table:
    """Return the rows of a log with one partition per history, its changes interleaved."""
    rows = RowBuffer()
    messages: list[Any] = [pb.TopicRecord(name="t", topic_id=TOPIC_ID)]
    messages += [
        pb.PartitionRecord(topic_id=TOPIC_ID, partition_id=index, **begun)
        for index, (begun, _) in enumerate(histories)
    ]
    for turn in range(max(len(changes) for _, changes in histories)):
        messages += [
            pb.PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=index, **changes[turn])
            for index, (_, changes) in enumerate(histories)
            if turn < len(changes)
        ]
    for base, message in enumerate(messages):
        chunk = batch.encode([record(message).data], base_offset=base, epoch=1, timestamp_ms=base)
        for header in batch.headers(chunk):
            rows.add(chunk, header)
    return rows.take()


def folded(begun: Change, changes: list[Change]) -> dict[str, Any]:
    """Return a partition's state after its changes, by the controllers' fold."""
    now = Partition(
        TOPIC_ID,
        0,
        tuple(begun["replicas"]),
        tuple(begun["isr"]),
        tuple(begun.get("removing_replicas", ())),
        tuple(begun.get("adding_replicas", ())),
        begun["leader"],
        begun.get("leader_recovery_state", 0),
        begun.get("leader_epoch", 0),
        begun.get("partition_epoch", 0),
    )
    for change in changes:
        now = changed_partition(now, pb.PartitionChangeRecord(**change))
    return {
        "leader": now.leader,
        "leader_recovery_state": now.leader_recovery_state,
        "replicas": list(now.replicas),
        "adding_replicas": list(now.adding_replicas),
        "removing_replicas": list(now.removing_replicas),
        "isr": list(now.isr),
        "leader_epoch": now.leader_epoch,
        "partition_epoch": now.partition_epoch,
    }


def stepped(histories: list[tuple[Change, list[Change]]], slices: int) -> list[dict[str, Any]]:
    """Return the same for all partitions by the kernel, in several slices."""
    rows = records_of(histories)

    def of(types: Any, columns: Any) -> pa.Table:
        numbers = pa.array([int(each) for each in types], pa.int32())
        return rows.filter(pc.is_in(rows["type"], numbers)).select(columns)

    known = Partitions(Facts(of(RARE, RARE_COLUMNS), rows.num_rows))
    changing = of(PARTITION_TYPES, COLUMNS)
    bounds = np.linspace(0, changing.num_rows, slices + 1).astype(int).tolist()
    for low, high in pairwise(bounds):
        known.step(changing.slice(low, high - low))
    found = known.table().sort_by("partition_id").to_pylist()
    names = folded(BEGINNINGS[0], [])
    return [{name: row[name] for name in names} for row in found]


@pytest.mark.parametrize("slices", [1, 3])
def test_steps_equal_the_fold_for_every_change_from_every_state(slices: int) -> None:
    histories = [(begun, [change]) for begun in BEGINNINGS for change in CHANGES]
    assert len(histories) > 1500
    expected = [folded(begun, changes) for begun, changes in histories]
    assert stepped(histories, slices) == expected


def test_steps_equal_the_fold_for_pairs_of_changes() -> None:
    """Each change after each of some others: the first one's result is carried over."""
    firsts = CHANGES[:: len(CHANGES) // 7]
    histories = [(BEGINNINGS[2], [first, change]) for first in firsts for change in CHANGES[::3]]
    expected = [folded(begun, changes) for begun, changes in histories]
    assert stepped(histories, 4) == expected
