"""Logs written by releases of Kafka: stored ones in the gate, new ones each night if Java is
installed.
"""

import os
import re
import signal
from pathlib import Path
from typing import Any

import kafka_writer as kafka
import pytest
import real_kafka
from test_kafka_audit import audit
from test_kafka_import import import_all, state

HERE = Path(__file__).parent
_LINE = re.compile(
    r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S+)\s+Isr: (\S+)"
)


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def hold_against(target: Path, said: dict[str, str]) -> None:
    """Compare the state at the end of an export with the output of Kafka's commands."""
    image = state(target)
    theirs: dict[tuple[str, int], Any] = {
        (topic, int(index)): (int(leader), ids(replicas), set(ids(isr)))
        for topic, index, leader, replicas, isr in _LINE.findall(said["topics"])
    }
    ours = {
        (image.topics[topic_id].name, index): (one.leader, one.replicas, set(one.isr))
        for (topic_id, index), one in image.partitions.items()
    }
    assert ours == theirs
    assert len(ours) == 7
    configs = dict(image.configs.items())
    assert configs[2, "orders"] == {"cleanup.policy": "compact"}
    assert "cleanup.policy=compact" in said["orders"]
    assert (2, "gone") not in configs
    assert image.imported["client_quota", "user=alice:producer_byte_rate"] == "2048.0"
    assert [one.principal for one in image.acls.values()] == ["User:alice"]
    assert {id_: one.fenced for id_, one in image.brokers.items()} == {1: False, 2: False}


@pytest.mark.parametrize("release", ["3.3.2", "3.9.1"])
def test_stored_log_of_a_release_is_imported_correctly(release: str, tmp_path: Path) -> None:
    kafka.unpack(HERE / f"kafka-{release}.tar.gz", tmp_path)
    found = import_all(tmp_path / "exported", tmp_path / "node100")
    assert found.sound
    assert not found.unknown
    assert found.snapshots
    said = {what: (tmp_path / f"{what}.txt").read_text() for what in ("topics", "orders")}
    if release == "3.9.1":
        assert "BeginTransactionRecord" in found.records
    hold_against(tmp_path / "exported", said)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(real_kafka.available()), reason=f"no Kafka: {real_kafka.available()}")
@pytest.mark.parametrize("release", ["4.3.1"])
def test_new_log_of_a_release_is_imported_correctly(release: str, tmp_path: Path) -> None:
    jars = Path(os.environ.get("KAFKA_JARS", tmp_path / "jars"))
    with real_kafka.running(release, jars, tmp_path) as kafka:
        said = real_kafka.live(kafka)
        live = import_all(tmp_path / "live", kafka.log)
        assert live.sound
        kafka.stop(real_kafka.CONTROLLER, signal.SIGKILL)
    found = import_all(tmp_path / "exported", kafka.log)
    assert found.sound
    assert not found.unknown
    assert found.end_offset >= live.end_offset
    assert audit(tmp_path / "exported")["findings"] == []
    hold_against(tmp_path / "exported", said)
