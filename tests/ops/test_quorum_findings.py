"""Findings about the quorum."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from clusters import (
    AT_MS,
    CLUSTER,
    DEGRADED,
    DOWN,
    NOTICE,
    brokers,
    codes,
    described,
    endpoint,
    only,
    quorum,
    voter,
)
from msgspec.structs import replace

from raftlog.cli.exits import Exit
from raftlog.cli.main import main
from raftlog.ops import doctor as diagnosis
from raftlog.ops.collector import Collector
from raftlog.ops.doctor import Verdict, diagnose, verdict
from raftlog.ops.evidence import (
    AskedNode,
    AutopilotAnswer,
    AutopilotReplica,
    NodeAnswer,
    NodeReport,
    Reach,
    Replica,
    Survey,
)

R, S = Reach.REFUSES, Reach.SILENT
AWAY = {"last_fetch_age_ms": 60_000, "last_caught_up_age_ms": 60_000}


@pytest.mark.parametrize("size", [3, 4, 5])
def test_healthy_quorum_has_no_findings(size: int) -> None:
    assert diagnose(quorum(size)) == []
    assert verdict([]) is Verdict.HEALTHY


def test_lost_majority_names_the_missing_voters_since_when_and_how_many_to_start() -> None:
    since = {"unreachable_ms": 12_000, "unreachable_reason": "UNAVAILABLE"}
    found = only(quorum(4, 0, {1: R, 2: R}, voters={1: since, 2: {**since, "unreachable_ms": 9}}))
    assert (found.code, found.severity) == ("NO_QUORUM", DOWN)
    assert found.cause == (
        "No leader: 2 of 4 voters answer, but 3 are needed; nodes 1 and 2 refuse connections"
        " since 22:13:08Z (12 s)."
    )
    assert found.remedy.startswith("Start one of nodes 1 and 2.")


def test_all_missing_voters_are_required() -> None:
    found = only(quorum(3, 0, {1: R, 3: S}), "NO_QUORUM")
    assert "node 1 refuses connections; node 3 does not answer" in found.cause
    assert found.remedy.startswith(
        "Start one of nodes 1 and 3 (kill the hanging process first: node 3)."
    )
    assert only(quorum(2, 0, {2: R})).remedy.startswith("Start node 2.")


def test_majority_without_a_leader_is_reported_as_electing() -> None:
    for gone in ({}, {3: R}):
        assert "epoch 7" in only(quorum(3, 0, gone), "ELECTION", DOWN).cause


def test_founding_a_quorum_needs_all_voters() -> None:
    """[Two of three new controllers were up: "an election is under way, a second at most".]"""
    new = {one: {"votes_needed": 3} for one in (1, 2, 3)}
    found = only(quorum(3, 0, {3: R}, says=new), "NO_QUORUM", DOWN)
    assert found.cause == (
        "No leader: 2 of 3 voters answer, but 3 are needed to found a quorum; node 3"
        " refuses connections."
    )
    assert found.remedy == (
        "Start node 3. All configured voters must be up together once before a new quorum accepts"
        " writes: docs/deployment.md, Formatting."
    )
    # A voter with records needs a majority alone.
    assert only(quorum(3, 0, {3: R}, says={**new, 1: {"votes_needed": 2}})).code == "ELECTION"
    assert only(quorum(3, 0, says=new)).code == "ELECTION"


def test_voters_that_do_not_reach_each_other_are_reported_with_the_dialed_addresses() -> None:
    """[All three had new addresses: the doctor reported an election.]"""
    dialed = "old-{}:9093: Connection refused"
    lost = {
        one: {"unreachable_ms": 9_000, "unreachable_reason": dialed.format(one)}
        for one in (1, 2, 3)
    }
    seen = quorum(3, 0)
    nodes = []
    for node in seen.nodes:
        others = [voter(one, **({} if one == node.node_id else lost[one])) for one in (1, 2, 3)]
        nodes.append(replace(node, description=described(node.node_id, "prospective", others)))
    found = only(replace(seen, nodes=tuple(nodes)), "VOTERS_APART", DOWN)
    assert found.cause == (
        "No leader: 3 of 3 voters answer, but they do not reach each other: node 1 does not answer"
        " nodes 2 and 3 (old-1:9093: Connection refused), node 2 does not answer nodes 1 and 3"
        " (old-2:9093: Connection refused) and node 3 does not answer nodes 1 and 2"
        " (old-3:9093: Connection refused)."
    )


def piloted(seats: int = 3, after_ms: int = 60_000, **conditions: str) -> dict[int, Any]:
    """Return leader 1's description of autopilot: voters 1 to 3, and observers ``n4`` and so on."""
    replicas = [AutopilotReplica(one, f"d{one}", True, "live") for one in (1, 2, 3)]
    replicas += [
        AutopilotReplica(int(one[1:]), one, False, said) for one, said in conditions.items()
    ]
    reason = "node 3 has been silent for 5 s"
    return {1: {"autopilot": AutopilotAnswer(after_ms, seats, "WAIT", -1, "", reason, replicas)}}


