"""Commands against real nodes: metadata, quorum, features, exports and the benchmark."""

import json
import signal
from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.cli import completion
from raftlog.cli.perf import RESOURCE, Measured, lines, majority_sync_ms, report
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.ops.collector import Diagnosis, NodeAt
from raftlog.ops.evidence import AskedNode, QuorumAnswer, Reach, Replica, Survey


def test_quorum_describe_shows_the_leader(cluster: LocalCluster, at: Raftlog) -> None:
    ran = at.succeed("quorum describe --json")
    assert ran.json["cluster_id"] == cluster.cluster_id
    assert ran.json["leader_id"] == 1
    assert ran.json["lowest_acknowledged_offset"] < ran.json["high_watermark"]
    (node,) = ran.json["nodes"]
    assert node["version"]
    assert node["role"] == "leader"
    assert node["voted_id"] == 1
    assert node["lag"] == 0
    assert node["endpoint"] == at.address
    table = at("quorum describe").out
    assert "leader" in table
    assert "lowest acknowledged offset: " in table


def test_quorum_describe_names_silent_nodes(raftlog: Raftlog, cluster: LocalCluster) -> None:
    dead = "127.0.0.1:1"
    ran = raftlog.succeed(
        f"quorum describe --json --bootstrap-controller {dead},{cluster.bootstrap_controllers}"
    )
    down = [node for node in ran.json["nodes"] if node["role"] is None]
    assert [node["endpoint"] for node in down] == [dead]
    assert "refused" in down[0]["failure"]


def test_brokers_list_shows_offsets(cluster: LocalCluster, at: Raftlog, through: Raftlog) -> None:
    ran = at.succeed("brokers list --json")
    assert [one["id"] for one in ran.json["brokers"]] == [2, 3, 4]
    broker = ran.json["brokers"][0]
    assert (broker["state"], broker["address"]) == ("active", cluster.brokers[0].endpoint)
    assert (broker["reason"], broker["cause"]) == ("caught up", "CAUGHT_UP")
    assert broker["applied_offset"] == ran.json["high_watermark"] - 1 - broker["lag"]
    assert ran.json["lowest_acknowledged_offset"] >= broker["epoch"]
    assert "active" in at("brokers list").out
    versions = {
        one["name"]: one["max_version"]
        for one in through("brokers api-versions --json").json["apis"]
    }
    assert (versions["Fetch"], versions["Metadata"]) == (1, 0), "fetches name broker epochs"
    assert "DescribeConfigs" in through("brokers api-versions").out


