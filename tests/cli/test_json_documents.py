"""Documents of ``--json``: ``command_lines`` compares each one that a test here prints with its
schema. These tests run the commands that no other test runs with ``--json``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import typer
from command_lines import Raftlog
from json_schemas import validator
from reference_pages import json_documents

from raftlog.cli.main import build
from raftlog.client.cluster import AsyncBrokers
from raftlog.client.values import ItemResult
from raftlog.local.cluster import LocalCluster
from raftlog.outcome import Acks, Token, WriteResult
from raftlog.wire.controller.v1 import controller_pb2
from replay import documents as replayed

NOTHING_WRITTEN: dict[str, Any] = {
    "token": None, "reached": None, "waiting_for_brokers": [], "duplicate": False, "items": [],
}  # fmt: skip


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


CALLERS = {f"{one}{way}" for one in ("raftlog", "at", "through") for way in ("", ".succeed")}


def run_with_json() -> Iterator[str]:
    """Yield the command lines with ``--json`` in the tests of this directory."""
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLERS:
                text = ast.unparse(node)
                found = re.match(r"[a-z.]+\(f?['\"]([a-z -]+)", text)
                if found and "--json" in text:
                    yield f"{found[1]} "


def test_each_declared_command_is_run_by_a_test_of_this_directory() -> None:
    lines = {*run_with_json()}
    declared = json_documents.PRINTED
    left = {one for one in declared if not any(line.startswith(f"{one} ") for line in lines)}
    assert left == {"kv watch"}
    assert declared["kv watch"] == declared["watch"], "it has no --max-changes"


def test_schema_refuses_missing_and_additional_keys() -> None:
    validate = validator("kv lease grant")
    whole: dict[str, Any] = {"id": 1, "ttl_s": 0.5}
    validate(whole)
    wrongs: list[Any] = [{"id": 1}, whole | {"id": "1"}, whole | {"x": 1}, []]
    for wrong in wrongs:
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate(wrong)


def test_record_and_key_documents_are_valid(at: Raftlog, through: Raftlog) -> None:
    through.succeed("topics create shaped -r 1 --acks visible")
    assert through("topics describe absent --read latest --json").json["missing"] == ["absent"]
    assert through("partitions isr shaped --json").json["partitions"]
    produced = through.succeed("produce shaped --value k:x --key-separator : --json").json
    assert produced["offset"] == 0
    consume = ("--from-beginning", "--max-messages", 1, "--timeout", 30)
    record = through.succeed("consume shaped --json", *consume).json
    assert (record["key"], record["value"], record["headers"]) == ("k", "x", [])
    through.succeed("topics delete shaped --json")

    absent = through("kv get shaped/absent --read latest --json").refused(1).json
    assert absent["key_value"] is None
    assert absent["offset"] > 0
    assert through("kv list shaped/ --read latest --json").json["items"] == []
    assert through("kv delete --prefix shaped/ --json").json == NOTHING_WRITTEN
    assert at("kv lease list --json").json["items"] == []
    lease = through("kv lease grant 60 --json").json["id"]
    put = through(f"kv put shaped/a x --lease {lease} --acks visible --json").json
    found = through("kv get shaped/a --read latest --json").json
    assert found["offset"] >= put["token"]["offset"]
    assert found["key_value"]["lease_id"] == lease
    change = through("watch kv/shaped/* --initial --max-changes 1 --json").json
    assert (change["path"], change["before"]) == ("kv/shaped/a", None)
    assert len(at("kv lease list --json").json["items"]) == 1
    through.succeed(f"kv lease revoke {lease} --json")


def test_cluster_documents_are_valid(at: Raftlog, through: Raftlog) -> None:
    assert through("cluster describe --json").json["offset"] > 0
    at.succeed("cluster features upgrade lao.version=1 --validate-only --json")
    at.succeed("cluster cursors set shaped 1 --json")
    assert len(at("cluster cursors list --json").json["items"]) == 1
    at.succeed("cluster cursors delete shaped --json")
    at.succeed("cluster hostnames set shaped.example 77 --json")
    assert at("cluster hostnames list --json").json["offset"] > 0
    at.succeed("cluster hostnames delete shaped.example --json")


def test_broker_and_partition_documents_are_valid(
    at: Raftlog, through: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at("brokers cordon 2 --json").json["token"]["offset"] > 0
    assert at("brokers list --json").json["brokers"][0]["cordoned"]
    at.succeed("brokers uncordon 2 --json")
    balanced = at("partitions balance --json").json
    assert (balanced["outcome"], balanced["plan"]["stuck"]) == (None, [])
    through.succeed("topics create parted --replica-assignment 2:3:4 --acks visible")
    # There is no fourth broker.
    drained = at("brokers drain 2 --dry-run --json").refused(3).json
    assert drained["outcome"] is None
    assert "parted" in [one["topic"] for one in drained["plan"]["stuck"]]
    assert through("partitions reassignments --json").json["items"] == []
    assert through("partitions cancel --all --json").json == NOTHING_WRITTEN
    moved = through("partitions reassign parted:0=2 --validate-only --json").json
    assert moved["before"]["partitions"][0]["replicas"] == [2, 3, 4]
    assert at("partitions reassign parted:0=2 --validate-only --json").json["before"] is None
    assert through("partitions increase parted --count 2 --json").json["items"]
    through.succeed("topics delete parted")

    async def unregister(*_: object) -> WriteResult:
        return WriteResult(Token(1, 1, 9), Acks.COMMITTED, items=(ItemResult("broker 9"),))

    monkeypatch.setattr(AsyncBrokers, "unregister", unregister)
    assert at("brokers unregister 9 --json").json["token"]["offset"] == 9


def test_quorum_documents_are_valid(at: Raftlog, monkeypatch: pytest.MonkeyPatch) -> None:
    response = controller_pb2.ControllerResponse(
        transfer_leadership=controller_pb2.TransferLeadershipResponse(target_id=2)
    )

    async def answer(*_: object) -> controller_pb2.ControllerResponse:
        return response

    monkeypatch.setattr("raftlog.client.cluster.AsyncQuorum._once", answer)
    plan = at("quorum autopilot --json").json
    assert (plan["enabled"], plan["step"]) == (False, "WAIT")
    assert at("quorum transfer --json").json == {"target_id": 2}
    voter = "--voter-id 2 --directory-id 845f74a8-ae4b-4d29-bf08-4961f0a5c0a2"
    at.succeed(f"quorum add-voter {voter} --endpoint 127.0.0.1:1 --json")
    at.succeed(f"quorum remove-voter {voter} --json")


def test_diagnosis_and_recovery_documents_are_valid(
    raftlog: Raftlog, at: Raftlog, through: Raftlog, tmp_path: Path
) -> None:
    through.succeed("configs alter broker 2 --set log.retention.ms=9")
    assert at("doctor --json").json["nodes"]
    assert at("history config broker:2 --json").out
    assert at("log image --entity brokers/2 --json").json["offset"] > 0
    backup, restored, exported = (tmp_path / name for name in ("state", "restored", "exported"))
    assert at("backup --json", backup).json["file"] == str(backup)
    assert raftlog("backup inspect --json", backup).json["counts"]["brokers"] == 3
    new = "2c3f2edf-e9bc-4582-a4db-94a918a591d8"
    node = f"--cluster-id {new} --node-id 7 -I 7@127.0.0.1:1:{new}"
    made = raftlog(f"restore {node} --json --from", backup, restored).json
    assert made["restored_from"]["end_offset"] > 0
    survivor = raftlog("storage recover --json", restored).json
    assert survivor["log_end_offset"] == made["log_end_offset"]
    done = raftlog("storage recover --unsafe --yes --json", restored).json
    assert done["before"] == survivor
    assert at("export --json", exported).json["records"] > 0
    file = tmp_path / "wanted.yaml"
    file.write_text("topics: {planned: {partitions: 2}}\nkeys: {planned/key: {value: secret}}\n")
    planned = at("plan --json", file).json
    assert (planned["records"], len(planned["changes"]), planned["refused"]) == (4, 2, None)
    assert "secret" not in str(planned)
    applied = at("apply --json --plan", planned["plan"], file).json
    assert applied["token"]["offset"] > 0
    found = raftlog("diff --json", exported, at.address).json["changes"]
    assert {(one["kind"], one["name"]) for one in found} >= {
        ("topic", "planned"), ("key", "planned/key"),
    }  # fmt: skip
    run = raftlog("debug simulate --seed 7 --until 1 --json").json
    assert (run["seed"], run["failure"]) == (7, "")


def test_node_and_deployment_documents_are_valid(
    raftlog: Raftlog, cluster: LocalCluster, tmp_path: Path
) -> None:
    where = ("--dir", cluster.directory)
    assert all(one["ready"] for one in raftlog("local status --json", *where).json["nodes"])
    assert raftlog("local start --json", *where).json["cluster_id"] == cluster.cluster_id
    raftlog.succeed("deploy size --partitions 9 --brokers 1 --writes-per-second 1 --json")
    # Named: the checkout may lie where units see nothing, as below /tmp.
    ours = ("--prefix", tmp_path, "--executable", "/opt/raftlog/bin/raftlog")
    units = raftlog("deploy systemd install --dry-run --json", *ours).json["files"]
    assert not any(one["written"] for one in units)
    assert all(one["text"] for one in units)