def test_dead_voter_is_reported_with_autopilots_plan() -> None:
    down = {3: {"last_fetch_age_ms": 5_000}}
    found = only(quorum(3, 1, {3: R}, voters=down, says=piloted(n4="ready")), "VOTER_DOWN")
    assert "Autopilot: node 3 has been silent for 5 s. If its disk" in found.remedy
    off = only(quorum(3, 1, {3: R}, voters=down, says=piloted(after_ms=0)))
    assert "Autopilot" not in off.remedy


def test_autopilot_without_a_spare_is_reported() -> None:
    assert diagnose(quorum(3, says=piloted(n4="ready"))) == []
    found = only(quorum(3, says=piloted(n4="is silent")), "NO_SPARE", NOTICE)
    assert found.cause == "Autopilot has no spare (node 4: is silent)."
    assert only(quorum(3, says=piloted())).cause == "Autopilot has no spare."
    # Node 4 runs with a new directory.
    both = piloted(n4="silent", n04="has followed for 1 of 10 s")
    found = only(quorum(3, says=both), "NO_SPARE")
    assert found.cause == "Autopilot has no spare (node 4: has followed for 1 of 10 s)."


def test_replacement_under_way_is_reported() -> None:
    found = only(quorum(3, says=piloted(seats=4, n4="ready")))
    assert (found.code, found.severity) == ("VOTER_REPLACEMENT", DEGRADED)
    assert found.cause == "3 voters on 4 seats: a dead voter is being replaced."
    assert found.remedy == "Autopilot: node 3 has been silent for 5 s."
    assert "manually" in only(quorum(3, says=piloted(seats=4, after_ms=0))).remedy


def follower_alone(**leader: Any) -> Survey:
    """Node 2 answers and follows node 1; nodes 1 and 3 do not answer here."""
    return quorum(3, 1, {1: S, 3: S}, voters={1: leader})


def test_leader_that_a_follower_reaches_is_accepted_without_its_own_answer() -> None:
    """[The cluster was DOWN, as 1 of 3 voters answered, and its follower heard the leader.]"""
    found = only(follower_alone(), "LEADER_UNSEEN", DEGRADED)
    assert found.cause == (
        f"Node 1 leads, according to node 2, but does not answer here ({endpoint(1)})."
    )


def test_leader_that_its_follower_does_not_reach_is_not_accepted() -> None:
    lost = {"unreachable_ms": 1_000, "unreachable_reason": "h:1: Connection refused"}
    assert only(follower_alone(**lost)).code == "NO_QUORUM"


def test_cluster_is_down_when_every_write_is_refused() -> None:
    low = {one: {"low_on_space": True} for one in (1, 2)}
    refused, space = diagnose(
        quorum(3, voters=low, says={1: {"writes_refused": "no majority has space"}})
    )
    assert "node 1 and node 2" in space.cause
    assert (refused.code, refused.severity) == ("WRITES_REFUSED", DOWN)
    assert refused.cause == "Every write is refused: no majority has space."
    assert space.code == "LOW_ON_SPACE"


