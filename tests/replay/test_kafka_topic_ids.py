"""Topic ids of an imported log, in Kafka's form."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_runs import run_text
from kafka_log import KafkaLog, imported, kafka, uuid
from spark_runs import Replay

sys.path.insert(0, str(Path(__file__).parents[1] / "segments"))
from log_history import LogHistory

from raftlog.metadata.words import kafka_id, parse_topic_id
from raftlog.segments.export import export
from replay.request import JobRequest
from replay.run import compute
from replay.selection import BY_ID

KEPT = Path(__file__).parents[1] / "kafka_import"
TOPIC = "orders"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("real")
    kafka.unpack(KEPT / "kafka-4.4.0.tar.gz", directory / "kafka")
    imported(directory / "kafka", directory / "exported")
    return directory


@pytest.fixture(scope="module")
def ids(real: Path) -> dict[str, str]:
    """Return the topic ids that Kafka's Admin reported at the end."""
    said = json.loads((real / "kafka" / "truth.json").read_text())["topics"]
    return {one["name"]: one["id"] for one in said}


def ask(job: str, exported: Path, *key: str, **values: Any) -> Any:
    """Return the answer as JSON."""
    request = JobRequest(job=job, export=str(exported), limit=10_000, **values)
    if key:
        request = msgspec.structs.replace(request, key=key)
    return json.loads(msgspec.json.encode(compute(request)))


def command(*arguments: str) -> str:
    program = str(Path(sys.executable).with_name("raftlog"))
    done = run_text([program, *arguments], timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_topic_id_is_parsed_in_both_forms_only() -> None:
    digits = "b81694542c544f2e961a3c71ba6a228c"
    text = kafka_id(digits)
    assert text == "uBaUVCxUTy6WGjxxumoijA"
    assert (
        parse_topic_id(text) == parse_topic_id(digits) == parse_topic_id(digits.upper()) == digits
    )
    for other in ("payments-service-event", text + "A", text[:-1], text[:-1] + "B", "orders", ""):
        assert parse_topic_id(other) is None


def test_jobs_print_topic_ids_as_kafka_does(real: Path, ids: dict[str, str]) -> None:
    exported = real / "exported"
    rows = ask("state", exported, "topic", TOPIC)["rows"]
    said = [one["value"]["topic_id"] for one in rows if one["kind"] == "partition"]
    assert set(said) == {ids[TOPIC]}
    every = ask("state", exported)["rows"]
    assert {one["key"]: one["value"]["id"] for one in every if one["kind"] == "topic"} == ids
    (created,) = (
        one for one in ask("history", exported, "topic", TOPIC)["changes"] if one["kind"] == "topic"
    )
    assert (created["before"], created["after"]["id"]) == (None, ids[TOPIC])
    differ = ask("diff", exported, "topic", TOPIC)["differences"]
    assert {one["after"]["id"] for one in differ if one["kind"] == "topic"} == {ids[TOPIC]}
    told = ask("availability", exported)["partitions"]
    assert {one["topic_id"] for one in told if one["topic_name"] == TOPIC} <= {ids[TOPIC]}


def test_recreated_topic_has_another_id(tmp_path: Path) -> None:
    log = KafkaLog()
    log.topic("again", [1])
    first = log.topics["again"]
    between = log.end_offset - 1
    log.delete("again")
    log.topic("again", [1, 2])
    second = log.topics["again"]
    log.import_into(tmp_path)
    (one,) = (
        each
        for each in ask("diff", tmp_path / "exported", "topic", "again", from_offset=between)[
            "differences"
        ]
        if each["kind"] == "topic"
    )
    assert one["fields"] == [{"field": "id", "before": first, "after": second}]
    for id_, replicas in ((first, [1]), (second, [1, 2])):
        changes = ask("history", tmp_path / "exported", "topic", id_)["changes"]
        created = next(one for one in changes if one["kind"] == "partition")
        assert created["after"]["replicas"] == replicas
    assert ask("state", tmp_path / "exported", "topic", first)["rows"] == []


def test_both_forms_are_accepted_as_a_key(real: Path, ids: dict[str, str]) -> None:
    exported, id_ = real / "exported", ids[TOPIC]
    whole = ask("state", exported, "topic", TOPIC)["rows"]
    assert whole
    assert ask("state", exported, "topic", id_)["rows"] == whole
    digits = parse_topic_id(id_)
    assert ask("state", exported, "topic", digits or "")["rows"] == whole
    one = ask("state", exported, "partition", f"{TOPIC}-2")["rows"]
    found = ask("state", exported, "partition", f"{id_}-2")
    assert (found["rows"], found["asked"]) == (one, ["partition", f"{BY_ID}{id_}-2"])
    assert [each["key"] for each in one] == [f"{TOPIC}-2"]


def test_name_that_looks_like_an_id_is_a_name(tmp_path: Path) -> None:
    log = KafkaLog()
    log.topic("other", [1])
    named = log.topics["other"]
    log.topic(named, [1, 2])
    log.import_into(tmp_path)
    rows = ask("state", tmp_path / "exported", "topic", named)["rows"]
    assert {one["key"] for one in rows if one["kind"] == "topic"} == {named}


def test_finding_prints_the_topic_id_as_kafka_does(tmp_path: Path) -> None:
    log = KafkaLog()
    log.topic("twice", [1, 1])
    log.import_into(tmp_path)
    (found,) = ask("audit", tmp_path / "exported", rules=("duplicate-replica",))["findings"]
    assert (found["rule"], found["topic_id"]) == ("DUPLICATE_REPLICA", log.topics["twice"])


def test_raftlog_topic_ids_are_hexadecimal(tmp_path: Path) -> None:
    log = LogHistory()
    id_ = log.create_topic("orders")
    export(log, tmp_path)
    rows = ask("state", tmp_path, "topic", id_.hex())["rows"]
    assert [one["value"].get("id", id_.hex()) for one in rows] == [id_.hex()] * 3


def test_other_commands_print_and_accept_kafka_ids(real: Path, ids: dict[str, str]) -> None:
    source, id_ = ("--export", str(real / "exported")), ids[TOPIC]
    told = command("history", "topic", id_, *source)
    assert f"created: id {id_}" in told
    dump = command("log", "dump", *source, "--type", "TOPIC", "--json").splitlines()
    said = {one["name"]: one["topic_id"] for one in (json.loads(each)["record"] for each in dump)}
    assert ids.items() <= said.items()
    named, by_id = (
        json.loads(command("log", "image", *source, "--entity", f"topics/{key}"))["entity"]
        for key in (TOPIC, id_)
    )
    assert named == by_id
    assert named["id"] == id_


def test_spark_accepts_and_shows_kafka_ids(replay: Replay, real: Path, ids: dict[str, str]) -> None:
    key = ("partition", f"{ids[TOPIC]}-1")
    request = JobRequest(job="history", export=str(real / "exported"), key=key)
    found = compute(request)
    assert found.changes
    assert replay("history", real / "exported", key=key) == found


def test_unknown_topic_id_finds_nothing(real: Path) -> None:
    assert ask("state", real / "exported", "topic", uuid(1))["rows"] == []
