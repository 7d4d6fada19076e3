"""Thousands of hostile messages to a real cluster."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_messages import targets
from hostile_siege import besiege, create_topic, start

from raftlog.local.cluster import LocalCluster

IN_GATE = 500
MESSAGES = int(os.environ.get("RAFTLOG_HOSTILE_MESSAGES", "10000"))
"""Number of messages at night."""
MEMORY_BYTES = 300 << 20
"""Allowed growth of a node's memory: queues and caches, all of them bounded."""


@pytest.fixture
def cluster(tmp_path: Path, tls: bool) -> Iterator[LocalCluster]:
    made = start(tmp_path / "c", tls=tls)
    try:
        yield made
    finally:
        made.stop_all()


@pytest.mark.parametrize(
    ("messages", "tls"),
    [
        pytest.param(IN_GATE, False, id="gate"),
        pytest.param(MESSAGES, False, id="plain", marks=pytest.mark.nightly),
        pytest.param(MESSAGES, True, id="tls", marks=pytest.mark.nightly),
    ],
)
async def test_hostile_messages_to_every_method_harm_no_node(
    cluster: LocalCluster, messages: int, tls: bool
) -> None:
    await create_topic(cluster)
    siege = await besiege(cluster, messages=messages, seed=7)
    assert siege.faults == []
    assert siege.attack["sent"] >= messages
    assert len(siege.attack["methods"]) == len(targets()), "every method was tried"
    assert siege.attack["refused"] > 0
    assert siege.attack["outcomes"]["answered"] > 0, "some messages are taken: they are looked into"
    assert siege.probes > 20
    outcomes = siege.attack["outcomes"]
    assert tls or outcomes["half"] > 0, "some messages were begun only"
    assert outcomes["lane answered"] > 0, "some came on a lane"
    assert siege.epochs == 0, "no stranger makes an election"
    assert max(siege.grown_bytes.values()) < MEMORY_BYTES