def test_finding_names_how_each_controller_fails_when_none_answers() -> None:
    found = only(quorum(2, 0, {1: R, 2: S}), "NOBODY_ANSWERS")
    assert f"{endpoint(1)} refuses connections; {endpoint(2)} does not answer" in found.cause


def test_damaged_controllers_are_not_taken_for_other_programs() -> None:
    damaged = Reach.DAMAGED
    found = only(quorum(3, 0, {1: damaged, 2: damaged, 3: R}), "NOBODY_ANSWERS")
    assert f"{endpoint(1)} is repairing its log (the reason); " in found.cause
    assert "Corrupted log" in found.remedy
    found = only(quorum(3, 0, {1: damaged, 2: damaged}), "NO_QUORUM")
    assert "nodes 1 and 2 are repairing their logs (the reason)" in found.cause
    assert found.remedy.startswith("Damaged nodes repair themselves")
    found = only(quorum(3, 0, {1: damaged, 2: R}), "NO_QUORUM")
    assert found.remedy.startswith("Start node 2. Damaged nodes repair themselves")


@pytest.mark.parametrize(
    ("size", "gone", "left"),
    [
        (3, {3: R}, "2 of 3 voters are left: one more failure stops all writes."),
        (5, {3: R}, "4 of 5 voters are left: 1 more may fail."),
        (5, {3: R, 4: S}, "3 of 5 voters are left: one more failure stops all writes."),
    ],
)
def test_dead_voter_is_reported_with_the_number_of_further_failures_allowed(
    size: int, gone: dict[int, Reach], left: str
) -> None:
    found = only(quorum(size, 1, gone, voters=dict.fromkeys(gone, AWAY)))
    assert (found.code, found.severity, found.consequence) == ("VOTER_DOWN", DEGRADED, left)


@pytest.mark.parametrize(
    ("gone", "words", "command"),
    [
        ({3: R}, ["Start the processes that are not running."], "raftlog controller run -c FILE"),
        ({3: S}, ["kill -9 loses nothing"], "raftlog controller run -c FILE"),
        ({3: Reach.DAMAGED}, ["Damaged nodes repair themselves"], "raftlog doctor --watch"),
        ({3: Reach.OTHER}, ["another program answers"], "ss -ltnp 'sport = :9093'"),
        ({3: R, 4: Reach.OTHER}, ["not running", "another program"], "raftlog controller run"),
    ],
)
def test_advice_about_a_voter_depends_on_its_failure(
    gone: dict[int, Reach], words: list[str], command: str
) -> None:
    """[A web server had the node's port: starting the node again could not help.]"""
    found = only(quorum(5, 1, gone, voters=dict.fromkeys(gone, AWAY)))
    assert all(word in found.remedy for word in words), found.remedy
    assert found.command.startswith(command)


def test_voter_heard_by_the_leader_is_slow_and_not_down() -> None:
    assert verdict([only(quorum(3, 1, {3: S}), "NODE_SLOW", NOTICE)]) is Verdict.HEALTHY


def test_refusing_voter_is_down_however_recently_the_leader_heard_it() -> None:
    """[HEALTHY for 2 s after a kill -9, and "has not answered within 1000 ms" for a port that
    refused.]
    """
    lost = {"unreachable_ms": 300, "unreachable_reason": "Connection refused"}
    assert codes(quorum(3, 1, {3: R}, voters={3: lost})) == ["VOTER_DOWN"]
    # As the leader reaches it, it listens, elsewhere.
    elsewhere = only(quorum(3, 1, {3: R}), "NODE_SLOW")
    assert elsewhere.cause.startswith("Node 3 refuses connections, but fetches from the leader")


