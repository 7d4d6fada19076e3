"""The audit of an imported Kafka log."""

import json
import sys
from pathlib import Path
from typing import Any

import kafka_writer as kafka
import msgspec
import pytest
from command_runs import run_text
from test_kafka_import import HERE, import_all, log_of

from replay import rules
from replay.kafka.log_format import batches
from replay.request import JobRequest
from replay.rules import choose
from replay.run import compute


def audit(export: Path) -> Any:
    return msgspec.to_builtins(compute(JobRequest(job="audit", export=str(export))))


def command_says(export: Path) -> Any:
    """Audit by the command line."""
    command = [str(Path(sys.executable).with_name("raftlog")), "replay", "audit", str(export)]
    done = run_text([*command, "--engine", "local", "--json"], timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def found_in(tmp_path: Path, *changes: dict[str, Any]) -> list[tuple[str, int]]:
    """Return (rule, offset) of the findings after these changes of a topic's partition 0."""
    registrations = [
        kafka.metadata(
            "RegisterBrokerRecord", broker_id=id_, broker_epoch=offset, incarnation_id=kafka.UUID,
            end_points=[], features=[], rack=None, fenced=True,
        )
        for offset, id_ in enumerate((1, 2), 1)
    ]  # fmt: skip
    unfenced = [
        kafka.metadata("BrokerRegistrationChangeRecord", broker_id=id_, broker_epoch=id_, fenced=-1)
        for id_ in (1, 2)
    ]
    said = [
        kafka.metadata(
            "PartitionChangeRecord", **{"partition_id": 0, "topic_id": kafka.UUID} | change
        )
        for change in changes
    ]
    log = log_of(
        kafka.leader_change(100), *registrations, *unfenced, kafka.topic(), kafka.partition(), *said
    )
    import_all(tmp_path / "exported", kafka.write_node(tmp_path / "node", log))
    return [(one["rule"], one["offset"]) for one in audit(tmp_path / "exported")["findings"]]


def test_real_history_breaks_no_rule(tmp_path: Path) -> None:
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", tmp_path / "kafka")
    import_all(tmp_path / "exported", tmp_path / "kafka")
    result = audit(tmp_path / "exported")
    assert command_says(tmp_path / "exported") == json.loads(json.dumps(result))
    assert (result["checked"], result["total"], len(result["rules"])) == (379, 0, len(KAFKAS))
    judged = {rule["id"]: rule["checked"] for rule in result["rules"]}
    assert judged["ISR_EMPTY"] == 115


@pytest.mark.parametrize("release", ["3.3.2", "3.9.1", "4.3.1"])
def test_histories_of_other_releases_break_no_rule(release: str, tmp_path: Path) -> None:
    """The history of 4.3.1 has unclean shutdowns: ISRs become empty, and registrations follow
    partition changes in their batches.
    """
    kafka.unpack(HERE / f"kafka-{release}.tar.gz", tmp_path)
    import_all(tmp_path / "exported", tmp_path / "node100")
    result = audit(tmp_path / "exported")
    assert (result["findings"], result["total"]) == ([], 0)
    assert result["checked"] > 40


def test_history_that_begins_with_a_snapshot_breaks_no_rule(tmp_path: Path) -> None:
    """Brokers registered before it in ways that it does not show any more."""
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", tmp_path / "kafka")
    inside = tmp_path / "kafka" / "node101" / "__cluster_metadata-0"
    segment = inside / f"{0:020d}.log"
    log = segment.read_bytes()
    cut, start = next(
        (end, one.last_offset + 1) for end, one in batches(log) if one.last_offset > 198
    )
    segment.unlink()
    (inside / f"{start:020d}.log").write_bytes(log[cut:])
    assert import_all(tmp_path / "exported", tmp_path / "kafka" / "node101").state_from == 247
    result = audit(tmp_path / "exported")
    assert (result["findings"], result["total"]) == ([], 0)
    judged = {rule["id"]: rule["checked"] for rule in result["rules"]}
    assert judged["DIRECTORY_NOT_REGISTERED"] > 40


KAFKAS = choose((), "kafka")


def test_rules_that_kafka_logs_cannot_support_are_off_by_default() -> None:
    assert rules.PROPOSER_NOT_LEADER in choose(())
    assert rules.PROPOSER_NOT_LEADER not in KAFKAS
    assert choose(["proposer-not-leader"], "kafka") == (rules.PROPOSER_NOT_LEADER,)
    assert {rules.ISR_EMPTY, rules.UNDECLARED_UNCLEAN_ELECTION} <= set(KAFKAS)


def test_isr_may_be_empty_while_a_replica_is_eligible(tmp_path: Path) -> None:
    shrunk = {"isr": [], "leader": -1, "eligible_leader_replicas": [2]}
    led_again = {"isr": [2], "leader": 2, "eligible_leader_replicas": []}
    assert found_in(tmp_path, shrunk, led_again) == []


def test_isr_may_be_empty_while_a_last_known_leader_exists(tmp_path: Path) -> None:
    """After an unclean shutdown it is not eligible any more; it leads again, uncleanly."""
    shrunk = {"isr": [], "leader": -1, "eligible_leader_replicas": [1], "last_known_elr": [1]}
    unclean: dict[str, list[int]] = {"eligible_leader_replicas": []}
    led = {"isr": [1], "leader": 1, "last_known_elr": [], "leader_recovery_state": 1}
    assert found_in(tmp_path, shrunk, unclean, led) == []


def test_audit_finds_an_empty_isr_without_eligible_replicas(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"isr": [], "leader": -1}) == [("ISR_EMPTY", 7)]


def test_leader_from_neither_isr_nor_elr_is_found(tmp_path: Path) -> None:
    shrunk = {"isr": [], "leader": -1, "eligible_leader_replicas": [1]}
    unclean = {"isr": [2], "leader": 2, "eligible_leader_replicas": []}
    assert found_in(tmp_path, shrunk, unclean) == [("UNDECLARED_UNCLEAN_ELECTION", 8)]
