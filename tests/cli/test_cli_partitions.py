"""Commands that change partitions; one of three brokers dies."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import At, Raftlog, running

from raftlog.cli.values import assignments, broker_ids, partition_name, plan_of, read_plan
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("three") / "c", brokers=3) as made:
        yield made


@pytest.fixture
def at(three: LocalCluster) -> At:
    return "--bootstrap-controller", three.bootstrap_controllers


@pytest.fixture
def through(three: LocalCluster) -> At:
    return "--bootstrap-server", three.bootstrap_servers.split(",")[0]


def shown(raftlog: Raftlog, through: At, name: str) -> dict[int, tuple[int, list[int]]]:
    ran = raftlog(f"topics describe --json {name} --read latest", *through)
    (topic,) = ran.json["items"]
    return {row["index"]: (row["leader"], row["replicas"]) for row in topic["partitions"]}


@pytest.mark.nightly
def test_topics_are_placed_manually_and_grow(raftlog: Raftlog, at: At, through: At) -> None:
    raftlog.succeed("topics create grown --replica-assignment 2:3,3:2 --acks visible", *through)
    assert shown(raftlog, through, "grown") == {0: (2, [2, 3]), 1: (3, [3, 2])}
    tried = raftlog("partitions increase grown -n 5 --validate-only --json", *at)
    assert (tried.code, tried.json["token"]) == (0, None)
    raftlog(
        "partitions increase grown -n 3 --replica-assignment 4:2 --acks visible", *through
    ).showed("grown: has 3 partitions")
    assert shown(raftlog, through, "grown")[2] == (4, [4, 2])
    raftlog("partitions increase grown -n 2", *at).refused(
        1, "INVALID_PARTITIONS", "topics[0].count"
    )
    raftlog("topics delete grown --validate-only", *at).showed("grown: would be deleted")
    assert shown(raftlog, through, "grown")


@pytest.mark.nightly
def test_replicas_are_moved_and_back(raftlog: Raftlog, at: At, through: At, tmp_path: Path) -> None:
    raftlog.succeed("topics create moved --replica-assignment 2:3,3:4", *at)
    ran = raftlog.succeed("partitions reassign moved:0=3 --acks visible --json", *through)
    assert ran.json["write"]["items"] == [
        {"name": "moved:0", "error": None, "topic": "moved", "partition": 0}
    ]
    assert ran.json["before"]["partitions"] == [
        {"topic": "moved", "partition": 0, "replicas": [2, 3]}
    ]
    assert shown(raftlog, through, "moved")[0] == (3, [3])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(ran.json["before"]))
    raftlog("partitions reassign --plan", plan, "--validate-only", *at).showed(
        "moved:0: would be moved"
    )
    raftlog("partitions reassign --plan", plan, "--keep-replication-factor", *at).refused(
        1, "INVALID_REPLICATION_FACTOR"
    )
    several = raftlog("partitions reassign moved:0=9 moved:1=4,3 moved:7=3", *at).refused(
        1, "INVALID_REPLICA_ASSIGNMENT: moved:0: broker 9 is not registered"
    )
    assert "moved:1: moving" in several.out


def test_leaders_are_elected_on_request(raftlog: Raftlog, at: At, through: At) -> None:
    raftlog.succeed("topics create led --replica-assignment 2:3,3:2", *at)
    # Another order makes another preferred leader, and moves nobody by itself.
    raftlog.succeed("partitions reassign led:0=3,2 --acks visible", *at)
    assert shown(raftlog, through, "led")[0] == (2, [3, 2])
    raftlog("partitions elect led --validate-only", *at).showed("led:0: would be led by 3")
    ran = raftlog.succeed("partitions elect led:0 led:1 --acks visible --json", *through)
    assert [(row["partition"], row["leader"], row["needed"]) for row in ran.json["items"]] == [
        (0, 3, True),
        (1, 3, False),
    ]
    assert shown(raftlog, through, "led")[0] == (3, [3, 2])
    raftlog.succeed("partitions elect --all", *at)
    raftlog("partitions elect --all", *at).showed("nothing to elect")
    raftlog("partitions elect led --unclean", *at).showed("led:0: broker 3 leads")
    raftlog("partitions elect nope", *at).refused(1, "UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.nightly
def test_move_that_waits_for_a_dead_broker_is_listed_and_cancelled(
    raftlog: Raftlog, three: LocalCluster, at: At, through: At
) -> None:
    """The last test that needs broker 4: it is killed, and unregistered."""
    raftlog.succeed("topics create waits --replica-assignment 2:3,3:2", *at)
    three.kill("broker-4", signal.SIGKILL)
    assert three.wait_gone("broker-4", 30)
    raftlog("partitions cancel waits:0", *at).refused(1, "NO_REASSIGNMENT_IN_PROGRESS")
    raftlog.succeed("partitions reassign waits:0=4,2 waits:1=4,3", *through)
    listed = raftlog("partitions reassignments waits --check --json", *at).refused(3)
    first, second = listed.json["items"]
    assert first == {
        "topic": "waits",
        "partition": 0,
        "replicas": [4, 2, 3],
        "adding": [4],
        "removing": [3],
        "in_sync": [2, 3],
        "waiting_for": [4],
    }
    assert second["waiting_for"] == [4]
    assert "4, 2, 3" in raftlog("partitions reassignments", *through).out
    assert "waits:1: cancelled" in raftlog("partitions cancel waits:1", *at).out
    raftlog("partitions cancel --all --acks committed", *at).showed("waits:0: cancelled")
    assert "no moves in progress" in raftlog("partitions cancel --all", *at).out
    raftlog("partitions reassignments --check", *at).showed("no moves in progress")

    raftlog.succeed("brokers unregister 4 --json", *at)
    assert 4 not in {row["id"] for row in raftlog("brokers list --json", *at).json["brokers"]}
    raftlog("brokers unregister 4", *at).refused(1, "BROKER_ID_NOT_REGISTERED")
    cluster = raftlog(
        "cluster describe --include-fenced-brokers --read latest --json", *through
    ).json
    assert (cluster["id"], cluster["controller_id"]) == (three.cluster_id, 1)
    assert [(row["id"], row["fenced"]) for row in cluster["brokers"]] == [(2, False), (3, False)]
    assert "controller 1" in raftlog("cluster describe", *through).out


def test_partition_lists_show_warnings(raftlog: Raftlog, at: At, through: At) -> None:
    raftlog.succeed("topics create listed", *at)
    for option, items, expected in (
        ("--append", "compact", "delete,compact"),
        ("--subtract", "delete", "compact"),
    ):
        raftlog.succeed(
            "configs alter topic listed",
            option,
            f"cleanup.policy={items}",
            "--acks",
            "visible",
            *at,
        )
        keys = ("--key", "cleanup.policy")
        (shown_,) = raftlog("configs describe topic listed --json", *keys, *through).json["items"]
        assert (shown_["value"], shown_["source"]) == (expected, "dynamic-topic-config")
    raftlog.succeed(
        "configs alter broker", "", "--set", "log.retention.ms=4711", "--acks", "visible", *at
    )
    described = raftlog("configs describe topic listed --key retention.ms --json", *through)
    assert described.json["items"] == [
        {
            "name": "retention.ms",
            "value": "4711",
            "source": "dynamic-default-broker-config",
            "is_default": False,
            "without_effect": "",
        }
    ]
    ran = raftlog.succeed("cluster features downgrade lao.version=0 --validate-only --json", *at)
    assert "the lowest acknowledged offset is no longer promised" in ran.json["warnings"][0]
    ran = raftlog("cluster features downgrade lao.version=0 --validate-only", *at)
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
