"""Commands that change partitions, against a real controller and three brokers, one of which
dies.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import Raftlog, running

from raftlog.cli.values import assignments, broker_ids, partition_name, plan_of, read_plan
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A controller, node 1, and brokers 2, 3 and 4."""
    with running(tmp_path_factory.mktemp("three") / "c", brokers=3) as made:
        yield made


@pytest.fixture
def at(three: LocalCluster) -> tuple[str, str]:
    return "--bootstrap-controller", three.bootstrap_controllers


@pytest.fixture
def through(three: LocalCluster) -> tuple[str, str]:
    """Writes through a broker."""
    return "--bootstrap-server", three.bootstrap_servers.split(",")[0]


def shown(
    raftlog: Raftlog, through: tuple[str, str], name: str
) -> dict[int, tuple[int, list[int]]]:
    ran = raftlog("topics", "describe", name, "--read", "latest", *through, "--json")
    (topic,) = ran.json["items"]
    return {row["index"]: (row["leader"], row["replicas"]) for row in topic["partitions"]}


@pytest.mark.nightly
def test_topics_are_placed_by_hand_and_grow(
    raftlog: Raftlog, at: tuple[str, str], through: tuple[str, str]
) -> None:
    made = raftlog(
        "topics",
        "create",
        "grown",
        "--replica-assignment",
        "2:3,3:2",
        "--acks",
        "visible",
        *through,
    )
    assert made.code == 0, made
    assert shown(raftlog, through, "grown") == {0: (2, [2, 3]), 1: (3, [3, 2])}
    tried = raftlog("partitions", "increase", "grown", "-n", 5, "--validate-only", *at, "--json")
    assert (tried.code, tried.json["token"]) == (0, None)
    more = raftlog(
        "partitions",
        "increase",
        "grown",
        "-n",
        3,
        "--replica-assignment",
        "4:2",
        "--acks",
        "visible",
        *through,
    )
    assert more.code == 0, more
    assert "grown: has 3 partitions" in more.out
    assert shown(raftlog, through, "grown")[2] == (4, [4, 2])
    less = raftlog("partitions", "increase", "grown", "-n", 2, *at)
    assert (less.code, "INVALID_PARTITIONS" in less.err, "topics[0].count" in less.err) == (
        1,
        True,
        True,
    )
    tried = raftlog("topics", "delete", "grown", "--validate-only", *at)
    assert (tried.code, "grown: would be deleted" in tried.out) == (0, True)
    assert shown(raftlog, through, "grown")


@pytest.mark.nightly
def test_replicas_that_go_at_once_and_the_way_back(
    raftlog: Raftlog, at: tuple[str, str], through: tuple[str, str], tmp_path: Path
) -> None:
    assert raftlog("topics", "create", "moved", "--replica-assignment", "2:3,3:4", *at).code == 0
    ran = raftlog("partitions", "reassign", "moved:0=3", "--acks", "visible", *through, "--json")
    assert ran.code == 0, ran
    assert ran.json["write"]["items"] == [
        {"name": "moved:0", "error": None, "topic": "moved", "partition": 0}
    ]
    assert ran.json["before"]["partitions"] == [
        {"topic": "moved", "partition": 0, "replicas": [2, 3]}
    ]
    assert shown(raftlog, through, "moved")[0] == (3, [3])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(ran.json["before"]))
    back = raftlog("partitions", "reassign", "--plan", plan, "--validate-only", *at)
    assert (back.code, "moved:0: would be moved" in back.out) == (0, True)
    kept = raftlog("partitions", "reassign", "--plan", plan, "--keep-replication-factor", *at)
    assert (kept.code, "INVALID_REPLICATION_FACTOR" in kept.err) == (1, True)
    several = raftlog("partitions", "reassign", "moved:0=9", "moved:1=4,3", "moved:7=3", *at)
    assert several.code == 1
    assert "INVALID_REPLICA_ASSIGNMENT: moved:0: broker 9 is not registered" in several.err
    assert "moved:1: moving" in several.out


def test_leaders_are_elected_on_request(
    raftlog: Raftlog, at: tuple[str, str], through: tuple[str, str]
) -> None:
    assert raftlog("topics", "create", "led", "--replica-assignment", "2:3,3:2", *at).code == 0
    # Another order makes another preferred leader, and moves nobody by itself.
    assert raftlog("partitions", "reassign", "led:0=3,2", "--acks", "visible", *at).code == 0
    assert shown(raftlog, through, "led")[0] == (2, [3, 2])
    tried = raftlog("partitions", "elect", "led", "--validate-only", *at)
    assert (tried.code, "led:0: would be led by 3" in tried.out) == (0, True)
    ran = raftlog("partitions", "elect", "led:0", "led:1", "--acks", "visible", *through, "--json")
    assert ran.code == 0, ran
    assert [(row["partition"], row["leader"], row["needed"]) for row in ran.json["items"]] == [
        (0, 3, True),
        (1, 3, False),
    ]
    assert shown(raftlog, through, "led")[0] == (3, [3, 2])
    assert raftlog("partitions", "elect", "--all", *at).code == 0
    nothing = raftlog("partitions", "elect", "--all", *at)
    assert (nothing.code, "nothing to elect" in nothing.out) == (0, True)
    needless = raftlog("partitions", "elect", "led", "--unclean", *at)
    assert (needless.code, "led:0: broker 3 leads" in needless.out) == (0, True)
    missing = raftlog("partitions", "elect", "nope", *at)
    assert (missing.code, "UNKNOWN_TOPIC_OR_PARTITION" in missing.err) == (1, True)


