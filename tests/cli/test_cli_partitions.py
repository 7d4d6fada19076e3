"""Commands that change partitions; one of three brokers dies."""

import json
import signal
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.cli.values import assignments, broker_ids, partition_name, plan_of, read_plan
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster


def shown(through: Raftlog, name: str) -> dict[int, tuple[int, list[int]]]:
    ran = through(f"topics describe --json {name} --read latest")
    (topic,) = ran.json["items"]
    return {row["index"]: (row["leader"], row["replicas"]) for row in topic["partitions"]}


@pytest.mark.nightly
def test_topics_are_placed_manually_and_grow(at: Raftlog, through: Raftlog) -> None:
    through.succeed("topics create grown --replica-assignment 2:3,3:2 --acks visible")
    assert shown(through, "grown") == {0: (2, [2, 3]), 1: (3, [3, 2])}
    tried = at("partitions increase grown -n 5 --validate-only --json")
    assert (tried.code, tried.json["token"]) == (0, None)
    through("partitions increase grown -n 3 --replica-assignment 4:2 --acks visible").showed(
        "grown: has 3 partitions"
    )
    assert shown(through, "grown")[2] == (4, [4, 2])
    at("partitions increase grown -n 2").refused(1, "INVALID_PARTITIONS", "topics[0].count")
    at("topics delete grown --validate-only").showed("grown: would be deleted")
    assert shown(through, "grown")


@pytest.mark.nightly
def test_replicas_are_moved_and_back(at: Raftlog, through: Raftlog, tmp_path: Path) -> None:
    at.succeed("topics create moved --replica-assignment 2:3,3:4")
    ran = through.succeed("partitions reassign moved:0=3 --acks visible --json")
    assert ran.json["write"]["items"] == [
        {"name": "moved:0", "error": None, "topic": "moved", "partition": 0}
    ]
    assert ran.json["before"]["partitions"] == [
        {"topic": "moved", "partition": 0, "replicas": [2, 3]}
    ]
    assert shown(through, "moved")[0] == (3, [3])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(ran.json["before"]))
    at("partitions reassign --plan", plan, "--validate-only").showed("moved:0: would be moved")
    at("partitions reassign --plan", plan, "--keep-replication-factor").refused(
        1, "INVALID_REPLICATION_FACTOR"
    )
    several = at("partitions reassign moved:0=9 moved:1=4,3 moved:7=3").refused(
        1, "INVALID_REPLICA_ASSIGNMENT: moved:0: broker 9 is not registered"
    )
    assert "moved:1: moving" in several.out


