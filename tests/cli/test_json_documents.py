import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import typer
from command_lines import Raftlog
from command_runs import Ran
from json_schemas import validator
from reference_pages import json_documents

from raftlog.cli.main import build
from raftlog.client.cluster import AsyncBrokers
from raftlog.client.values import ItemResult
from raftlog.local.cluster import LocalCluster
from raftlog.outcome import Acks, Token, WriteResult
from raftlog.wire.controller.v1 import controller_pb2
from replay import documents as replayed

Check = Callable[..., Any]
NOTHING_WRITTEN: dict[str, Any] = {
    "token": None, "reached": None, "waiting_for_brokers": [], "duplicate": False, "items": [],
}  # fmt: skip


@pytest.fixture
def check(raftlog: Raftlog) -> Check:

    def run(command: str, *arguments: object, code: int = 0) -> Any:
        ran: Ran = raftlog(command, *arguments, "--json")
        assert ran.code == code, ran
        printed = json_documents.PRINTED[command]
        assert ran.out.endswith("\n") or printed.lines
        found = [json.loads(one) for one in ran.out.splitlines()] if printed.lines else [ran.json]
        for one in found:
            validator(command)(one)
        return found if printed.lines else found[0]

    return run


def json_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from json_commands(inner, (*words, name))
    if words and any("--json" in one.opts for one in command.params):
        yield " ".join(words)


def test_each_json_command_is_declared_or_listed_as_undeclared() -> None:
    there = set(json_commands(typer.main.get_command(build())))
    declared = json_documents.PRINTED.keys()
    listed = {one.partition(" --")[0] for one in json_documents.NOT_DECLARED}
    assert there - declared - listed - replayed.PRINTED.keys() == set()
    assert declared - there == set()


def test_schema_refuses_missing_and_additional_keys() -> None:
    validate = validator("kv lease grant")
    whole: dict[str, Any] = {"id": 1, "ttl_s": 0.5}
    validate(whole)
    wrongs: list[Any] = [{"id": 1}, whole | {"id": "1"}, whole | {"x": 1}, []]
    for wrong in wrongs:
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate(wrong)


def test_topic_and_config_documents_match_their_schemas(
    check: Check, through: Raftlog, at: Raftlog
) -> None:
    created = check("topics create", "shaped", "--acks", "visible", *through)
    assert check("topics create", "shaped", *through, code=1)["items"][0]["error"]["code"]
    listed = check("topics list", *through, "--read", "latest")
    assert listed["offset"] >= created["token"]["offset"]
    latest = (*through, "--read", "latest")
    assert check("topics describe", "shaped", *latest)["items"][0]["partitions"]
    absent = check("topics describe", "absent", *latest, code=1)
    assert (absent["items"], absent["missing"]) == ([], ["absent"])
    check("configs alter", "topic", "shaped", "--set", "retention.ms=1000", *through)
    assert check("configs describe", "topic", "shaped", *latest)["items"]
    assert check("partitions isr", "shaped", *through)["partitions"]
    compared = check("partitions isr", "shaped", "--compare", *at)
    assert compared["partitions"][0]["differences"] == []
    assert (
        check("produce", "shaped", "--value", "k:x", "--key-separator", ":", *through)[0]["offset"]
        == 0
    )
    (record,) = check(
        "consume", "shaped", "--from-beginning", "--max-messages", 1, "--timeout", 30, *through
    )
    assert (record["key"], record["value"], record["headers"]) == ("k", "x", [])
    check("topics delete", "shaped", *through)


def test_key_and_lease_documents_match_their_schemas(
    check: Check, through: Raftlog, at: Raftlog
) -> None:
    latest = (*through, "--read", "latest")
    absent = check("kv get", "shaped/absent", *latest, code=1)
    assert absent["key_value"] is None
    assert absent["offset"] > 0
    assert check("kv list", "shaped/", *latest)["items"] == []
    assert check("kv delete", "--prefix", "shaped/", *through) == NOTHING_WRITTEN
    assert check("kv lease list", *at)["items"] == []
    lease = check("kv lease grant", 60, *through)["id"]
    put = check("kv put", "shaped/a", "x", "--lease", lease, "--acks", "visible", *through)
    found = check("kv get", "shaped/a", *latest)
    assert found["offset"] >= put["token"]["offset"]
    assert found["key_value"]["lease_id"] == lease
    assert len(check("kv list", "shaped/", *latest)["items"]) == 1
    watched = ("--initial", "--max-changes", 1)
    (change,) = check("watch", "kv/shaped/*", *watched, *through)
    assert (change["path"], change["before"]) == ("kv/shaped/a", None)
    assert json_documents.PRINTED["kv watch"] == json_documents.PRINTED["watch"], (
        "it has no --max-changes"
    )
    assert len(check("kv lease list", *at)["items"]) == 1
    check("kv lease revoke", lease, *through)