@pytest.mark.nightly
def test_what_waits_for_a_dead_broker_is_listed_and_cancelled(
    raftlog: Raftlog, three: LocalCluster, at: tuple[str, str], through: tuple[str, str]
) -> None:
    """The last test that needs broker 4: it is killed, and unregistered."""
    assert raftlog("topics", "create", "waits", "--replica-assignment", "2:3,3:2", *at).code == 0
    three.kill("broker-4", signal.SIGKILL)
    assert three.wait_gone("broker-4", 30)
    none = raftlog("partitions", "cancel", "waits:0", *at)
    assert (none.code, "NO_REASSIGNMENT_IN_PROGRESS" in none.err) == (1, True)
    assert raftlog("partitions", "reassign", "waits:0=4,2", "waits:1=4,3", *through).code == 0
    listed = raftlog("partitions", "reassignments", "waits", "--check", *at, "--json")
    assert listed.code == 3
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
    assert "4, 2, 3" in raftlog("partitions", "reassignments", *through).out
    assert "waits:1: cancelled" in raftlog("partitions", "cancel", "waits:1", *at).out
    rest = raftlog("partitions", "cancel", "--all", "--acks", "committed", *at)
    assert (rest.code, "waits:0: cancelled" in rest.out) == (0, True)
    assert "nothing is under way" in raftlog("partitions", "cancel", "--all", *at).out
    quiet = raftlog("partitions", "reassignments", "--check", *at)
    assert (quiet.code, "nothing is under way" in quiet.out) == (0, True)

    gone = raftlog("brokers", "unregister", 4, *at, "--json")
    assert gone.code == 0, gone
    assert 4 not in {row["id"] for row in raftlog("brokers", "list", *at, "--json").json["brokers"]}
    again = raftlog("brokers", "unregister", 4, *at)
    assert (again.code, "BROKER_ID_NOT_REGISTERED" in again.err) == (1, True)
    cluster = raftlog(
        "cluster", "describe", "--include-fenced-brokers", "--read", "latest", *through, "--json"
    ).json
    assert (cluster["id"], cluster["controller_id"]) == (three.cluster_id, 1)
    assert [(row["id"], row["fenced"]) for row in cluster["brokers"]] == [
        (2, False),
        (3, False),
    ]
    assert "controller 1" in raftlog("cluster", "describe", *through).out


def test_lists_and_warnings(
    raftlog: Raftlog, at: tuple[str, str], through: tuple[str, str]
) -> None:
    assert raftlog("topics", "create", "listed", *at).code == 0
    for option, items, expected in (
        ("--append", "compact", "delete,compact"),
        ("--subtract", "delete", "compact"),
    ):
        ran = raftlog(
            "configs",
            "alter",
            "topic",
            "listed",
            option,
            f"cleanup.policy={items}",
            "--acks",
            "visible",
            *at,
        )
        assert ran.code == 0, ran
        keys = ("--key", "cleanup.policy")
        (shown_,) = raftlog(
            "configs", "describe", "topic", "listed", *keys, *through, "--json"
        ).json["items"]
        assert (shown_["value"], shown_["source"]) == (expected, "dynamic-topic-config")
    ran = raftlog(
        "configs", "alter", "broker", "", "--set", "log.retention.ms=4711", "--acks", "visible", *at
    )
    assert ran.code == 0, ran
    described = raftlog(
        "configs", "describe", "topic", "listed", "--key", "retention.ms", *through, "--json"
    )
    assert described.json["items"] == [
        {
            "name": "retention.ms",
            "value": "4711",
            "source": "dynamic-default-broker-config",
            "is_default": False,
            "without_effect": "",
        }
    ]
    ran = raftlog(
        "cluster", "features", "downgrade", "lao.version=0", "--validate-only", *at, "--json"
    )
    assert ran.code == 0, ran
    assert "the lowest acknowledged offset is not promised any more" in ran.json["warnings"][0]
    ran = raftlog("cluster", "features", "downgrade", "lao.version=0", "--validate-only", *at)
    assert "warning: lao.version goes from 1 to 0" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("reassign",),
        ("reassign", "orders=1"),
        ("reassign", "orders:0"),
        ("reassign", "orders:0=a"),
        ("reassign", "orders:0="),
        ("reassign", "--plan", "/no/such/file"),
        ("cancel",),
        ("cancel", "orders:0", "--all"),
        ("cancel", "orders"),
        ("elect",),
        ("elect", "orders", "--all"),
        ("increase", "orders", "-n", "3", "--replica-assignment", "1:x"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_code_2_and_reaches_nobody(
    raftlog: Raftlog, arguments: tuple[str, ...]
) -> None:
    ran = raftlog("partitions", *arguments, "--bootstrap-controller", "127.0.0.1:1", "--timeout", 1)
    assert ran.code == 2, ran


def test_names_assignments_and_plans_are_read_as_they_are_written(tmp_path: Path) -> None:
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
        with pytest.raises(ConfigError, match="is no plan like"):
            read_plan(plan)