def test_shell_completes_names_of_the_cluster(
    cluster: LocalCluster, at: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine must not make it a matter of luck: who presses TAB does not wait so long.
    monkeypatch.setattr("raftlog.cli.completion.ANSWER_S", 30.0)
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP_CONTROLLER", cluster.bootstrap_controllers)
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
    at.succeed("topics create completed --acks visible")
    at.succeed("cluster cursors set nightly 0")
    assert completion.topics("compl") == ["completed"]
    assert completion.broker_ids("") == ["2", "3", "4"]
    assert completion.voter_ids("") == ["1"]
    assert completion.node_names("") == ["broker-2", "broker-3", "broker-4", "controller-1"]
    assert completion.node_names("c") == ["controller-1"]
    assert completion.cursor_names("n") == ["nightly"]
    at.succeed("topics delete completed")
    at.succeed("cluster cursors delete nightly")


def test_topics_are_created_and_deleted(at: Raftlog, through: Raftlog) -> None:
    made = through.succeed("topics create a b --json --acks visible --replica-assignment 2:3,3:4")
    assert made.json["reached"] == "visible"
    again = at("topics create a c -r 1 --acks visible").refused(1, "TOPIC_ALREADY_EXISTS")
    assert "c: created" in again.out
    listed = through("topics list --json").json
    # Other tests make topics, too.
    partitions = {topic["name"]: len(topic["partitions"]) for topic in listed["items"]}
    assert partitions.items() >= {"a": 2, "b": 2, "c": 1}.items()
    assert listed["offset"] >= made.json["token"]["offset"]

    described = through("topics describe b --json").json
    (found,) = described["items"]
    assert [(one["leader"], one["replicas"]) for one in found["partitions"]] == [
        (2, [2, 3]),
        (3, [3, 4]),
    ]
    through("topics describe nope").refused(1, "nope")
    # [the doctor told an operator to type it, and it was wrong usage]
    described = through("topics describe --json").json
    assert {"a", "b", "c"} <= {one["name"] for one in described["items"]}
    assert described["missing"] == []

    through.succeed("topics delete a b c --acks visible")
    left = {one["name"] for one in through("topics list --json").json["items"]}
    assert not left & {"a", "b", "c"}
    shown = at("log image --at", made.json["token"]["offset"], "--entity", "topics/b/1").json
    assert (shown["offset"], shown["path"]) == (made.json["token"]["offset"], "topics/b/1")
    assert (shown["entity"]["index"], shown["entity"]["leader"]) == (1, 3)


def test_configs_are_altered_and_described(at: Raftlog, through: Raftlog) -> None:
    through("configs alter broker 2 --set log.retention.ms=77 --acks visible").showed(
        "visible at offset"
    )
    described = through("configs describe broker 2 --key log.retention.ms --json").json
    (item,) = described["items"]
    assert (item["name"], item["value"]) == ("log.retention.ms", "77")
    assert (item["source"], item["is_default"]) == ("dynamic-broker-config", False)
    assert item["without_effect"] == "effective only if set for all brokers"
    at.succeed("configs alter broker 2 --delete log.retention.ms --acks visible")
    described = through("configs describe broker 2 --key log.retention.ms --json").json
    assert described["items"][0]["value"] != "77"
    at("configs alter broker 2 --set log.retention.ms=78 --validate-only").showed(
        "would be accepted"
    )


def test_write_that_is_not_visible_in_time_is_kept_and_exits_with_4(
    cluster: LocalCluster, at: Raftlog
) -> None:
    cluster.kill("broker-2", signal.SIGSTOP)
    try:
        ran = at("configs alter broker '' --set log.retention.ms=99 --acks visible --timeout 1")
    finally:
        cluster.kill("broker-2", signal.SIGCONT)
    assert ran.code == 4, ran
    assert "the write is committed at offset" in ran.err
    assert "waiting for brokers 2" in ran.err
    cluster.wait_ready(["broker-2"], 120)


def test_refused_writes_exit_with_1_and_name_the_field(at: Raftlog) -> None:
    at("configs alter topic nope --set retention.ms=1").refused(1, "UNKNOWN_TOPIC_OR_PARTITION")
    at("topics create", "bad name").refused(1, "INVALID_TOPIC_EXCEPTION", "topics[0].name")


def test_write_prints_its_offset(at: Raftlog) -> None:
    ran = at.succeed("configs alter broker --json '' --set log.retention.ms=1001")
    assert ran.json["reached"] == "committed"
    offset = ran.json["token"]["offset"]
    dumped = at("log dump --json --from", offset, "--until", offset + 1).json
    assert (dumped["offset"], dumped["type"]) == (offset, "CONFIG")
    assert (dumped["record"]["name"], dumped["record"]["value"]) == ("log.retention.ms", "1001")
    shown = at("log image --at", offset, "--entity", "configs/broker/").json
    assert shown["entity"]["values"]["log.retention.ms"] == "1001"


def test_invalid_settings_exit_with_2(at: Raftlog) -> None:
    assert at("configs alter broker ''").code == 2
    assert at("configs alter broker '' --set novalue").code == 2
    assert at("log image --entity nonsense").code == 2
    assert at("log image --entity topics/none").code == 1
    at("log image --at", 10**9).refused(2, "the log ends before offset")


def test_dump_filters_and_formats_records(at: Raftlog) -> None:
    ran = at("log dump --type leader_change")
    (line,) = [line for line in ran.out.splitlines() if line.split()[0] == "0"]
    assert "LEADER_CHANGE" in line
    assert "leader_id=1 voters=[1]" in line
    assert "FEATURE_LEVEL" not in ran.out
    at("log dump --type TOPICS").refused(2, "did you mean TOPIC?")
    at("log dump --from 5 --until 5").refused(2, "--until 5 must be greater than --from 5")


def test_unknown_config_key_exits_with_1(through: Raftlog) -> None:
    ran = through("configs describe broker '' --key log.retention.ms --key nope")
    assert (ran.code, "log.retention.ms" in ran.out) == (1, True)
    assert "no such broker config: nope" in ran.err
    ran = through("configs describe topic nope")
    assert (ran.code, ran.err.count("UNKNOWN_TOPIC_OR_PARTITION")) == (1, 1)


def test_export_dump_and_image_agree_on_every_source(
    raftlog: Raftlog, cluster: LocalCluster, at: Raftlog, tmp_path: Path
) -> None:
    at("configs alter broker '' --set log.retention.ms=2002")
    exported = tmp_path / "export"
    ran = at.succeed("export --verify --json", exported)
    assert ran.json["verified"] is True
    end = ran.json["end_offset"]
    again = at("export --json", exported).json
    assert again["first_offset"] == end
    running = at("log dump --json --until", end).out.splitlines()
    assert len(running) == end
    assert running == raftlog("log dump --json -e", exported, "--until", end).out.splitlines()

    cluster.stop(["controller-1"])
    try:
        directory = cluster.data_path("controller-1")
        stopped = raftlog("log dump --json -d", directory, "--until", end).out.splitlines()
        assert [json.loads(line) for line in stopped] == [json.loads(line) for line in running]
        hashes = {
            raftlog("log image --json", *source, "--at", end - 1).json["state_hash"]
            for source in (("-e", exported), ("-d", directory))
        }
        assert len(hashes) == 1
        # A log of one voter is committed to its end: nothing is left out.
        ran = raftlog.succeed("export --json", tmp_path / "second", "-d", directory)
        assert ran.json["end_offset"] >= end
        assert "left out" not in ran.err
    finally:
        cluster.start("controller-1")
        cluster.wait_leader(120)


def test_directory_in_use_is_refused(raftlog: Raftlog, cluster: LocalCluster) -> None:
    raftlog("storage info -d", cluster.data_path("controller-1")).refused(2, "in use")


def test_directory_that_is_not_an_export_is_refused(raftlog: Raftlog, tmp_path: Path) -> None:
    raftlog("log dump -e", tmp_path).refused(2, "is not an export")
    assert raftlog("log dump -e", tmp_path, "-d", tmp_path).code == 2


def test_quorum_is_described_as_a_whole_and_by_replica(at: Raftlog) -> None:
    at("quorum describe --status").showed("current voters")
    replicas = at("quorum describe --replication")
    # A voter counts for what its disk has: a record may be on its way there at each look.
    for _ in range(20):
        document = at("quorum describe --json").json
        (voter,) = document["voters"]
        if voter["lag"] == 0:
            break
    assert (voter["node_id"], voter["lag"], voter["low_on_space"]) == (1, 0, False)
    assert voter["directory_id"] in replicas.out
    assert document["observers"] == []


def test_leadership_stays_when_no_other_voter_can_take_it(at: Raftlog) -> None:
    assert at("quorum transfer --to 1 --json").json == {"target_id": 1}
    nobody = at("quorum transfer")
    assert nobody.code != 0
    assert "no other voter is alive" in nobody.err
    assert "node 9 is not a voter" in at("quorum transfer --to 9").err
    assert at("quorum transfer --to", -1).code == 2, "no default by its number"


def test_invalid_changes_of_the_voter_set_are_refused(at: Raftlog) -> None:
    assert "is not a voter" in at("quorum remove-voter --voter-id 9").err
    assert "is the last voter" in at("quorum remove-controller --voter-id 1").err
    at("quorum add-voter --voter-id 9").refused(2, "all of --voter-id")
    unknown = at("quorum add-controller --voter-id 9 --directory-id d --endpoint h:1")
    assert "does not fetch from this leader" in unknown.err


def test_deleting_an_absent_key_is_not_reported(through: Raftlog) -> None:
    through.succeed("kv put there/once ''")
    assert through("kv delete there/once").out.startswith("there/once: deleted\n")
    absent = through("kv delete there/once")
    assert (absent.code, absent.out) == (0, "there/once: did not exist\n")


def test_inspect_names_the_file_that_is_not_a_backup(raftlog: Raftlog, tmp_path: Path) -> None:
    """[a file of text was "a batch says that it has 2065851248 bytes\"]"""
    file = tmp_path / "state.json"
    file.write_text('{"cluster_id": "eb714afc-ddf2-41f1-8df8-84148a831c04"}')
    raftlog("backup inspect", file).refused(3, f"{file} is not a valid snapshot: ")


def test_mistyped_entity_suggests_the_similar_one(at: Raftlog) -> None:
    at("log image --entity topic/orders").refused(2, "did you mean topics?")


def test_features_describe_lists_the_finalized_levels(at: Raftlog) -> None:
    rows = at("cluster features describe --json").json["features"]
    assert [(row["feature"], row["node_id"], row["finalized_level"]) for row in rows] == [
        ("broker.heartbeat.version", 1, 1),
        ("lao.version", 1, 1),
        ("metadata.version", 1, LATEST_METADATA_VERSION),
    ]
    assert rows[2]["max_supported_version"] == LATEST_METADATA_VERSION
    assert "metadata.version" in at("cluster features describe").out


def test_upgrade_to_the_finalized_level_changes_nothing(at: Raftlog) -> None:
    ran = at(f"cluster features upgrade metadata.version={LATEST_METADATA_VERSION}")
    assert ran.code == 0
    assert ran.out.strip() == f"metadata.version={LATEST_METADATA_VERSION}: was already finalized"


def test_impossible_feature_level_is_refused_with_the_reason(at: Raftlog) -> None:
    ran = at("cluster features upgrade metadata.version=99")
    assert ran.code != 0
    assert f"supports metadata.version 1 to {LATEST_METADATA_VERSION}, not 99" in ran.err
    ran = at("cluster features downgrade broker.heartbeat.version=0")
    assert ran.code != 0
    assert "lao.version 1 requires the brokers' heartbeats: lower it to 0" in ran.err
    ran = at("cluster features upgrade metadata.version")
    assert "write it as NAME=LEVEL" in ran.err


def test_feature_level_is_lowered_with_a_warning_and_raised_again(at: Raftlog) -> None:
    for unsafe in ((), ("--unsafe",)):
        ran = at.succeed("cluster features downgrade metadata.version=1", *unsafe)
        assert "warning: metadata.version goes from 2 to 1: ISR changes no longer need" in ran.err
        ran = at("cluster features upgrade metadata.version=2")
        assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (Measured([0.01] * 500, [], 10.0), ""),
        (Measured([0.01] * 400, [], 10.0), "less than 90%"),
        (Measured([0.01] * 490 + [0.3] * 10, [], 10.0), "p99 is above"),
        (Measured([0.01] * 499 + [1.5], [], 10.0), "slowest write"),
        (Measured([0.01] * 500, ["NOT_CONTROLLER"], 10.0), "1 error, the first: NOT_CONTROLLER"),
        (Measured([], ["x"], 0.0), "0 writes per second"),
    ],
)
def test_benchmark_verdict_names_the_missed_objective(measured: Measured, why: str) -> None:
    document = report(measured, 50, 10, 5, 2.5)
    said = "\n".join(lines(document))
    assert (why in said and "FAIL" in said) if why else (document.failed == [] and "PASS" in said)