def test_cluster_and_settings_documents_match_their_schemas(
    check: Check, through: Raftlog, at: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check("cluster describe", *through)["offset"] > 0
    assert len(check("cluster loglevel", *at)["nodes"]) == 2
    monkeypatch.setattr("raftlog.cli.perf.P99_MAX_S", 60)  # The machine may be busy.
    monkeypatch.setattr("raftlog.cli.perf.SLOWEST_MAX_S", 60)
    monkeypatch.setattr("raftlog.cli.perf.RATE_SHARE", 0)
    assert check("cluster perf", "--seconds", 1, *at)["failed"] == []
    assert check("cluster features describe", *at)["silent"] == []
    check("cluster features upgrade", "lao.version=1", "--validate-only", *at)
    check("cluster features downgrade", "lao.version=0", "--validate-only", *at)
    assert check("cluster cursors list", *at)["items"] == []
    check("cluster cursors set", "shaped", 1, *at)
    assert len(check("cluster cursors list", *at)["items"]) == 1
    check("cluster cursors delete", "shaped", *at)
    check("cluster hostnames set", "shaped.example", 77, *at)
    assert check("cluster hostnames list", *at)["offset"] > 0
    check("cluster hostnames delete", "shaped.example", *at)


def test_broker_and_partition_documents_match_their_schemas(
    check: Check,
    through: Raftlog,
    at: Raftlog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check("brokers list", *at)["brokers"]
    assert check("brokers cordon", 2, *at)["token"]["offset"] > 0
    assert check("brokers list", *at)["brokers"][0]["cordoned"]
    check("brokers uncordon", 2, *at)
    assert check("partitions balance", *at)["plan"]["moves"] == []
    assert check("brokers api-versions", *through)["apis"]
    through.succeed("topics create parted")
    # There is no other broker, for this topic or those of other tests.
    drained = check("brokers drain", 2, "--dry-run", *at, code=3)
    assert drained["outcome"] is None
    assert "parted" in [one["topic"] for one in drained["plan"]["stuck"]]
    (result,) = check("partitions elect", "parted:0", *through)["items"]
    assert (result["error"], result["needed"]) == (None, False)
    assert check("partitions reassignments", *through)["items"] == []
    assert check("partitions cancel", "--all", *through) == NOTHING_WRITTEN
    moved = check("partitions reassign", "parted:0=2", "--validate-only", *through)
    assert moved["before"]["partitions"][0]["replicas"] == [2]
    moved = check("partitions reassign", "parted:0=2", "--validate-only", *at)
    assert moved["before"] is None
    assert check("partitions increase", "parted", "--count", 2, *through)["items"]
    through.succeed("topics delete parted")

    async def unregister(*_: object) -> WriteResult:
        return WriteResult(Token(1, 1, 9), Acks.COMMITTED, items=(ItemResult("broker 9"),))

    monkeypatch.setattr(AsyncBrokers, "unregister", unregister)
    assert check("brokers unregister", 9, *at)["token"]["offset"] == 9


def test_quorum_documents_are_valid(
    check: Check, at: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = check("quorum describe", f"--bootstrap-controller={at.address},127.0.0.1:1")
    assert [one["failure"] is None for one in described["nodes"]] == [True, False]
    response = controller_pb2.ControllerResponse(
        transfer_leadership=controller_pb2.TransferLeadershipResponse(target_id=2)
    )

    async def answer(*_: object) -> controller_pb2.ControllerResponse:
        return response

    monkeypatch.setattr("raftlog.client.cluster.AsyncQuorum._once", answer)
    plan = check("quorum autopilot", *at)
    assert (plan["enabled"], plan["step"]) == (False, "WAIT")
    assert check("quorum transfer", *at) == {"target_id": 2}
    directory = "845f74a8-ae4b-4d29-bf08-4961f0a5c0a2"
    where = ("--directory-id", directory, "--endpoint", "127.0.0.1:1")
    check("quorum add-voter", "--voter-id", 2, *where, *at)
    check("quorum remove-voter", "--voter-id", 2, "--directory-id", directory, *at)


def test_diagnosis_and_log_documents_match_their_schemas(
    check: Check, through: Raftlog, at: Raftlog, tmp_path: Path
) -> None:
    through.succeed("configs alter broker 2 --set log.retention.ms=9")
    assert check("doctor", *at)["nodes"]
    assert check("explain", *at)["to_ms"] > 0
    assert check("history", "config", "broker:2", *at)
    assert check("log dump", *at)[0]["type"] == "LEADER_CHANGE"
    image = check("log image", *at)
    part = check("log image", "--entity", "brokers/2", *at)
    assert part["offset"] >= image["offset"]
    backup = tmp_path / "state.checkpoint"
    assert check("backup", backup, *at)["file"] == str(backup)
    assert check("backup", "inspect", backup)["counts"]["brokers"] == 1
    restored = tmp_path / "restored"
    new = ("--cluster-id", "2c3f2edf-e9bc-4582-a4db-94a918a591d8", "--node-id", 7)
    voters = ("-I", f"7@127.0.0.1:1:{new[1]}")
    made = check("restore", "--from", backup, *new, *voters, restored)
    assert made["restored_from"]["end_offset"] > 0
    survivor = check("storage recover", restored)
    assert survivor["log_end_offset"] == made["log_end_offset"]
    done = check("storage recover", restored, "--unsafe", "--yes")
    assert done["before"] == survivor
    exported = tmp_path / "exported"
    assert check("export", exported, *at)["records"] > 0
    assert check("verify", exported)["passed"]
    file = tmp_path / "wanted.yaml"
    file.write_text("topics: {planned: {partitions: 2}}\nkeys: {planned/key: {value: secret}}\n")
    planned = check("plan", file, *at)
    assert (planned["records"], len(planned["changes"]), planned["refused"]) == (4, 2, None)
    assert "secret" not in str(planned)
    assert check("apply", file, "--plan", planned["plan"], *at)["token"]["offset"] > 0
    found = check("diff", exported, at.address)["changes"]
    assert {(one["kind"], one["name"]) for one in found} >= {
        ("topic", "planned"), ("key", "planned/key"),
    }  # fmt: skip
    (run,) = check("debug simulate", "--seed", 7, "--until", 1)
    assert (run["seed"], run["failure"]) == (7, "")


def test_node_documents_match_schemas(check: Check, cluster: LocalCluster, tmp_path: Path) -> None:
    where = ("--dir", cluster.directory)
    assert all(one["ready"] for one in check("local status", *where)["nodes"])
    assert check("local start", *where)["cluster_id"] == cluster.cluster_id
    file = cluster.config_path(cluster.controllers[0].name)
    assert check("config check", file)["role"] == "controller"
    assert check("config keys")["keys"]
    directory = tmp_path / "data"
    ids = ("--cluster-id", cluster.cluster_id, "--node-id", 7)
    formatted = check("storage format", "-d", directory, *ids, "--no-initial-controllers")
    assert formatted["node_id"] == 7
    check("storage info", "-d", directory)
    check("deploy size", "--partitions", 9, "--brokers", 1, "--writes-per-second", 1)
    # Named: the checkout may lie where units see nothing, as below /tmp.
    ours = ("--prefix", tmp_path, "--executable", "/opt/raftlog/bin/raftlog")
    units = check("deploy systemd install", "--dry-run", *ours)["files"]
    assert not any(one["written"] for one in units)
    assert all(one["text"] for one in units)


def test_security_documents_match_their_schemas(
    check: Check, at: Raftlog, raftlog: Raftlog, tmp_path: Path
) -> None:
    alice = ("--operation", "read", "--topic", "shaped")
    assert check("acls list", *at)["items"] == []
    (added,) = check("acls add", "--allow-principal", "User:alice", *alice, *at)["items"]
    assert not added["existed"]
    assert len(check("acls list", *at)["items"]) == 1
    (verdict,) = check("acls test", "--principal", "User:alice", *alice, *at)["verdicts"]
    assert verdict["entry"]["principal"] == "User:alice"
    check("acls test", "--principal", "User:bob", *alice, *at, code=1)
    assert len(check("acls remove", "--topic", "shaped", *at)["items"]) == 1
    assert check("acls remove", "--topic", "shaped", *at) == NOTHING_WRITTEN
    raftlog.succeed("certs init", tmp_path / "pki")
    assert check("certs inspect", tmp_path / "pki" / "ca.pem")["certificates"][0]["authority"]


def test_each_declared_command_is_run_by_these_tests() -> None:
    run = {
        ast.literal_eval(node.args[0])
        for node in ast.walk(ast.parse(Path(__file__).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "check"
    }
    assert json_documents.PRINTED.keys() - run == {"kv watch"}