def test_leaders_are_elected_on_request(at: Raftlog, through: Raftlog) -> None:
    at.succeed("topics create led --replica-assignment 2:3,3:2")
    # Another order makes another preferred leader, and moves nobody by itself.
    at.succeed("partitions reassign led:0=3,2 --acks visible")
    assert shown(through, "led")[0] == (2, [3, 2])
    at("partitions elect led --validate-only").showed("led:0: would be led by 3")
    ran = through.succeed("partitions elect led:0 led:1 --acks visible --json")
    assert [(row["partition"], row["leader"], row["needed"]) for row in ran.json["items"]] == [
        (0, 3, True),
        (1, 3, False),
    ]
    assert shown(through, "led")[0] == (3, [3, 2])
    at.succeed("partitions elect --all")
    at("partitions elect --all").showed("nothing to elect")
    at("partitions elect led --unclean").showed("led:0: broker 3 leads")
    at("partitions elect nope").refused(1, "UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.nightly
def test_move_that_waits_for_a_dead_broker_is_listed_and_cancelled(
    cluster: LocalCluster, at: Raftlog, through: Raftlog
) -> None:
    at.succeed("topics create waits --replica-assignment 2:3,3:2")
    cluster.kill("broker-4", signal.SIGKILL)
    assert cluster.wait_gone("broker-4", 30)
    at("partitions cancel waits:0").refused(1, "NO_REASSIGNMENT_IN_PROGRESS")
    through.succeed("partitions reassign waits:0=4,2 waits:1=4,3")
    listed = at("partitions reassignments waits --check --json").refused(3)
    first, second = listed.json["items"]
    assert (first["topic"], first["partition"], first["replicas"]) == ("waits", 0, [4, 2, 3])
    assert (first["adding"], first["removing"], first["in_sync"]) == ([4], [3], [2, 3])
    assert first["waiting_for"] == second["waiting_for"] == [4]
    assert "4, 2, 3" in through("partitions reassignments").out
    assert "waits:1: cancelled" in at("partitions cancel waits:1").out
    at("partitions cancel --all --acks committed").showed("waits:0: cancelled")
    assert "no moves in progress" in at("partitions cancel --all").out
    at("partitions reassignments --check").showed("no moves in progress")

    at.succeed("brokers unregister 4 --json")
    assert 4 not in {row["id"] for row in at("brokers list --json").json["brokers"]}
    at("brokers unregister 4").refused(1, "BROKER_ID_NOT_REGISTERED")
    found = through("cluster describe --include-fenced-brokers --read latest --json").json
    assert (found["id"], found["controller_id"]) == (cluster.cluster_id, 1)
    assert [(row["id"], row["fenced"]) for row in found["brokers"]] == [(2, False), (3, False)]
    assert "controller 1" in through("cluster describe").out
    cluster.start("broker-4")
    cluster.wait_ready(["broker-4"], 120)


def test_partition_lists_show_warnings(at: Raftlog, through: Raftlog) -> None:
    at.succeed("topics create listed")
    for option, items, expected in (
        ("--append", "compact", "delete,compact"),
        ("--subtract", "delete", "compact"),
    ):
        at.succeed(
            "configs alter topic listed", option, f"cleanup.policy={items}", "--acks", "visible"
        )
        keys = ("--key", "cleanup.policy")
        (shown_,) = through("configs describe topic listed --json", *keys).json["items"]
        assert (shown_["value"], shown_["source"]) == (expected, "dynamic-topic-config")
    at.succeed("configs alter broker '' --set log.retention.ms=4711 --acks visible")
    (item,) = through("configs describe topic listed --key retention.ms --json").json["items"]
    assert (item["value"], item["source"]) == ("4711", "dynamic-default-broker-config")
    assert (item["is_default"], item["without_effect"]) == (False, "")
    ran = at.succeed("cluster features downgrade lao.version=0 --validate-only --json")
    assert "the lowest acknowledged offset is no longer promised" in ran.json["warnings"][0]
    ran = at("cluster features downgrade lao.version=0 --validate-only")
    assert "warning: lao.version goes from 1 to 0" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        "reassign",
        "reassign orders=1",
        "reassign orders:0",
        "reassign orders:0=a",
        "reassign orders:0=",
        "reassign --plan /no/such/file",
        "cancel",
        "cancel orders:0 --all",
        "cancel orders",
        "elect",
        "elect orders --all",
        "increase orders -n 3 --replica-assignment 1:x",
    ],
    ids=str,
)
def test_wrong_usage_exits_with_2_without_a_connection(raftlog: Raftlog, arguments: str) -> None:
    raftlog(
        "partitions --timeout 1", *arguments.split(), "--bootstrap-controller", "127.0.0.1:1"
    ).refused(2)


def test_names_assignments_and_plans_are_parsed(tmp_path: Path) -> None:
    assert partition_name("a.b-c:12") == ("a.b-c", 12)
    assert broker_ids("4, 5,6") == [4, 5, 6]
    assert assignments("1:2:3,2") == [[1, 2, 3], [2]]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_of([(("a", 0), [1, 2]), (("b", 3), [])])))
    assert read_plan(plan) == [(("a", 0), [1, 2]), (("b", 3), [])]
    for wrong in ("", "[]", "{}", '{"partitions": [{"topic": "a", "partition": "0", "replicas": [1]}]}',
                  '{"partitions": [{"topic": "a", "partition": 0, "replicas": ["1"]}]}',
                  '{"partitions": [{"topic": 1, "partition": 0, "replicas": [1]}]}',
                  '{"partitions": [{"topic": "a", "partition": true, "replicas": [1]}]}'):  # fmt: skip
        plan.write_text(wrong)
        with pytest.raises(ConfigError, match="is not a plan like"):
            read_plan(plan)
