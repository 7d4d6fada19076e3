"""The audit of an imported Kafka log."""

from pathlib import Path
from typing import Any

import kafka_writer as kafka
import msgspec
import pytest
from test_kafka_import import HERE, cut_begin, import_all

from replay import rules
from replay.request import JobRequest
from replay.rules import choose
from replay.run import compute


def audit(export: Path) -> Any:
    return msgspec.to_builtins(compute(JobRequest(job="audit", export=str(export))))


def test_real_history_breaks_no_rule(tmp_path: Path) -> None:
    kafka.unpack(HERE / "kafka-4.4.0.tar.gz", tmp_path / "kafka")
    import_all(tmp_path / "exported", tmp_path / "kafka")
    result = audit(tmp_path / "exported")
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
    cut_begin(tmp_path / "kafka" / "node101" / "__cluster_metadata-0")
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
