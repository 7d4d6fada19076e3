"""What a controller says of a topic must be so in an image between the question and the answer."""

from typing import Any

import pytest
from checks_harness import Trace

from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.existence import Existence

THERE = ("t",)


def _led() -> Trace:
    trace = Trace(Existence)
    trace.begin()
    return trace


def create(trace: Trace) -> None:
    trace.committed(1, pb.TopicRecord(name="t", topic_id=bytes(15) + b"t"))


def delete(trace: Trace) -> None:
    trace.committed(1, pb.RemoveTopicRecord(topic_id=bytes(15) + b"t"))


def ask(trace: Trace, found: tuple[str, ...]) -> None:
    trace.give(trace.invoke("ask_topic", "t"), found=found)


def test_answers_that_are_so_pass() -> None:
    trace = _led()
    ask(trace, ())
    create(trace)
    ask(trace, THERE)
    trace.give(trace.invoke("create_topic", "t"), "failed", error="TOPIC_ALREADY_EXISTS")
    delete(trace)
    ask(trace, ())
    trace.give(trace.invoke("delete_topic", "t"), "failed", error="UNKNOWN_TOPIC_OR_PARTITION")
    assert trace.last.answers == 5


@pytest.mark.parametrize("found", [THERE, ()])
def test_existence_may_be_answered_either_way_when_it_changes_meanwhile(
    found: tuple[str, ...],
) -> None:
    trace = _led()
    question = trace.invoke("ask_topic", "t")
    create(trace)
    trace.give(question, found=found)
    delete(trace)
    late = trace.invoke("ask_topic", "t")
    create(trace)
    delete(trace)
    trace.give(late, found=found)


@pytest.mark.parametrize("changes", [[], [create, delete]])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ask_topic", {"found": THERE}),
        ("create_topic", {"outcome": "failed", "error": "TOPIC_ALREADY_EXISTS"}),
    ],
)
def test_there_when_it_is_not_is_refused(
    kind: str, fields: dict[str, Any], changes: list[Any]
) -> None:
    trace = _led()
    for change in changes:
        change(trace)
    with pytest.raises(CheckFailedError, match=r"I13: .* there"):
        trace.give(trace.invoke(kind, "t"), **fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ask_topic", {"found": ()}),
        ("delete_topic", {"outcome": "failed", "error": "UNKNOWN_TOPIC_OR_PARTITION"}),
    ],
)
def test_answer_that_denies_an_existing_topic_is_refused(kind: str, fields: dict[str, Any]) -> None:
    trace = _led()
    create(trace)
    with pytest.raises(CheckFailedError, match=r"I13: .* not there"):
        trace.give(trace.invoke(kind, "t"), **fields)


def test_answer_that_depends_on_uncommitted_records_is_refused() -> None:
    trace = _led()
    question = trace.invoke("ask_topic", "t")
    trace.append("c1", 1, pb.TopicRecord(name="t", topic_id=bytes(15) + b"t"))
    with pytest.raises(CheckFailedError, match="I13"):
        trace.give(question, found=THERE)


@pytest.mark.parametrize("outcome", ["unknown", "failed"])
def test_answers_without_a_statement_on_existence_are_not_checked(outcome: str) -> None:
    trace = _led()
    for kind in ("ask_topic", "create_topic", "delete_topic"):
        trace.give(trace.invoke(kind, "t"), outcome, error="NOT_CONTROLLER", found=THERE)
    trace.give(trace.invoke("create_topic", "t"), "unknown", error="TOPIC_ALREADY_EXISTS")
    assert trace.last.answers == 0