def test_unresolvable_host_name_is_distinguished_from_a_hanging_process() -> None:
    """["a process that hangs has to be ended first"]"""
    found = only(quorum(3, 0, {1: Reach.UNRESOLVED, 3: Reach.UNRESOLVED}))
    assert f"nodes 1 and 3 do not resolve ({endpoint(1)} and {endpoint(3)})" in found.cause
    assert "hangs" not in found.remedy
    down = only(quorum(3, 1, {3: Reach.UNRESOLVED}, voters={3: AWAY}), "VOTER_DOWN")
    assert "check the name servers" in down.remedy


def test_lagging_voter_is_reported_with_its_lag() -> None:
    lag = {"log_end_offset": 40, "last_caught_up_age_ms": 11_000}
    found = only(quorum(3, voters={2: lag}), "VOTER_BEHIND")
    assert "lacks 60 records" in found.cause
    assert "11 s ago" in found.cause
    told = only(quorum(3, voters={2: {**lag, "last_caught_up_age_ms": -1}})).cause
    assert told.endswith("it has never had all records since node 1 became leader.")
    assert diagnose(quorum(3, voters={2: {**lag, "last_caught_up_age_ms": 9_000}})) == []


@pytest.mark.parametrize(
    ("field", "size", "code"),
    [("log_hash", 32, "LOG_DIVERGED"), ("state_hash", 16, "STATE_DIVERGED")],
)
def test_different_bytes_or_states_at_the_same_offset_are_reported(
    field: str, size: int, code: str
) -> None:
    def hashes(third: bytes, epoch: int = 7) -> Survey:
        same = {"image_offset": 99, "image_epoch": 7, "state_hash": b"a" * 16, field: b"a" * size}
        other = {**same, "image_epoch": epoch, field: third}
        return quorum(3, says={1: same, 2: same, 3: other})

    assert "nodes 1 and 2 against node 3" in only(hashes(b"b" * size), code, DOWN).cause
    assert diagnose(hashes(b"a" * size)) == []
    assert diagnose(hashes(b"")) == [], "a build that does not tell"
    assert codes(hashes(b"b" * size, epoch=8)) == ["LOG_DIVERGED"] * (field == "log_hash")


def test_contradicted_log_is_reported() -> None:
    said = "controller 1 has another log from offset 21 on"
    node = NodeAnswer(cluster_id=CLUSTER, node_id=4, role="broker", log_contradiction=said)
    found = only(replace(quorum(3), broker_reports=(NodeReport("broker 4", node),)))
    assert (found.code, found.severity) == ("LOG_CONTRADICTED", DOWN)
    assert found.cause == f"Broker 4 reports: {said}."


def test_quorum_finding_reports_two_clusters() -> None:
    seen = quorum(3)
    other = described(9, "leader", [voter(9)], 9, cluster_id="other")
    both = replace(
        seen, nodes=(*seen.nodes, AskedNode("127.0.0.1:1", Reach.ANSWERS, other, node_id=9))
    )
    assert codes(both)[0] == "CLUSTER_ID_DIFFERS"
    assert CLUSTER in diagnose(both)[0].cause


def test_unused_address_is_a_notice() -> None:
    seen = quorum(3)
    wrong = AskedNode("127.0.0.1:9", Reach.OTHER, None, "UNIMPLEMENTED: Method not found!")
    found = only(replace(seen, nodes=(*seen.nodes, wrong)), "ADDRESS_WRONG", NOTICE)
    assert "Method not found" in found.cause


@pytest.mark.parametrize("size", [1, 2])
def test_quorum_without_redundancy_is_reported(size: int) -> None:
    assert only(quorum(size)).code == "NO_REDUNDANCY"


def test_unused_feature_level_that_all_support_is_reported() -> None:
    feature = {"name": "metadata.version", "finalized_level": 5, "min_supported_version": 1}

    def features(most: int) -> dict[str, object]:
        return {"features": [{**feature, "max_supported_version": most}]}

    def levels(highest: int) -> Survey:
        return quorum(3, says={1: features(7), 2: features(7), 3: features(highest)})

    found = only(levels(7), "FEATURE_LEVEL_LOW", NOTICE)
    assert found.command == "raftlog cluster features upgrade metadata.version=7"
    lowest = diagnose(levels(6))
    assert [one.code for one in lowest] == ["FEATURE_LEVEL_LOW", "MIXED_BUILDS"]
    assert lowest[0].command.endswith("=6")
    assert codes(levels(5)) == ["MIXED_BUILDS"]
    silent = quorum(3, gone={3: S}, says={1: features(7), 2: features(7)})
    assert "FEATURE_LEVEL_LOW" not in codes(silent), "what the silent voter knows is not known"


