"""Incidents, reconstructed from journals and the log."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from raftlog.identity import ANONYMOUS_PRINCIPAL
from raftlog.metadata.changes import Changed
from raftlog.node.observability.journal import Kind, NodeEvent, checked_details
from raftlog.ops.evidence import LogPeriod, NodeEvents, Timeline
from raftlog.ops.story import Story, explained, tell
from raftlog.ops.story_lines import Line, Weight, took
from raftlog.text import to_json

T0 = 1_700_000_000_000
END = T0 + 3_600_000


def node(name: str, *events: tuple[int, Kind, dict[str, Any]], failure: str = "") -> NodeEvents:
    """Events by milliseconds after T0, with validated details."""
    role, _, number = name.rpartition("-")
    told = tuple(
        NodeEvent(seq, T0 + at, int(number), role, kind.value, checked_details(kind, details))
        for seq, (at, kind, details) in enumerate(events, 1)
    )
    return NodeEvents(name, role, int(number), told, failure)


def change(
    at: int, kind: str, key: str, before: Any, after: Any, *, by: str = "", type_name: str = "X"
) -> Changed:
    """Return the change that one record made."""
    old, new = (
        None if one is None else msgspec.json.encode(one).decode() for one in (before, after)
    )
    return Changed(at, 1, T0 + at, by, 0, 0, type_name, kind, key, old, new)


def leader(at: int, epoch: int, leader_id: int, before: int) -> Changed:
    def value(of_epoch: int, of_id: int) -> dict[str, Any]:
        return {"epoch": of_epoch, "leader_id": of_id, "voters": [1, 2, 3]}

    return change(at, "leader", "", value(epoch - 1, before), value(epoch, leader_id))


def broker(*, fenced: bool, reason: str, cause: int = 0, epoch: int = 9) -> dict[str, Any]:
    return {"id": 5, "epoch": epoch, "fenced": fenced, "reason": reason, "cause": cause}


def fence(at: int, reason: str, cause: int = 0) -> Changed:
    old = broker(fenced=False, reason="caught up")
    return change(at, "broker", "5", old, broker(fenced=True, reason=reason, cause=cause))


def unfence(at: int) -> Changed:
    old = broker(fenced=True, reason="session timed out")
    return change(at, "broker", "5", old, broker(fenced=False, reason="caught up"))


def story(*nodes: NodeEvents, log: LogPeriod | None = None) -> Story:
    return tell(Timeline(T0, END, nodes, log or LogPeriod()))


def the(told: Story, code: str) -> Line:
    (found,) = [line for line in told.lines if line.code == code]
    return found


def won(at: int, epoch: int, reason: str) -> tuple[int, Kind, dict[str, Any]]:
    return at, Kind.BECAME_LEADER, {"epoch": epoch, "reason": reason, "start_offset": 7}


def active(at: int, epoch: int) -> tuple[int, Kind, dict[str, Any]]:
    return at, Kind.ACTIVE_CONTROLLER, {"epoch": epoch, "offset": 8}


def no_leader(at: int) -> tuple[int, Kind, dict[str, Any]]:
    return at, Kind.NO_LEADER, {"epoch": 1, "reason": "why"}


def test_story_01_killed_leader_is_told() -> None:
    told = story(
        node("controller-1", (90_000, Kind.STARTED, {"after": "crash"})),
        node("controller-2", won(60_050, 4, "leader gone"), active(60_070, 4)),
        log=LogPeriod((leader(60_050, 4, 2, 1),), (T0 + 59_000, T0 + 59_900)),
    )
    line = the(told, "ELECTION")
    assert line.text == (
        "node 2 leads epoch 4, after at most 170 ms without a leader: the process of node 1 had"
        " exited: its port refused connections"
    )
    assert line.weight is Weight.TROUBLE
    assert the(told, "CRASHED").text.startswith("controller-1 started again: its process had been")
    assert told.summary == ("1 leader change", "1 crash (controller-1)"), "a bound is not a length"


def test_story_02_hanging_leader_is_replaced_after_the_fetch_timeout() -> None:
    told = story(
        node("controller-1", (63_000, Kind.LOOP_STALL, {"gap_ms": 5_000}),
             (63_010, Kind.LOST_LEADERSHIP, {"epoch": 3, "reason": "a higher epoch has begun",
                                              "handed_over": False})),
        node("controller-2",
             (60_000, Kind.CAMPAIGN_BEGAN, {"epoch": 3, "reason": "fetch timeout",
                                            "last_leader_id": 1}),
             won(60_100, 4, "fetch timeout"), active(60_120, 4)),
        log=LogPeriod((leader(60_100, 4, 2, 1),)),
    )  # fmt: skip
    line = the(told, "ELECTION")
    # It led no more when it stopped running, whatever it says when it goes on.
    assert "after 2.12 s without a leader: node 1 had not answered a fetch" in line.text
    stall = the(told, "LOOP_STALL")
    assert (stall.at_ms, stall.lasted_ms) == (T0 + 58_000, 5_000)
    assert told.lines[0] is stall, "the cause comes first"


def test_story_02a_won_campaign_is_not_taken_for_the_next_one() -> None:
    """[Node 1 had sent no vote requests before, as its predecessor had resigned: its campaign bore
    epoch 3, and was told as the beginning of the election of epoch 4, 21 s later.]
    """
    told = story(
        node("controller-1",
             (60_000, Kind.CAMPAIGN_BEGAN, {"epoch": 3, "reason": "leader resigned",
                                            "last_leader_id": -1}),
             won(60_001, 3, "leader resigned"), active(60_010, 3),
             (95_000, Kind.LOOP_STALL, {"gap_ms": 14_600}),
             (95_001, Kind.LOST_LEADERSHIP, {"epoch": 3, "reason": "no majority has fetched",
                                              "handed_over": False})),
        node("controller-2", won(81_200, 4, "fetch timeout"), active(81_220, 4)),
        log=LogPeriod((leader(60_001, 3, 1, 3), leader(81_200, 4, 2, 1))),
    )  # fmt: skip
    texts = [line.text for line in told.lines if line.code == "ELECTION"]
    assert texts[0].startswith("node 1 leads epoch 3, after 10 ms without a leader")
    assert texts[1].startswith("node 2 leads epoch 4, after 820 ms without a leader: node 1 had")


def test_story_03_transfer_is_a_change_without_suspects() -> None:
    told = story(
        node("controller-1",
             (60_000, Kind.LOST_LEADERSHIP, {"epoch": 3, "reason": "asked to transfer to node 2",
                                              "handed_over": True})),
        node("controller-2", won(60_020, 4, "leader resigned"), active(60_030, 4)),
        log=LogPeriod((leader(60_020, 4, 2, 1),)),
    )  # fmt: skip
    line = the(told, "ELECTION")
    assert line.weight is Weight.CHANGE
    assert line.text.endswith(
        "after 30 ms without a leader: node 1 resigned (asked to transfer to node 2)"
    )
    assert told.suspects == ()


def test_story_03a_earlier_leader_lost_only_its_last_leadership() -> None:
    """[Node 2 was restarted, led again and resigned for its full disk: the 11 s in between were
    reported to be without a leader.]
    """
    told = story(
        node("controller-2",
             (60_000, Kind.LOST_LEADERSHIP, {"epoch": 6, "reason": "the node is shutting down",
                                              "handed_over": True}),
             (60_010, Kind.STOPPED, {"reason": "asked to stop", "clean": True}),
             won(62_650, 8, "leader resigned"), active(62_660, 8),
             (70_878, Kind.LOST_LEADERSHIP, {"epoch": 8, "reason": "the disk is full",
                                              "handed_over": True})),
        node("controller-1",
             won(60_070, 7, "leader resigned"), active(60_080, 7),
             (62_620, Kind.LOST_LEADERSHIP, {"epoch": 7, "reason": "requested by an operator",
                                              "handed_over": True}),
             won(70_890, 9, "leader resigned"), active(70_900, 9)),
        log=LogPeriod((leader(60_070, 7, 1, 2), leader(62_650, 8, 2, 1), leader(70_890, 9, 1, 2))),
    )  # fmt: skip
    lines = [line for line in told.lines if line.code == "ELECTION"]
    assert [(line.at_ms - T0, line.text) for line in lines] == [
        (60_000, "node 1 leads epoch 7, after 80 ms without a leader: node 2 resigned (the node is"
                 " shutting down)"),
        (62_620, "node 2 leads epoch 8, after 40 ms without a leader: node 1 resigned (requested by"
                 " an operator)"),
        (70_878, "node 1 leads epoch 9, after 22 ms without a leader: node 2 resigned (the disk is"
                 " full)"),
    ]  # fmt: skip
    # A crash leaves no trace of the second leadership: the first one's end is none of it.
    told = story(
        node("controller-2", (60_010, Kind.STOPPED, {"reason": "asked to stop", "clean": True}),
             (60_000, Kind.LOST_LEADERSHIP, {"epoch": 6, "reason": "the node is shutting down",
                                              "handed_over": True})),
        node("controller-1", won(70_890, 9, "leader gone"), active(70_900, 9)),
        log=LogPeriod((leader(62_650, 8, 2, 1), leader(70_890, 9, 1, 2)), (T0 + 70_800,)),
    )  # fmt: skip
    assert "epoch 9, after at most 100 ms without a leader" in told.lines[-1].text


def test_story_03b_transfer_needs_either_journal() -> None:
    given = node(
        "controller-1",
        (60_000, Kind.LOST_LEADERSHIP,
         {"epoch": 3, "reason": "asked to transfer to node 2", "handed_over": True}),
    )  # fmt: skip
    taken = node("controller-2", won(60_020, 4, "leader resigned"), active(60_030, 4))
    for one in (given, taken):
        line = the(story(one, log=LogPeriod((leader(60_020, 4, 2, 1),))), "ELECTION")
        assert line.weight is Weight.CHANGE, line
    lost = node(
        "controller-1",
        (60_000, Kind.LOST_LEADERSHIP,
         {"epoch": 3, "reason": "the disk hangs", "handed_over": False}),
    )  # fmt: skip
    told = story(lost, log=LogPeriod((leader(60_020, 4, 2, 1),)))
    assert the(told, "ELECTION").weight is Weight.TROUBLE


def test_story_04_lost_and_regained_quorum_is_told() -> None:
    why = "no leader is known in epoch 3: 1 of 3 voters can be reached, 2 are needed"
    told = story(
        node("controller-2", (61_000, Kind.NO_LEADER, {"epoch": 3, "reason": why}),
             (90_000, Kind.LEADER_CHANGED, {"epoch": 4, "leader_id": 3})),
        node("controller-1", failure="Connection refused"),
        log=LogPeriod(failure="no active controller answered in time"),
    )  # fmt: skip
    assert the(told, "NO_LEADER").text == f"controller-2 knows no leader for 29 s: {why}"
    assert told.missing == (
        "controller-1: Connection refused",
        "the log: no active controller answered in time",
    )


LOST, FOUND = Kind.CONTROLLER_LOST, Kind.CONTROLLER_FOUND


def test_story_04a_outage_is_told_by_brokers_when_all_controllers_are_dead() -> None:
    """[Their journals were read, and an hour without a controller looked like no trouble.]"""
    told = story(
        node("broker-4", (60_000, LOST, {"controller_id": 1}),
             (72_000, Kind.FENCED, {"reason": "no controller answered for 12.1 s"})),
        node("broker-5", (60_100, LOST, {"controller_id": 1})),
        node("controller-1", failure="Connection refused"),
    )  # fmt: skip
    line = the(told, "NO_CONTROLLER")
    assert line.text == "brokers 4 and 5 reached no controller, and still do not"
    assert (line.at_ms, line.until_ms) == (T0 + 60_000, -1)
    assert line.because == ("broker 4 fenced itself",)
    assert told.summary == ("1 period in which brokers reached no controller",)


def test_story_04b_outage_ends_when_the_last_broker_has_found_a_controller() -> None:
    told = story(
        node("broker-4", (60_000, LOST, {"controller_id": 1}),
             (80_000, FOUND, {"controller_id": 2, "epoch": 4})),
        node("broker-5", (60_100, LOST, {"controller_id": 1}),
             (81_000, FOUND, {"controller_id": 2, "epoch": 4}),
             (90_000, LOST, {"controller_id": 2}),
             (90_900, FOUND, {"controller_id": 2, "epoch": 4})),
    )  # fmt: skip
    assert the(told, "NO_CONTROLLER").text == (
        "brokers 4 and 5 reached no controller for up to 20.9 s"
    )


def test_story_04d_moment_after_the_start_is_not_the_outage() -> None:
    """[a minute without controllers was reported as the second in which they found each other]"""
    told = story(
        node("controller-2", (119_000, Kind.NO_LEADER, {"epoch": 3, "reason": "why"}),
             (120_000, Kind.LEADER_CHANGED, {"epoch": 4, "leader_id": 3})),
        node("broker-4", (60_000, LOST, {"controller_id": 1}),
             (120_500, FOUND, {"controller_id": 3, "epoch": 4})),
    )  # fmt: skip
    assert the(told, "NO_CONTROLLER").text == "broker 4 reached no controller for 1 min"
    assert the(told, "NO_LEADER").lasted_ms == 1_000


def test_story_04c_outage_is_not_told_twice_when_controllers_report_it() -> None:
    told = story(
        node("controller-2", (61_000, Kind.NO_LEADER, {"epoch": 3, "reason": "why"}),
             (90_000, Kind.LEADER_CHANGED, {"epoch": 4, "leader_id": 3})),
        node("broker-4", (60_000, LOST, {"controller_id": 1}),
             (90_500, FOUND, {"controller_id": 3, "epoch": 4})),
        node("broker-5", (60_000, LOST, {"controller_id": 1}),
             (60_100, Kind.STOPPED, {"reason": "asked to stop", "clean": True})),
    )  # fmt: skip
    assert [line.code for line in told.lines if line.weight is Weight.TROUBLE] == ["NO_LEADER"]


def test_outage_is_told_per_broker_when_one_of_them_was_alone_before() -> None:
    """[0.6 s of one broker and, four minutes later, 22 s of three were reported as one outage of
    three brokers that lasted from the first to the last.]
    """
    found = {"controller_id": 1, "epoch": 3}
    told = story(
        node("broker-4", (60_000, LOST, {"controller_id": 1}), (60_600, FOUND, found),
             (324_000, LOST, {"controller_id": 1}), (346_000, FOUND, found)),
        node("broker-5", (324_100, LOST, {"controller_id": 1}), (346_100, FOUND, found)),
        node("broker-6", (324_200, LOST, {"controller_id": 1}), (346_200, FOUND, found)),
    )  # fmt: skip
    line = the(told, "NO_CONTROLLER")
    assert line.text == "brokers 4, 5 and 6 reached no controller for 22 s"
    assert (line.at_ms, line.until_ms) == (T0 + 324_000, T0 + 346_200)


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        (Kind.REGISTERED, {"broker_epoch": 9}),
        (Kind.UNFENCED, {"broker_epoch": 9}),
        (Kind.LEASE_GRANTED, {}),
        (Kind.STARTED, {"after": "crash"}),
    ],
)
def test_isolation_of_a_broker_ends_with_a_controller(kind: Kind, details: dict[str, Any]) -> None:
    told = story(
        node("broker-4", (60_000, LOST, {"controller_id": 1}), (63_000, kind, details)),
        node("broker-5", (60_000, FOUND, {"controller_id": 1, "epoch": 3})),
    )
    assert the(told, "NO_CONTROLLER").text == "broker 4 reached no controller for 3 s"


def test_outage_does_not_end_when_another_node_hears_the_leader() -> None:
    told = story(
        node("controller-1", (62_000, Kind.LEADER_CHANGED, {"epoch": 4, "leader_id": 2})),
        node("controller-3", (61_000, Kind.NO_LEADER, {"epoch": 3, "reason": "cut off"}),
             (91_000, Kind.LEADER_CHANGED, {"epoch": 4, "leader_id": 2})),
    )  # fmt: skip
    assert the(told, "NO_LEADER").text == "controller-3 knows no leader for 30 s: cut off"


def test_states_of_a_process_end_with_it() -> None:
    """[a killed leader was reported to delay visibility forever]"""
    told = story(
        node("controller-1",
             (60_000, Kind.PEER_LOST, {"peer_id": 3, "reason": "cut off"}),
             (61_000, Kind.LAO_STALLED, {"offset": 40, "brokers": "5", "reason": ""}),
             (70_000, Kind.STARTED, {"after": "crash"})),
    )  # fmt: skip
    assert the(told, "LAO_STALL").until_ms == T0 + 70_000
    alone = story(
        node("broker-4", (60_000, LOST, {"controller_id": 1}),
             (80_000, FOUND, {"controller_id": 1, "epoch": 3})),
        node("broker-5", (65_000, Kind.STARTED, {"after": "crash"})),
    )  # fmt: skip
    assert the(alone, "NO_CONTROLLER").lasted_ms == 20_000, "not with another's"
    assert "for 11 s" in the(told, "UNREACHABLE").text


def test_span_has_no_length_when_the_journal_dropped_events() -> None:
    whole = node(
        "broker-4", (60_000, LOST, {"controller_id": 1}), (90_000, LOST, {"controller_id": 1}),
        (93_000, FOUND, {"controller_id": 1, "epoch": 3}),
    )  # fmt: skip
    first, second, third = whole.events
    told = story(replace(whole, events=(first, replace(second, left_out=7), third)))
    assert the(told, "NO_CONTROLLER").text == "broker 4 reached no controller for 3 s"
    assert told.missing == ("broker-4: 7 events lost, which arrived too fast for its journal",)


def test_story_05_paused_broker_delays_lao_and_is_fenced() -> None:
    told = story(
        node("controller-1",
             (61_000, Kind.LAO_STALLED, {"offset": 40, "brokers": "5", "reason": ""}),
             (69_000, Kind.LAO_RESUMED, {"offset": 90, "stood_ms": 9_000})),
        node("broker-5", (72_000, Kind.LOOP_STALL, {"gap_ms": 12_000}),
             (72_100, Kind.CONTROLLER_LOST, {"controller_id": 1})),
        log=LogPeriod((fence(69_000, "session timed out", 4), unfence(73_000))),
    )  # fmt: skip
    fenced = the(told, "FENCED")
    assert fenced.text == "broker 5 was fenced: session timed out; unfenced after 4 s"
    assert fenced.because == ("its process was paused for 12 s", "it reached no controller")
    stall = the(told, "LAO_STALL")
    assert stall.text == (
        "the lowest acknowledged offset was stuck at 40 for 9 s: held back by broker 5"
    )
    assert [line.code for line in told.lines] == ["LAO_STALL", "LOOP_STALL", "FENCED"]


def test_story_06_orderly_shutdown_of_a_broker_is_told() -> None:
    told = story(
        node("broker-5", (60_500, Kind.STOPPED, {"reason": "asked to stop", "clean": True})),
        log=LogPeriod((fence(60_400, "controlled shutdown", 9),)),
    )
    assert the(told, "FENCED").weight is Weight.CHANGE
    assert the(told, "STOPPED").weight is Weight.CHANGE
    assert told.summary == ()


def test_story_07_slow_hanging_and_full_disk_are_told() -> None:
    told = story(
        node("controller-1",
             *((60_000 + 1_000 * n, Kind.SLOW_FLUSH, {"above_ms": 500, "count": 2}) for n in range(4)),
             (70_000, Kind.DISK_STALL, {"busy_ms": 1_100}),
             (80_000, Kind.SPACE_LOW, {"free_bytes": 5 << 20}),
             (81_000, Kind.WRITES_REFUSED, {"reason": "too few have space"}),
             (95_000, Kind.WRITES_RESUMED, {})),
    )  # fmt: skip
    slow = the(told, "SLOW_FLUSH")
    assert slow.text == "8 syncs of the log of controller-1 took more than 500 ms"
    assert slow.lasted_ms == 3_000
    assert "5 MiB were free" in the(told, "SPACE_LOW").text
    assert told.summary[:2] == (
        "1 hung disk (controller-1), 1.1 s",
        "1 slow disk (controller-1), 3 s",
    )
    assert the(told, "WRITES_RESUMED").weight is Weight.NOTE


def test_overruled_clock_is_told_with_its_error() -> None:
    told = story(
        node("controller-1", (60_000, Kind.CLOCK_OVERRULED, {"ahead_ms": 3_600_000}),
             (90_000, Kind.CLOCK_AGREES, {})),
    )  # fmt: skip
    assert the(told, "CLOCK_WRONG").text == (
        "the clock of controller-1 was 1 h ahead, and was ignored"
    )
    assert told.summary == ("1 wrong clock (controller-1)",)


def test_story_08_cut_link_is_told_though_no_process_stopped() -> None:
    lost = {"peer_id": 3, "reason": "it is connected but does not answer"}
    told = story(
        node("controller-1", (61_000, Kind.PEER_LOST, lost),
             (80_000, Kind.PEER_REGAINED, {"peer_id": 3, "after_ms": 20_000})),
        node("controller-2", (61_100, Kind.PEER_LOST, lost),
             (61_200, Kind.PEER_LOST, lost | {"peer_id": -4}),
             (80_100, Kind.PEER_REGAINED, {"peer_id": 3, "after_ms": 20_000})),
        node("controller-3"),
    )  # fmt: skip
    assert the(told, "UNREACHABLE").text == (
        "controller-3 did not answer nodes 1, 2 for 20 s: it is connected but does not answer"
    )
    stopped = story(
        node("controller-1", (61_000, Kind.PEER_LOST, lost)),
        node("controller-3", (60_500, Kind.STOPPED, {"reason": "asked to stop", "clean": True})),
    )
    assert [line.code for line in stopped.lines] == ["STOPPED"], "it says itself why"


def test_story_09_earlier_config_change_is_told() -> None:
    told = story(
        node("controller-1",
             (70_000, Kind.LAO_STALLED, {"offset": 40, "brokers": "5,6", "reason": ""})),
        log=LogPeriod((
            change(60_000, "config", "topic:orders:retention.ms", "1", "2", by="User:ann"),
            *(change(61_000 + n, "config", f"broker:{n}:k", None, "1", by="User:bob") for n in range(9)),
            change(65_000, "config", "topic:same:k", "1", "1", by="User:eve"),
            change(75_000, "config", "topic:late:k", None, "1", by="User:eve"),
        )),
    )  # fmt: skip
    assert [one.text for one in told.suspects] == [
        "User:ann changed config topic:orders:retention.ms: 1 → 2",
        "User:bob made 9 changes to config broker:0:k, broker:1:k, …",
    ]
    stall = the(told, "LAO_STALL")
    assert stall.until_ms == -1
    assert stall.text.endswith("and still does not advance: held back by brokers 5 and 6")


def test_story_10_stopped_writes_and_lost_partition_leaders_are_told() -> None:
    def moved(at: int, key: str, to: int) -> Changed:
        return change(at, "partition", key, {"leader": 5}, {"leader": to})

    steady = [T0 + 100 * n for n in range(100)]
    stop = steady[-1] - T0
    writes = (*steady, steady[-1] + 6_000, steady[-1] + 6_100)
    log = LogPeriod(
        (moved(10_000, "a-0", 6), moved(10_100, "a-1", -1), moved(10_200, "b-0", 6)), writes
    )
    told = story(node("controller-1", no_leader(stop + 1_000), won(stop + 5_900, 2, "x")), log=log)
    gap = the(told, "WRITE_GAP")
    assert gap.text == "no write was committed for 6 s; before that, one arrived every 100 ms"
    assert gap.because == ("for 4.9 s of it no node led",)
    assert the(told, "PARTITIONS_OFFLINE").text == (
        "1 partition lost its last available leader: a-1"
    )
    assert "WRITE_GAP" not in [one.code for one in story(log=log).lines], "clients were idle"
    short = node("controller-1", no_leader(stop + 1_000), won(stop + 1_500, 2, "x"))
    assert "WRITE_GAP" not in [one.code for one in story(short, log=log).lines]
    outages = [(stop + 6_000 * n + 1_000, stop + 6_000 * n + 5_900) for n in range(60)]
    events = (event for begin, end in outages for event in (no_leader(begin), won(end, 2, "x")))
    often = (*steady, *(steady[-1] + 6_000 * (1 + n // 2) + 100 * (n % 2) for n in range(120)))
    flapping = story(node("controller-1", *events), log=LogPeriod((), often))
    assert sum(one.code == "WRITE_GAP" for one in flapping.lines) == 60, "none is as usual"
    slow = story(log=LogPeriod(writes_ms=tuple(T0 + 5_000 * n for n in range(100))))
    assert slow.lines == (), "writes that are always rare leave no gap"


def test_story_11_elections_outside_the_isr_name_what_was_known() -> None:
    def moved(at: int, key: str, before: Any, after: Any, recovery: Any = None) -> Changed:
        one = change(at, "partition", key, before, after)
        return one._replace(recovery=msgspec.json.encode(recovery).decode() if recovery else "")

    gone = {"leader": -1, "isr": [], "elr": [1, 2], "last_known_elr": [1]}
    lost = gone | {"elr": []}
    unclean = {"leader": 3, "isr": [3], "elr": [], "leader_recovery_state": 1}
    knew = {
        "strategy": "balanced",
        "logs": [
            {"broker_id": 3, "last_epoch": 2, "log_end_offset": "70"},
            {"broker_id": 1, "last_epoch": -1},
        ],
        "silent": [2],
        "last_known_leader": 1,
        "loss": "the log of broker 1, the last leader, is empty",
    }
    told = story(
        log=LogPeriod((
            moved(10_000, "a-0", {"leader": 1, "isr": [1], "elr": [2]}, gone),
            moved(10_100, "a-1", {"leader": 1, "isr": [1], "elr": []}, lost),
            moved(10_200, "a-2", {"leader": 1, "isr": [1]}, gone | {"elr": [], "last_known_elr": []}),
            moved(20_000, "a-0", gone, {"leader": 2, "isr": [2], "elr": [1]}),
            moved(30_000, "a-1", lost, unclean, knew),
            moved(60_000, "a-2", lost, unclean),
        ))
    )  # fmt: skip
    offline, from_elr, recovered, unasked = told.lines
    assert offline.because == (
        "a-0 waits for one of brokers 1 and 2: each has all acknowledged records",
        "a-1 waits for broker 1, its last leader, or for reports from all replicas",
        "a-2 waits for reports from all replicas: the disk of its last leader is lost",
    )
    assert (from_elr.code, from_elr.weight) == ("ELECTED_FROM_ELR", Weight.NOTE)
    assert from_elr.text == "a-0: led by an eligible leader replica; no records are lost"
    assert recovered.code == unasked.code == "UNCLEAN_ELECTION"
    assert recovered.text == "a-1: broker 3 leads after an unclean election"
    assert recovered.because == (
        "unclean recovery (balanced), broker 3 reported 70 in leader epoch 2, broker 1 reported"
        " nothing, broker 2 did not report",
        "may have lost records: the log of broker 1, the last leader, is empty",
    )
    assert unasked.because == (
        "elected without reports from replicas: records that it lacks are lost",
    )
    assert any("2 unclean elections" in one for one in told.summary)


def test_many_unclean_elections_are_counted() -> None:
    lost = {"leader": -1, "isr": []}
    unclean = {"leader": 3, "isr": [3], "leader_recovery_state": 1}
    several = (change(10_000 + n, "partition", f"a-{n}", lost, unclean) for n in range(5))
    (line,) = story(log=LogPeriod(tuple(several))).lines
    assert line.text == "5 unclean elections: a-0, a-1, a-2, …"
    assert line.because == ("5 partitions may have lost records",)


@pytest.mark.parametrize(
    ("role", "event", "what"),
    [
        ("controller-1", (13_000, Kind.LOOP_STALL, {"gap_ms": 3_000}), "was paused"),
        ("controller-1", (13_000, Kind.DISK_STALL, {"busy_ms": 3_000}), "waited for its disk"),
        (
            "controller-2",
            (11_000, Kind.PEER_LOST, {"peer_id": 1, "reason": "cut"}),
            "did not answer the others",
        ),
        ("controller-2", (13_000, Kind.LOOP_STALL, {"gap_ms": 3_000}), ""),
        ("broker-1", (13_000, Kind.LOOP_STALL, {"gap_ms": 3_000}), ""),
        ("controller-1", (10_000, Kind.WRITES_REFUSED, {"reason": "full"}), "writes were refused"),
    ],
)
def test_gap_in_the_writes_names_what_prevented_commits(
    role: str, event: tuple[int, Kind, dict[str, Any]], what: str
) -> None:
    steady = [T0 + 100 * n for n in range(100)]
    log = LogPeriod((leader(0, 1, 1, -1),), (*steady, T0 + 13_000))
    found = [one for one in story(node(role, event), log=log).lines if one.code == "WRITE_GAP"]
    assert [what in one.because[0] for one in found] == ([True] if what else [])


def test_story_tells_elections_from_journals_without_the_log() -> None:
    told = story(
        node("controller-2", won(60_000, 4, "leader gone")),
        node("controller-3", won(90_000, 5, "fetch timeout")),
        log=LogPeriod(failure="cut off"),
    )
    texts = [line.text for line in told.lines if line.code == "ELECTION"]
    assert texts[0].startswith("node 2 leads epoch 4: the process of the leader had exited")
    assert "node 2 had not answered a fetch" in texts[1]


def test_leader_of_an_unknown_epoch_is_not_guessed() -> None:
    told = story(
        node("controller-1", won(60_000, 1, "leader gone"), won(90_000, 3, "leader gone")),
        log=LogPeriod(failure="cut off"),
    )
    texts = [line.text for line in told.lines if line.code == "ELECTION"]
    assert texts[1].startswith("node 1 leads epoch 3: the process of the leader had exited")


def test_unknown_lao_has_no_offset() -> None:
    told = story(
        node("controller-1",
             (61_000, Kind.LAO_STALLED, {"offset": -1, "brokers": "5", "reason": ""}),
             (69_000, Kind.LAO_RESUMED, {"offset": 90, "stood_ms": 9_000})),
    )  # fmt: skip
    assert the(told, "LAO_STALL").text == (
        "the lowest acknowledged offset was unknown for 9 s: held back by broker 5"
    )


def test_missing_journal_of_the_winner_is_reported() -> None:
    told = story(
        node("controller-2", failure="nothing came within 2000 ms"),
        log=LogPeriod((leader(60_000, 4, 2, 1),)),
    )
    assert the(told, "ELECTION").text.endswith(
        "cause unknown: there is no evidence from the winner"
    )


@pytest.mark.parametrize(
    ("principal", "client_id", "who"),
    [
        ("alice", 7, "alice"),
        (ANONYMOUS_PRINCIPAL, 9286, "client 9286 (no principal)"),
        (ANONYMOUS_PRINCIPAL, 0, "a client (no principal)"),
        ("", 0, "the controller"),
    ],
)
def test_change_names_its_author(principal: str, client_id: int, who: str) -> None:
    made = change(60_000, "topic", "orders", None, {"id": "7f"}, by=principal)
    told = story(log=LogPeriod((made._replace(client_id=client_id),)))
    assert the(told, "CHANGED").text.startswith(f"{who} changed topic orders: ")


def test_autopilot_replacement_is_told_with_its_reason() -> None:
    def voters(*ids: int, reason: str = "") -> dict[str, Any]:
        return {"voters": [{"id": one, "endpoint": f"c{one}:1"} for one in ids], "reason": reason}

    told = story(
        log=LogPeriod((
            change(60_000, "voters", "", voters(1, 2, 3), voters(1, 2, reason="node 3 is silent")),
            change(61_000, "voters", "", voters(1, 2), voters(1, 2, 4, reason="a seat is vacant")),
            change(99_000, "voters", "", voters(1, 2, 4), voters(1, 2), by="User:ann"),
        ))
    )  # fmt: skip
    assert [line.text for line in told.lines if line.code == "AUTOPILOT"] == [
        "autopilot removed node 3: node 3 is silent",
        "autopilot made node 4 a voter: a seat is vacant",
    ]
    assert the(told, "CHANGED").text == (
        "User:ann changed voters: removed 4@c4:1; now 1@c1:1, 2@c2:1"
    )


def test_json_has_null_for_an_open_end() -> None:
    lasting, open_, instant = (
        Line(T0, code, Weight.TROUBLE, "node 1", "it stood still", until_ms)
        for code, until_ms in (("A", T0 + 5), ("B", -1), ("C", 0))
    )
    told = Story(T0, END, (lasting, open_, instant), ("one stall",), (instant,), ())
    document = to_json(explained(told, None))
    assert [one["until_ms"] for one in document["lines"]] == [T0 + 5, None, None]
    assert document["suspects"] == [document["lines"][2]]
    assert document["lines"][2] == {
        "at_ms": T0, "until_ms": None, "code": "C", "weight": "trouble",
        "subject": "node 1", "text": "it stood still", "because": [],
    }  # fmt: skip
    assert (document["now"], document["summary"]) == (None, ["one stall"])
    assert to_json(explained(told, []))["now"] == {"verdict": "healthy", "findings": []}


def test_quiet_period_has_no_story() -> None:
    told = story(
        node("controller-1"), log=LogPeriod(writes_ms=tuple(T0 + n * 50 for n in range(99)))
    )
    assert (told.lines, told.summary, told.suspects, told.missing) == ((), (), (), ())


def test_events_outside_the_period_are_omitted() -> None:
    told = story(node("controller-1", (-5, Kind.SLOW_FLUSH, {"above_ms": 500, "count": 1}),
                      (4_000_000, Kind.SLOW_FLUSH, {"above_ms": 500, "count": 1})))  # fmt: skip
    assert told.lines == ()


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (7, "7 ms"),
        (9_300, "9.3 s"),
        (120_000, "2 min"),
        (250_000, "4 min 10 s"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_story_prints_durations(ms: int, text: str) -> None:
    assert took(ms) == text