def test_majority_sync_does_not_count_controllers_that_are_not_voters() -> None:
    at = [f"127.0.0.1:{9090 + one}" for one in range(1, 5)]
    voters = [Replica(one, endpoint=at[one - 1]) for one in (1, 2, 3)]
    answer = QuorumAnswer(node_id=1, role="leader", leader_id=1, voters=voters)
    asked = [AskedNode(one, Reach.ANSWERS, answer) for one in at]
    syncs = ((1, 4000), (2, 2000), (3, 9000), (4, 20_000))
    found = [
        Diagnosis(NodeAt("controller", one, at[one - 1]), {}, {"sync_us": [sync_us]}, "")
        for one, sync_us in syncs
    ]
    assert majority_sync_ms(Survey(tuple(asked)), found) == 4.0
    assert majority_sync_ms(Survey(tuple(asked)), found[2:]) is None


def test_benchmark_leaves_the_cluster_unchanged(at: Raftlog) -> None:
    ran = at("cluster perf --seconds 1 --json")
    assert ran.code in (0, 3), "a busy machine may be slow"
    assert ran.json["writes"] == 50
    assert ran.json["majority_sync_ms"] > 0
    image = at("log image --json").json
    assert not [one for one in image["configs"] if one["resource_name"].startswith(RESOURCE)]
