"""Five thousand messages of a stranger against a real cluster: nobody dies, others are served,
nothing refused is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hostile_messages import targets
from hostile_siege import besiege, create_topic, start

from raftlog.cli.local import LocalCluster

MESSAGES = int(os.environ.get("RAFTLOG_HOSTILE_MESSAGES", "5000"))
MEMORY_BYTES = 300 << 20
"""By how much a node may grow: queues and caches, all of them bounded."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = start(tmp_path_factory.mktemp("siege") / "c")
    try:
        yield made
    finally:
        made.stop_all()


async def test_a_stranger_with_any_message_to_any_method(cluster: LocalCluster) -> None:
    await create_topic(cluster)
    siege = await besiege(cluster, messages=MESSAGES, seed=7)
    assert siege.faults == []
    assert siege.attack["sent"] >= MESSAGES
    assert len(siege.attack["methods"]) == len(targets()), "every method was tried"
    assert siege.attack["refused"] > 0
    assert siege.attack["outcomes"]["answered"] > 0, "some messages are taken: they are looked into"
    assert siege.probes > 20
    assert siege.epochs == 0, "no stranger makes an election"
    assert max(siege.grown_bytes.values()) < MEMORY_BYTES
