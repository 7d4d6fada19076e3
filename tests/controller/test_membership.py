"""Changes of the voter set, checked in Kafka's order."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from deciding import Cell, Decided

import controller.run
from controller.decision import Write
from controller.decisions.quorum.membership import CAUGHT_UP_WITHIN_MS, LIVE_WITHIN_MS
from controller.mending import Healed
from controller.rejoin import Answer, answer_of, may_rejoin
from controller.service.upkeep import Joining, requested_change
from raftlog.endpoint import Voter, reachable_error
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.metadata.records import RecordType, record
from raftlog.node.config.node import ControllerConfig
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

NEVER = -1


def replica(
    node_id: int, *, directory: str = "", fetched: int = 10, caught_up: int = 10, version: int = 2
) -> ReplicaDescription:
    return ReplicaDescription(node_id, directory or f"d{node_id}", 7, fetched, caught_up, version)


class Quorum:
    """A fake quorum core: three static voters without directories, 1 leads, 4 observes."""

    def __init__(self) -> None:
        self.voters = [replica(1, fetched=0, caught_up=0), replica(2), replica(3)]
        self.observers = [replica(4)]
        self.configured = tuple(Voter(i, f"c{i}:1") for i in (1, 2, 3))

    def __call__(self, now: float) -> QuorumDescription:
        voters, observers = tuple(self.voters), tuple(self.observers)
        return QuorumDescription(
            "leader", 1, 1, 1, 0, 9, 9, 9, 0, voters, observers, self.configured, -1
        )


class Members(Cell):
    def __init__(self, *, static: bool = False) -> None:
        self.quorum = Quorum()
        super().__init__(0, quorum=self.quorum, bootstrap=False)
        levels = (("metadata.version", 2), ("lao.version", 1), ("broker.heartbeat.version", 1))
        self.propose(
            Write([record(pb.FeatureLevelRecord(name=n, feature_level=v)) for n, v in levels])
        )
        if not static:
            self.due()
            assert self.voters() == {1: "d1", 2: "d2", 3: "d3"}

    def voters(self) -> dict[int, str]:
        named = self.pending.voters
        return {} if named is None else {voter.id: voter.directory_id for voter in named.voters}

    def changed(self, decision: Decided) -> dict[int, str]:
        """Return the only record of the decision, as id -> directory."""
        assert decision.error is None, decision.error
        (only,) = decision.records
        assert only.type == RecordType.VOTERS
        return {voter.voter_id: voter.voter_directory_id for voter in only.message.voters}


def add(node_id: int = 4, **fields: Any) -> rpc.AddRaftVoterRequest:
    content: dict[str, Any] = {
        "voter_id": node_id,
        "voter_directory_id": f"d{node_id}",
        "endpoint": f"c{node_id}:1",
    }
    return rpc.AddRaftVoterRequest(**{**content, **fields})


def remove(node_id: int, directory: str = "") -> rpc.RemoveRaftVoterRequest:
    return rpc.RemoveRaftVoterRequest(
        voter_id=node_id, voter_directory_id=directory or f"d{node_id}"
    )


def update(node_id: int, endpoint: str, directory: str = "") -> rpc.UpdateRaftVoterRequest:
    return rpc.UpdateRaftVoterRequest(
        voter_id=node_id, voter_directory_id=directory or f"d{node_id}", endpoint=endpoint
    )


ALL = (add(), remove(2), update(2, "new:1"))


# --- the first set ------------------------------------------------------------------------------


def test_static_voter_set_is_logged_when_all_directories_are_known() -> None:
    cell = Members(static=True)
    cell.quorum.voters[2] = replace(cell.quorum.voters[2], directory_id="", last_fetch_age_ms=NEVER)
    assert cell.due() == []
    assert cell.decider.due.next_deadline() <= cell.now + 0.1
    for request in ALL:
        cell.refused(request, ErrorCode.UNSUPPORTED_VERSION, "", "[3]")
    cell.quorum.voters[2] = replica(3)
    assert cell.due() == [], "it looks again only after a while"
    cell.now += 0.1
    (first,) = cell.due()
    assert cell.changed(first) == {1: "d1", 2: "d2", 3: "d3"}
    assert [voter.endpoint for voter in first.records[0].message.voters] == ["c1:1", "c2:1", "c3:1"]
    cell.now += 10
    assert cell.due() == []
    assert cell.decider.due.next_deadline() > cell.now


def test_voter_set_with_directories_is_logged_without_waiting() -> None:
    cell = Members(static=True)
    cell.quorum.voters = []
    cell.quorum.configured = (Voter(1, "c1:1", "d1"),)
    (first,) = cell.due()
    assert cell.changed(first) == {1: "d1"}


def test_first_voter_set_waits_for_a_committed_record_of_this_epoch() -> None:
    quorum = Quorum()
    cell = Cell(0, quorum=quorum, bootstrap=False)
    cell.log.committed = msgspec.structs.replace(cell.log.committed, offset=-1)
    cell.hold_commits = True
    levels = (("metadata.version", 2), ("lao.version", 1), ("broker.heartbeat.version", 1))
    cell.propose(Write([record(pb.FeatureLevelRecord(name=n, feature_level=v)) for n, v in levels]))
    assert cell.due() == []
    for request in ALL:
        cell.refused(request, ErrorCode.REQUEST_TIMED_OUT, "")
    cell.commit()
    cell.now += 0.1
    assert len(cell.due()) == 1


# --- adding -------------------------------------------------------------------------------------


def test_caught_up_observer_becomes_a_voter() -> None:
    cell = Members()
    decision = cell.decide(add())
    assert cell.changed(decision) == {1: "d1", 2: "d2", 3: "d3", 4: "d4"}
    assert not decision.answer_when_appended
    assert cell.decide(add(ack_when_appended=True)).answer_when_appended
    cell.propose(decision)
    assert cell.voters() == {1: "d1", 2: "d2", 3: "d3", 4: "d4"}


def test_second_voter_change_is_refused_while_one_is_pending() -> None:
    cell = Members()
    cell.hold_commits = True
    cell.propose(cell.decide(add()))
    for request in ALL:
        cell.refused(request, ErrorCode.REQUEST_TIMED_OUT, "")
    cell.commit()
    cell.quorum.voters.append(cell.quorum.observers.pop())
    assert cell.changed(cell.decide(remove(2))) == {1: "d1", 3: "d3", 4: "d4"}


def test_only_a_caught_up_observer_may_become_a_voter() -> None:
    cell = Members()
    cell.refused(add(5), ErrorCode.REQUEST_TIMED_OUT, "voter_id")
    cell.refused(add(voter_directory_id="other"), ErrorCode.REQUEST_TIMED_OUT, "voter_id")
    cell.refused(add(voter_directory_id=""), ErrorCode.INVALID_REQUEST, "voter_directory_id")
    cell.refused(add(2), ErrorCode.DUPLICATE_VOTER, "voter_id")
    other = add(2, voter_directory_id="other")
    cell.refused(other, ErrorCode.DUPLICATE_VOTER, "voter_id", "remove that one first")
    for age in (NEVER, CAUGHT_UP_WITHIN_MS + 1):
        cell.quorum.observers = [replica(4, caught_up=age)]
        cell.refused(add(), ErrorCode.REQUEST_TIMED_OUT, "voter_id", "up to 7 of 9")


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "c4",
        "c4:",
        ":1",
        "0.0.0.0:1",
        "[::]:1",
        "c4:0",
        "c4:65536",
        "a b:1",
        "1@c4:1",
        "c" * 400 + ":1",
        "c\x1b4:1",
        "A://c4:1,B://0.0.0.0:2",
        "A://c4:1,c4:2",
        "A://c4:1,A://c4:2",
    ],
)
def test_unreachable_endpoint_is_refused(endpoint: str) -> None:
    cell = Members()
    cell.refused(add(endpoint=endpoint), ErrorCode.INVALID_REQUEST, "endpoint")
    cell.refused(update(2, endpoint), ErrorCode.INVALID_REQUEST, "endpoint")


def test_valid_voter_endpoints_are_accepted() -> None:
    assert [reachable_error(good) for good in ("c4:1", "10.0.0.1:65535", "[::1]:9093")] == [""] * 3


def test_build_that_does_not_support_the_level_may_not_vote() -> None:
    cell = Members()
    for version in (0, 1):
        cell.quorum.observers = [replica(4, version=version)]
        cell.refused(add(), ErrorCode.INVALID_REQUEST, "voter_id")


def test_new_voter_set_requires_a_live_majority() -> None:
    cell = Members()
    cell.quorum.voters[2] = replica(3, fetched=LIVE_WITHIN_MS + 1)
    assert cell.changed(cell.decide(add())), "three of four live"
    cell.quorum.voters[1] = replica(2, fetched=NEVER)
    cell.refused(add(), ErrorCode.REQUEST_TIMED_OUT, "voter_id")


# --- removing -----------------------------------------------------------------------------------


def test_voters_are_removed_unless_the_quorum_would_stop() -> None:
    cell = Members()
    assert cell.changed(cell.decide(remove(1))) == {2: "d2", 3: "d3"}, "the leader itself"
    cell.refused(remove(4), ErrorCode.VOTER_NOT_FOUND, "voter_id")
    cell.refused(remove(2, "other"), ErrorCode.VOTER_NOT_FOUND, "voter_directory_id")
    cell.quorum.voters[2] = replica(3, fetched=NEVER)
    for live in (1, 2):
        cell.refused(remove(live), ErrorCode.REQUEST_TIMED_OUT, "voter_id")
    assert cell.changed(cell.decide(remove(3))) == {1: "d1", 2: "d2"}, "the dead one"


@pytest.mark.parametrize("directory", ["d3", ""])
def test_rejoining_voter_is_removed_only_if_no_other_process_fetches(directory: str) -> None:
    cell = Members()
    asked = rpc.RemoveRaftVoterRequest(voter_id=3, voter_directory_id=directory, joins_anew=True)
    fetches, cell.quorum.voters[2] = cell.quorum.voters[2], replica(3, fetched=NEVER)
    # A new leader: the voter may be about to fetch.
    cell.refused(asked, ErrorCode.REQUEST_TIMED_OUT, "voter_id")
    cell.now += LIVE_WITHIN_MS / 1000
    cell.quorum.voters[2] = fetches
    cell.refused(asked, ErrorCode.REQUEST_TIMED_OUT, "voter_id")
    cell.quorum.voters[2] = replica(3, fetched=NEVER)
    other = rpc.RemoveRaftVoterRequest(voter_id=3, voter_directory_id="d9", joins_anew=True)
    cell.refused(other, ErrorCode.VOTER_NOT_FOUND, "voter_directory_id")
    stranger = rpc.RemoveRaftVoterRequest(voter_id=9, joins_anew=True)
    cell.refused(stranger, ErrorCode.VOTER_NOT_FOUND, "voter_id")
    unnamed = rpc.RemoveRaftVoterRequest(voter_id=3)
    cell.refused(unnamed, ErrorCode.VOTER_NOT_FOUND, "voter_directory_id")
    decision = cell.decide(asked)
    assert cell.changed(decision) == {1: "d1", 2: "d2"}
    assert decision.records[0].message.seats == 0, "without autopilot no seat stays vacant"


def test_last_voter_is_not_removed() -> None:
    cell = Members()
    cell.propose(cell.decide(remove(3)))
    cell.propose(cell.decide(remove(2)))
    cell.refused(remove(1), ErrorCode.INVALID_REQUEST, "voter_id")


# --- updating -----------------------------------------------------------------------------------


def test_voter_update_changes_its_endpoint() -> None:
    cell = Members()
    decision = cell.decide(update(2, "new:7"))
    assert cell.changed(decision) == {1: "d1", 2: "d2", 3: "d3"}
    (changed,) = decision.records
    assert [voter.endpoint for voter in changed.message.voters] == ["c1:1", "new:7", "c3:1"]
    cell.refused(update(4, "new:7"), ErrorCode.VOTER_NOT_FOUND, "voter_id")
    cell.refused(update(2, "new:7", "other"), ErrorCode.VOTER_NOT_FOUND, "voter_directory_id")
    same = cell.decide(update(2, "c2:1"))
    assert same.error is None
    assert same.records == []


def test_voter_has_several_listeners() -> None:
    both = "SSL://c2:2,PLAINTEXT://c2:1"
    cell = Members()
    cell.quorum.observers = [replica(4)]
    for request, endpoints in (
        (update(2, both), ["c1:1", both, "c3:1"]),
        (add(endpoint=both), ["c1:1", "c2:1", "c3:1", both]),
    ):
        decision = cell.decide(request)
        assert decision.error is None
        assert [one.endpoint for one in decision.records[0].message.voters] == endpoints


# --- What a node asks of the voter set by itself, going by its own log ---------------------------


ME = QuorumConfig("c", 4, "d4", (), endpoint="c4:1")
OTHERS = (Voter(1, "c1:1", "d1"), Voter(2, "c2:1", "d2"))


def seen(*voters: Voter, **fields: Any) -> QuorumDescription:
    plain = QuorumDescription("observer", 3, 1, -1, 0, 9, 9, 9, -1, (), (), (*OTHERS, *voters), 5)
    return replace(plain, **fields)


BOTH = "SSL://c4:2,PLAINTEXT://c4:1"
SAME, MOVED, LOST = (Voter(4, "c4:1", "d4"), Voter(4, "old:1", "d4"), Voter(4, "c4:1", "old"))
HEARS: dict[str, Any] = {"role": "follower", "hears_leader": True}
ADDED = add(ack_when_appended=True)
NODE_CHANGES: dict[str, tuple[QuorumDescription, str, bool, Any]] = {
    "a caught-up observer joins": (seen(), "c4:1", True, ADDED),
    "only if it is configured": (seen(), "c4:1", False, None),
    "with all its listeners": (seen(), BOTH, True, add(endpoint=BOTH, ack_when_appended=True)),
    "once it has applied all": (seen(high_watermark=10), "c4:1", True, None),
    "once something is committed": (seen(high_watermark=-1), "c4:1", True, None),
    "once it knows a leader": (seen(leader_id=-1), "c4:1", True, None),
    "once it is an observer": (seen(role="unattached"), "c4:1", True, None),
    "once a voter set is in the log": (seen(voters_offset=-1), "c4:1", True, None),
    "a lost disk is removed first": (seen(LOST), "c4:1", True, remove(4, "old")),
    "a lost disk stays without that": (seen(LOST), "c4:1", False, None),
    "a voter reports its address": (seen(MOVED, **HEARS), "c4:1", False, update(4, "c4:1")),
    "a leader, too": (seen(MOVED, role="leader"), "c4:1", False, update(4, "c4:1")),
    "a copy of its directory does not": (seen(MOVED, role="follower"), "c4:1", False, None),
    "not without an address": (seen(MOVED, **HEARS), "", False, None),
    "not to a static set": (seen(MOVED, voters_offset=-1, **HEARS), "c4:1", False, None),
    "the same address is not news": (seen(SAME, **HEARS), "c4:1", True, None),
    "all listeners are reported": (seen(SAME, **HEARS), BOTH, False, update(4, BOTH)),
    "and are no news afterwards": (
        seen(replace(SAME, endpoint=BOTH), **HEARS), BOTH, False, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("found", "endpoint", "auto_join", "asked"), NODE_CHANGES.values(), ids=NODE_CHANGES
)
def test_node_requests_its_own_voter_change(
    found: QuorumDescription, endpoint: str, auto_join: bool, asked: Any
) -> None:
    assert requested_change(found, replace(ME, endpoint=endpoint), auto_join=auto_join) == asked


def test_leader_requests_its_own_changes_as_itself() -> None:
    """Otherwise its own authorizer would refuse it."""
    got: list[Any] = []

    async def ask() -> None:
        def receive(link: Any, requests: list[Any]) -> None:
            got.extend(requests)
            link.send(rpc.ControllerResponse())

        quorum = SimpleNamespace(fetch_timeout_ms=1000, node_id=3)
        node: Any = SimpleNamespace(quorum=quorum, cluster_id="c")
        unused: Any = None
        joining = Joining(node, receive, unused, random.Random(1), auto_join=True)
        await joining._ask_here(rpc.RemoveRaftVoterRequest(voter_id=3))

    asyncio.run(ask())
    (request,) = got
    assert (request.client.node_id, request.remove_raft_voter.voter_id) == (3, 3)


def test_damaged_directory_is_abandoned_only_once_it_is_not_a_voter() -> None:
    assert answer_of(None) is Answer.NO_VOTER
    gone = ApiError(ErrorCode.VOTER_NOT_FOUND, "node 4 is not a voter", field="voter_id")
    assert answer_of(gone) is Answer.NO_VOTER
    other = ApiError(ErrorCode.VOTER_NOT_FOUND, "another", field="voter_directory_id")
    assert answer_of(other) is Answer.ANOTHER_DIRECTORY
    for code in ErrorCode:
        if code not in (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND):
            assert answer_of(ApiError(code, "why", field="voter_id")) is Answer.NOT_NOW, code


@pytest.mark.parametrize("found_later", [False, True])
async def test_damage_is_repaired_until_the_node_has_rejoined(
    monkeypatch: pytest.MonkeyPatch, found_later: bool
) -> None:
    ran: list[dict[str, Any]] = []

    async def run(config: Any, signals: Any, **how: Any) -> int:
        ran.append(how)
        if found_later and not how.get("raises_damage"):
            return 3
        raise CorruptLogError("batch at offset 7: CRC32C does not match", offset=7)

    async def heal(config: Any, damage: CorruptLogError, stop: asyncio.Event) -> Healed:
        assert damage.offset == 7
        return Healed(Path("/data/damaged/1"), mended=len(ran) == 1)

    monkeypatch.setattr(controller.run, "_run", run)
    monkeypatch.setattr(controller.run, "heal", heal)
    monkeypatch.setattr(controller.run, "may_rejoin", lambda config: True)
    config: Any = None

    async def ends() -> None:
        if found_later:
            assert await controller.run.run_controller(config) == 3
        else:
            with pytest.raises(CorruptLogError):
                await controller.run.run_controller(config)

    await ends()
    aside = Path("/data/damaged/1")
    assert ran == [
        {"raises_damage": True, "healed": None},
        {"raises_damage": True, "healed": Healed(aside, mended=True)},
        {"raises_damage": False, "healed": Healed(aside, mended=False)},
    ]

    ran.clear()
    monkeypatch.setattr(controller.run, "may_rejoin", lambda config: False)
    await ends()
    assert ran == [{"raises_damage": False, "healed": None}]


@pytest.mark.parametrize(
    ("auto_join", "replace_after_ms", "bootstrap", "may"),
    [
        (True, 0, ("c1:1",), True),
        (False, 0, ("c1:1",), False),
        (False, 60_000, ("c1:1",), True),
        (True, 0, (), False),
        (False, 60_000, (), False),
    ],
)
def test_node_rejoins_only_if_allowed_and_if_it_knows_another_controller(
    auto_join: bool, replace_after_ms: int, bootstrap: tuple[str, ...], may: bool
) -> None:
    own = ControllerConfig((Voter(4, "c4:1"),), bootstrap, "c4:1", "c4:1")
    settings = SimpleNamespace(
        controller_quorum_auto_join_enable=auto_join,
        controller_quorum_voter_replace_after_ms=replace_after_ms,
    )
    config: Any = SimpleNamespace(controller=own, settings=settings)
    assert may_rejoin(config) is may
