"""A state split into its entity groups."""

import sys
from pathlib import Path

import pytest

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KINDS, by_group, put
from raftlog.metadata.records import GroupKey, group_of, parse_body
from raftlog.metadata.snapshot import content_hash
from raftlog.wire.records.v1 import records_pb2 as pb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "segments"))
from log_history import LogHistory


@pytest.fixture(scope="module")
def history() -> LogHistory:
    history = LogHistory(61).run(600)
    client = history.open_client()
    for number in range(5):
        change = pb.ConfigRecord(resource_type=2, resource_name="t", name=f"k{number}", value="x")
        history.append(change, client_id=client)
    assert history.draft.client_results
    return history


def test_groups_together_equal_the_state(history: LogHistory) -> None:
    image = history.draft.snapshot()
    whole = ImageBuilder(Image())
    for one in by_group(image):
        put(whole, one.body)
    whole.offset, whole.epoch, whole.timestamp_ms = image.offset, image.epoch, image.timestamp_ms
    again = whole.snapshot()
    assert again.state_hash == image.state_hash == content_hash(again)
    for kind in KINDS:
        found, true = (
            [content for key in sorted(kind.keys(each)) for content in kind.contents(each, key)]
            for each in (again, image)
        )
        assert found == true, kind.name
    assert all(again.topics[id_] == topic for id_, topic in image.topics.items())
    assert again.state_bytes == image.state_bytes


def test_each_group_can_be_folded_separately(history: LogHistory) -> None:
    """From the state at half of the log, with the records of that group alone."""
    half = ImageBuilder(Image())
    middle = len(history.batches) // 2
    for data in history.batches[:middle]:
        half.apply_chunk(data)
    drafts: dict[GroupKey, ImageBuilder] = {}
    for one in by_group(half.snapshot()):
        drafts[one.group] = ImageBuilder(Image())
        put(drafts[one.group], one.body)
    for data in history.batches[middle:]:
        (header,) = batch.headers(data)
        bodies = enumerate(batch.bodies(data, header), start=header.base_offset)
        for offset, (type_, version, body) in bodies:
            message = parse_body(type_, version, body)
            group = group_of(type_, message, offset)
            if group is not None:
                draft = drafts.setdefault(group, ImageBuilder(Image()))
                draft.timestamp_ms = header.timestamp_ms
                apply(draft, type_, message, offset, header.epoch)
        if header.client_id:
            client = GroupKey("client", str(header.client_id))
            draft = drafts.setdefault(client, ImageBuilder(Image()))
            draft.timestamp_ms = header.timestamp_ms
            draft._remember_write(header)
    total = sum(draft.state_hash for draft in drafts.values()) % 2**128
    assert total == history.hashes[history.end_offset - 1]