def test_worst_finding_comes_first() -> None:
    seen = quorum(2, brokers=brokers(partitions={"total": 4, "offline": 1}))
    found = diagnose(seen)
    assert [one.code for one in found] == ["PARTITIONS_OFFLINE", "NO_REDUNDANCY", "NO_BROKERS"]
    assert verdict(found) is Verdict.DOWN
    assert seen.at_ms == AT_MS


def test_every_code_is_in_the_runbook() -> None:
    sources = "".join(
        path.read_text() for path in Path(inspect.getfile(diagnosis)).parent.glob("*_findings.py")
    )
    codes_ = set(re.findall(r'(?:Finding|notice|degraded|down|: )\(\s*"([A-Z_]+)"', sources))
    assert {"CERTIFICATE_EXPIRED", "TLS_DIFFERS"} <= codes_
    assert len(codes_) > 15
    runbook = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert [one for one in sorted(codes_) if f"`{one}`" not in runbook] == []


VOTERS = {one: {"replica_directory_id": f"dir-{one}"} for one in (1, 2, 3)}


def replaced(
    leader: int = 1, gone: dict[int, Reach] | None = None, role: str = "observer", **voter: Any
) -> Survey:
    """Node 3 came back with an empty disk: the voter with the old disk fetches no more."""
    return quorum(
        3,
        leader,
        gone,
        voters=VOTERS | {3: {**VOTERS[3], "last_caught_up_age_ms": 76_000, **voter}},
        says={
            1: {"directory_id": "dir-1"},
            2: {"directory_id": "dir-2"},
            3: {"directory_id": "dir-new", "role": role, "votes_needed": 1},
        },
    )


def test_replaced_disk_is_reported_instead_of_a_slow_voter() -> None:
    found = only(replaced(), "VOTER_REPLACED", DEGRADED)
    assert found.cause == (
        "Node 3 runs with a different data directory than that of the voter (dir-3)"
        ", so it has no vote."
    )
    assert found.consequence == (
        "It does not count for a majority. 2 of 3 voters are left: one more failure stops all writes."
    )
    assert found.command == "raftlog quorum remove-voter --voter-id 3"


@pytest.mark.parametrize("role", ["observer", "prospective"])
def test_replaced_voter_is_not_counted(role: str) -> None:
    """[Formatted anew with the configured voters, it counted: "2 of 3 answer, which is enough".]"""
    lost, *more = diagnose(replaced(leader=0, gone={2: Reach.REFUSES}, role=role))
    assert lost.code == "NO_QUORUM"
    assert lost.cause.startswith("No leader: 1 of 3 voters answers, but 2 are needed")
    assert lost.remedy.startswith("Start node 2.")
    assert [one.code for one in more] == ["VOTER_REPLACED"]
    assert (
        more[0].consequence
        == "It does not count for a majority. 1 of 3 voters is left, but 2 are needed."
    )


def test_no_start_is_advised_when_all_missing_voters_run_with_other_disks() -> None:
    says = {
        1: {"directory_id": "dir-1"},
        2: {"directory_id": "dir-new-2", "role": "observer"},
        3: {"directory_id": "dir-new-3", "role": "observer"},
    }
    lost, *more = diagnose(quorum(3, 0, voters=VOTERS, says=says))
    assert lost.code == "NO_QUORUM"
    assert lost.remedy.startswith("Restart the nodes with the directories that have a vote")
    assert [one.code for one in more] == ["VOTER_REPLACED", "VOTER_REPLACED"]


