"""A state split into its entity groups."""

import sys
from pathlib import Path

import pytest

from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KINDS, by_group, put
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
