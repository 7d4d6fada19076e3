"""Commands against one real controller."""

from __future__ import annotations

import json
import signal

import pytest


@pytest.fixture
def at(cluster):
    return "--bootstrap-controller", cluster.bootstrap_controllers


def test_quorum_describe(raftlog, cluster, at):
    ran = raftlog("quorum", "describe", *at, "--json")
    assert ran.code == 0
    assert ran.json["cluster_id"] == cluster.cluster_id
    assert ran.json["leader_id"] == 1
    assert ran.json["lowest_acknowledged_offset"] is None
    assert ran.json["lao_unknown_reason"]
    (node,) = ran.json["nodes"]
    assert (node["role"], node["voted_id"], node["lag"], node["endpoint"]) == ("leader", 1, 0, at[1])
    table = raftlog("quorum", "describe", *at).out
    assert "leader" in table
    assert "lowest acknowledged offset: unknown (" in table


def test_quorum_describe_names_who_does_not_answer(raftlog, cluster):
    dead = "127.0.0.1:1"
    ran = raftlog("quorum", "describe", "--bootstrap-controller", f"{dead},{cluster.bootstrap_controllers}", "--json")
    assert ran.code == 0
    down = [node for node in ran.json["nodes"] if node["role"] is None]
    assert [node["endpoint"] for node in down] == [dead]
    assert "refused" in down[0]["failure"]


def test_brokers_list_without_brokers(raftlog, at):
    ran = raftlog("brokers", "list", *at, "--json")
    assert ran.code == 0
    assert ran.json["brokers"] == []
    assert ran.json["lao_unknown_reason"]
    assert "lowest acknowledged offset unknown" in raftlog("brokers", "list", *at).out


def test_refused_writes_are_code_1_and_name_the_field(raftlog, at):
    ran = raftlog("configs", "alter", "topic", "nope", "--set", "retention.ms=1", *at)
    assert ran.code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in ran.err
    ran = raftlog("topics", "create", "bad name", *at)
    assert ran.code == 1
    assert "INVALID_TOPIC_EXCEPTION" in ran.err
    assert "topics[0].name" in ran.err


def test_a_write_says_where_it_is(raftlog, at):
    ran = raftlog("configs", "alter", "broker", "", "--set", "log.retention.ms=1001", *at, "--json")
    assert ran.code == 0
    assert ran.json["write"]["reached"] == "committed"
    offset = ran.json["write"]["offset"]
    dumped = raftlog("log", "dump", *at, "--from", offset, "--until", offset + 1, "--json").json
    assert (dumped["offset"], dumped["type"]) == (offset, "CONFIG")
    assert dumped["record"] == {
        "resource_type": 4,
        "resource_name": "",
        "name": "log.retention.ms",
        "value": "1001",
    }
    shown = raftlog("image", "show", *at, "--at", offset, "--entity", "configs/broker/").json
    assert shown["values"]["log.retention.ms"] == "1001"


def test_wrong_settings_are_usage(raftlog, at):
    assert raftlog("configs", "alter", "broker", "", *at).code == 2
    assert raftlog("configs", "alter", "broker", "", "--set", "novalue", *at).code == 2
    assert raftlog("image", "show", *at, "--entity", "nonsense").code == 2
    assert raftlog("image", "show", *at, "--entity", "topics/none").code == 1
    ran = raftlog("image", "show", *at, "--at", 10**9)
    assert ran.code == 2
    assert "the log ends before offset" in ran.err


def test_dump_filters_and_prints_for_people(raftlog, at):
    ran = raftlog("log", "dump", *at, "--type", "leader_change")
    (line,) = [line for line in ran.out.splitlines() if line.split()[0] == "0"]
    assert "LEADER_CHANGE" in line
    assert "leader_id=1 voters=[1]" in line
    assert "FEATURE_LEVEL" not in ran.out


def test_export_dump_and_image_agree_on_every_source(raftlog, cluster, at, tmp_path):
    raftlog("configs", "alter", "broker", "", "--set", "log.retention.ms=2002", *at)
    exported = tmp_path / "export"
    ran = raftlog("export", exported, *at, "--verify", "--json")
    assert ran.code == 0, ran
    assert ran.json["verified"] is True
    end = ran.json["end_offset"]
    assert raftlog("export", exported, *at, "--json").json["records"] in range(2)  # at most a progress record since
    running = raftlog("log", "dump", *at, "--until", end, "--json").out.splitlines()
    assert len(running) == end
    assert running == raftlog("log", "dump", "-e", exported, "--until", end, "--json").out.splitlines()

    cluster.stop(["controller-1"])
    try:
        directory = cluster.data_path("controller-1")
        stopped = raftlog("log", "dump", "-d", directory, "--until", end, "--json").out.splitlines()
        assert [json.loads(line) for line in stopped] == [json.loads(line) for line in running]
        hashes = {
            raftlog("image", "show", *source, "--at", end - 1, "--json").json["state_hash"]
            for source in (("-e", exported), ("-d", directory))
        }
        assert len(hashes) == 1
        # A log of one voter is committed to its end: nothing is left out.
        ran = raftlog("export", tmp_path / "second", "-d", directory, "--json")
        assert ran.code == 0
        assert ran.json["end_offset"] >= end
        assert "left out" not in ran.err
    finally:
        cluster.start("controller-1")
        cluster.wait_leader(120)


def test_a_directory_in_use_is_refused(raftlog, cluster):
    ran = raftlog("storage", "info", "-d", cluster.data_path("controller-1"))
    assert ran.code == 2
    assert "in use" in ran.err


def test_an_export_that_is_none_is_said(raftlog, tmp_path):
    ran = raftlog("log", "dump", "-e", tmp_path)
    assert ran.code == 1
    assert "is no export" in ran.err
    assert raftlog("log", "dump", "-e", tmp_path, "-d", tmp_path).code == 2


def test_kill_and_restart_keeps_what_was_written(raftlog, cluster, at):
    offset = raftlog("configs", "alter", "broker", "", "--set", "log.retention.ms=3003", *at, "--json").json["write"][
        "offset"
    ]
    assert cluster.kill("controller-1", signal.SIGKILL)
    assert cluster.wait_gone("controller-1", 60)
    assert cluster.pid("controller-1") is None
    cluster.start("controller-1")
    cluster.wait_leader(120)
    dumped = raftlog("log", "dump", *at, "--from", offset, "--until", offset + 1, "--json").json
    assert dumped["record"]["value"] == "3003"