def test_voter_that_does_not_know_its_role_yet_has_its_own_directory() -> None:
    """[It was added a moment ago, and has not read that far.]"""
    says = {3: {"directory_id": "dir-3", "role": "observer"}}
    assert codes(quorum(3, voters=VOTERS, says=says)) == []
    older = {3: {"role": "observer"}}
    assert codes(quorum(3, voters=VOTERS, says=older)) == [], "a build that does not say"


def twice(age_ms: int = 30, replica_id: int = 3, connected_from: str = "") -> Survey:
    other = Replica(
        replica_id=replica_id,
        replica_directory_id="dir-twin",
        last_fetch_age_ms=age_ms,
        connected_from=connected_from,
    )
    return quorum(3, voters=VOTERS, says={1: {"observers": [other]}})


def test_quorum_finding_names_controllers_with_one_id() -> None:
    found = only(twice(), "NODE_ID_TWICE", DEGRADED)
    assert found.cause == (
        "Two nodes run as node 3: the voter at 127.0.0.1:9093, and one with data directory"
        " dir-twin."
    )
    assert (
        "and one connected from 10.0.0.7:53422, with data directory dir-twin."
        in only(twice(connected_from="10.0.0.7:53422")).cause
    )


def test_silent_observer_and_observer_with_another_id_are_not_duplicates() -> None:
    assert (codes(twice(age_ms=30_000)), codes(twice(replica_id=4))) == ([], [])


def beside(node_id: int = 4, **fields: Any) -> Survey:
    """A sound quorum of three in epoch 7, and one more node that believes it is a voter."""
    sound = quorum(3, voters=VOTERS, says={one: {"directory_id": f"dir-{one}"} for one in VOTERS})
    states = [voter(one, replica_directory_id=f"dir-{one}") for one in (1, 3, 4)]
    given: dict[str, Any] = {"directory_id": f"dir-{node_id}", "leader_epoch": 63, **fields}
    more = described(node_id, "prospective", states, **given)
    found = AskedNode(endpoint(node_id), Reach.ANSWERS, more, node_id=node_id)
    nodes = [node for node in sound.nodes if node.node_id != node_id]
    return Survey((*nodes, found), sound.brokers, sound.brokers_failure, sound.at_ms)


def test_node_removed_in_a_higher_epoch_than_the_others_is_reported() -> None:
    found = only(beside(), "REMOVED_AHEAD", DEGRADED)
    assert found.cause == "Node 4 is not a voter, and is in epoch 63, but the leader in epoch 7."
    assert found.command == "raftlog storage format -c FILE --no-initial-controllers"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"leader_epoch": 7}, id="it is not ahead, and hears of the leader yet"),
        pytest.param({"leader_id": 2}, id="it follows a leader that was not asked"),
        pytest.param({"node_id": 3}, id="a voter: the others take its epoch"),
        pytest.param({"directory_id": ""}, id="a build that does not say which directory"),
    ],
)
def test_node_removed_in_the_same_or_a_lower_epoch_is_not_reported(fields: dict[str, Any]) -> None:
    assert "REMOVED_AHEAD" not in codes(beside(**fields))


@pytest.mark.parametrize(
    ("says", "line"),
    [
        ({}, "no leader"),
        (
            {2: {"role": "follower", "leader_id": 1}},
            "followers report node 1 as leader, which does not answer",
        ),
    ],
    ids=["nobody", "unreachable"],
)
def test_quorum_describe_shows_a_quorum_without_a_leader(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    says: dict[int, Any],
    line: str,
) -> None:
    async def survey(*_: object, **__: object) -> Survey:
        return quorum(3, leader=0, gone={1: Reach.REFUSES, 3: Reach.REFUSES}, says=says)

    monkeypatch.setattr(Collector, "survey", survey)
    with pytest.raises(SystemExit) as ended:
        main(["quorum", "describe", "--bootstrap-controller", "127.0.0.1:1"])
    assert ended.value.code == Exit.FOUND
    assert line in capsys.readouterr().out
