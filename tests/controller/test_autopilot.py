import random
from dataclasses import replace

import pytest
from deciding import Cell, registration

from controller.decider import Decider
from controller.decision import Write
from controller.decisions.quorum.autopilot import STEADY_S, Step
from controller.decisions.quorum.membership import LIVE_WITHIN_MS
from controller.settings import ControllerSettings
from raftlog.endpoint import Voter
from raftlog.metadata.entities import Voters
from raftlog.metadata.records import RecordType, record
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

AFTER_S = 60.0
LOOKS_S = 1.0


class Fleet(Cell):
    """Leader 1 with voters 1 to ``size``, spares from 101; ``down`` nodes do not fetch."""

    def __init__(self, size: int = 3, spares: int = 1, *, after_s: float = AFTER_S) -> None:
        self.down: set[int] = set()
        self.unreached: set[str] = set()
        self.nodes = {
            node_id: ReplicaDescription(
                node_id, f"d{node_id}", 9, 0, 0, 2, spare_endpoint=f"c{node_id}:1"
            )
            for node_id in (*range(1, size + 1), *range(101, 101 + spares))
        }
        self._heard: dict[int, float] = {}
        settings = ControllerSettings(
            controller_quorum_voter_replace_after_ms=round(after_s * 1000)
        )
        super().__init__(0, settings=settings, quorum=self.look, bootstrap=False)
        levels = (("metadata.version", 2), ("lao.version", 1), ("broker.heartbeat.version", 1))
        self.propose(
            Write([record(pb.FeatureLevelRecord(name=n, feature_level=v)) for n, v in levels])
        )
        self.name(*range(1, size + 1))
        self.sets: list[tuple[int, ...]] = []
        """Voter sets that autopilot has written."""
        self.reasons: list[str] = []

    def look(self, now: float) -> QuorumDescription:
        described = []
        for node_id, one in self.nodes.items():
            if node_id not in self.down:
                self._heard[node_id] = now
            age_ms = round(1000 * (now - self._heard.get(node_id, now - 1e6)))
            lag_ms = max(age_ms, one.last_caught_up_age_ms)
            described.append(replace(one, last_fetch_age_ms=age_ms, last_caught_up_age_ms=lag_ms))
        named = self.pending.voters
        keys = {(one.id, one.directory_id) for one in named.voters} if named else set()
        voters = tuple(one for one in described if (one.node_id, one.directory_id) in keys)
        return QuorumDescription(
            "leader", 1, 1, 1, 0, 9, 9, 9, 0,
            voters, tuple(one for one in described if one not in voters),
            tuple(Voter(one.node_id, f"c{one.node_id}:1", one.directory_id) for one in voters),
        )  # fmt: skip

    def name(self, *node_ids: int, seats: int = 0, leaving_id: int | None = None) -> None:
        entries = [
            pb.VoterEntry(voter_id=i, voter_directory_id=f"d{i}", endpoint=f"c{i}:1")
            for i in node_ids
        ]
        self.propose(
            Write([record(pb.VotersRecord(voters=entries, seats=seats, leaving_id=leaving_id))])
        )

    @property
    def named(self) -> Voters:
        assert self.pending.voters is not None
        return self.pending.voters

    @property
    def voters(self) -> tuple[int, ...]:
        return tuple(one.id for one in self.named.voters)

    @property
    def seats(self) -> int:
        return self.named.seats

    def live(self, voters: tuple[int, ...]) -> int:
        return sum(one not in self.down for one in voters)

    def run(self, seconds: float) -> None:
        """Let time pass; each change must preserve the required votes, and have them."""
        end = self.now + seconds
        while self.now < end:
            before = self.voters
            for key, endpoint in self.decider.autopilot.spares(self.now):
                accepted = endpoint not in self.unreached
                self.decider.autopilot.probed(key, endpoint, accepted=accepted)
            for decision in self.due():
                for one in decision.records:
                    if one.type != RecordType.VOTERS:
                        continue
                    after = tuple(each.voter_id for each in one.message.voters)
                    assert len(set(before) ^ set(after)) == 1, "one replica at a time"
                    assert len(after) // 2 == len(before) // 2, "as many votes are needed"
                    assert self.live(after) > len(after) // 2, "and they are there"
                    self.sets.append(after)
                    self.reasons.append(one.message.reason)
                    before = after
            self.now += LOOKS_S

    def elect(self, node_id: int = 1) -> None:
        """Begin another epoch of the same node, which forgets the observations of the previous one."""
        self.decider = Decider(self.decider.state, self.log.report, node_id, self.look)
        self.decider.state.began_at = self.now

    def reason(self) -> str:
        plan = self.decider.autopilot.plan(self.now)
        assert plan.step is Step.WAIT, plan
        return plan.reason


def followed(size: int = 3, spares: int = 1, *, down: set[int]) -> Fleet:
    """Return a fleet whose nodes have followed for long enough, and some of which die now."""
    fleet = Fleet(size, spares)
    fleet.run(STEADY_S + 1)
    fleet.down |= down
    return fleet


def test_dead_voter_of_an_odd_set_leaves_before_the_spare_joins() -> None:
    fleet = followed(down={3})
    fleet.run(AFTER_S - 2)
    assert fleet.sets == []
    assert "node 3 has been silent for" in fleet.reason()
    fleet.run(5)
    assert fleet.sets == [(1, 2), (1, 2, 101)]
    assert fleet.seats == 0
    assert "node 3 has been silent for 60 s: node 101 takes its seat" in fleet.reasons[0]
    assert fleet.reasons[1] == "node 101 takes the vacant seat"
    fleet.down.clear()
    fleet.run(3 * AFTER_S)
    assert fleet.voters == (1, 2, 101), "the voter that is back is a spare"
    fleet.down = {2}
    fleet.run(AFTER_S + 5)
    assert fleet.voters == (1, 3, 101), "and replaces the next one"


def test_damaged_voter_of_an_odd_set_regains_its_seat_as_a_spare() -> None:
    fleet = followed(3, 0, down={3})
    fleet.run(LIVE_WITHIN_MS / 1000 + 1)
    fleet.propose(fleet.decide(rpc.RemoveRaftVoterRequest(voter_id=3, joins_anew=True)))
    assert (fleet.voters, fleet.seats) == ((1, 2), 3)
    fleet.run(STEADY_S + 1)
    assert "there is no spare" in fleet.reason()
    fleet.down.clear()
    # With another directory, as the node has formatted its own anew.
    fleet.nodes[3] = replace(fleet.nodes[3], directory_id="d3-anew")
    fleet.run(2 * STEADY_S)
    assert (fleet.voters, fleet.seats) == ((1, 2, 3), 0)
    assert fleet.named.voters[2].directory_id == "d3-anew"


def test_damaged_voter_of_an_even_set_leaves_no_unfillable_seat() -> None:
    fleet = followed(4, 0, down={3})
    fleet.run(LIVE_WITHIN_MS / 1000 + 1)
    fleet.propose(fleet.decide(rpc.RemoveRaftVoterRequest(voter_id=3, joins_anew=True)))
    assert (fleet.voters, fleet.seats) == ((1, 2, 4), 0)
    fleet.down.clear()
    fleet.run(3 * AFTER_S)
    assert fleet.voters == (1, 2, 4), "it is a spare"


def test_dead_voter_stays_without_a_spare() -> None:
    """Consul #5922: five servers were lost one after the other, and in the end two formed a quorum."""
    fleet = Fleet(5, 0)
    for lost in (5, 4):
        fleet.down.add(lost)
        fleet.run(2 * AFTER_S)
    assert fleet.sets == []
    assert fleet.reason().endswith("there is no spare")
    assert len(fleet.voters) == 5


@pytest.mark.parametrize(
    ("size", "spares", "down", "sets", "why"),
    [
        (5, 2, {4, 5}, [(1, 2, 3, 5), (1, 2, 3, 5, 101), (1, 2, 3, 101), (1, 2, 3, 101, 102)], ""),
        (5, 1, {4, 5}, [(1, 2, 3, 5), (1, 2, 3, 5, 101)], "there is no spare (node 4 is silent)"),
        (4, 1, {4}, [(1, 2, 3, 4, 101), (1, 2, 3, 101)], ""),
        (3, 1, {2, 3}, [], "would have no live majority"),
    ],
    ids=["one at a time", "only one spare", "even set: the spare joins first", "no majority"],
)
def test_dead_voters_are_replaced_while_a_majority_and_a_spare_live(
    size: int, spares: int, down: set[int], sets: list[tuple[int, ...]], why: str
) -> None:
    fleet = followed(size, spares, down=down)
    fleet.run(3 * AFTER_S)
    assert (fleet.sets, fleet.seats) == (sets, 0)
    assert why in fleet.reason()


def test_flapping_spare_is_not_trusted() -> None:
    fleet = Fleet()
    fleet.down.add(3)
    for _ in range(20):
        fleet.run(STEADY_S - 2)
        fleet.down.add(101)
        fleet.run(LIVE_WITHIN_MS / 1000 + 2)
        fleet.down.discard(101)
    assert fleet.sets == []
    fleet.run(STEADY_S + 5)
    assert fleet.voters == (1, 2, 101)


def test_spare_that_dies_between_the_changes_leaves_a_live_quorum() -> None:
    fleet = followed(3, 2, down={3})
    while not fleet.sets:
        fleet.run(LOOKS_S)
    assert fleet.sets == [(1, 2)]
    fleet.down.update((101, 102))
    fleet.now += LIVE_WITHIN_MS / 1000
    fleet.run(AFTER_S)
    assert fleet.sets == [(1, 2)]
    assert fleet.seats == 3
    assert "a seat is vacant" in fleet.reason()
    fleet.down = {101, 102}
    fleet.run(STEADY_S + 5)
    assert fleet.voters == (1, 2, 3), "who was removed may be the one to take the seat"


def test_spare_that_dies_as_it_joins_is_not_needed() -> None:
    fleet = followed(3, 2, down={3})
    while not fleet.sets:
        fleet.run(LOOKS_S)
    fleet.down.add(101)
    fleet.run(5)
    assert fleet.voters == (1, 2, 101)
    fleet.run(2 * AFTER_S)
    assert fleet.voters == (1, 2, 102)


def test_vacant_seat_is_filled_by_the_next_leader() -> None:
    fleet = Fleet(5, 1)
    fleet.down.add(5)
    fleet.name(1, 2, 3, 4, seats=5)
    fleet.elect()
    fleet.run(STEADY_S - 1)
    assert fleet.sets == [], "this leader has not seen for long enough that the spare follows"
    fleet.run(5)
    assert fleet.sets == [(1, 2, 3, 4, 101)]
    assert fleet.seats == 0


def test_no_second_voter_is_removed_while_a_seat_is_vacant() -> None:
    fleet = Fleet(5, 0)
    fleet.down = {4, 5}
    fleet.name(1, 2, 3, 4, seats=5)
    fleet.run(3 * AFTER_S)
    assert fleet.sets == []
    assert fleet.reason().startswith("a seat is vacant")


def half_replaced(*down: int) -> Fleet:
    """Return a state where voter 4 was dead, 101 replaced it, and another node leads."""
    fleet = Fleet(4, 1)
    fleet.down.update(down)
    fleet.name(1, 2, 3, 4, 101, seats=4, leaving_id=4)
    fleet.elect()
    return fleet


@pytest.mark.parametrize("down", [(), (4,)], ids=["it is back", "it is dead"])
def test_next_leader_removes_the_voter_whose_seat_is_taken(down: tuple[int, ...]) -> None:
    fleet = half_replaced(*down)
    fleet.run(5)
    assert fleet.sets == [(1, 2, 3, 101)]


def test_dead_spare_is_replaced_after_the_voter_whose_seat_it_took() -> None:
    fleet = half_replaced(101)
    fleet.run(5)
    assert fleet.sets == [(1, 2, 3, 101)]
    fleet.run(AFTER_S)
    assert fleet.voters == (1, 2, 3, 4)


def test_leader_whose_seat_is_taken_does_not_remove_itself() -> None:
    fleet = Fleet(4, 1)
    fleet.name(1, 2, 3, 4, 101, seats=4, leaving_id=1)
    fleet.run(5)
    assert fleet.sets == [(1, 2, 3, 4)]
    assert fleet.reasons == ["node 101 leaves: there are 5 voters for 4 seats"]


def test_new_disk_of_a_dead_voter_is_its_own_spare() -> None:
    fleet = Fleet(3, 0)
    fleet.down.add(3)
    fleet.run(5)
    # The old directory is heard no more; the same id fetches with another one.
    fleet.nodes[300] = replace(fleet.nodes[3], directory_id="new")
    fleet.nodes[300] = replace(fleet.nodes[300], node_id=3)
    fleet.run(AFTER_S + 5)
    assert [one.directory_id for one in fleet.named.voters] == ["d1", "d2", "new"]
    assert fleet.voters == (1, 2, 3)


def test_pause_of_the_leader_does_not_count_as_voter_downtime() -> None:
    fleet = followed(down={3})
    fleet.run(5)
    fleet.now += 10 * AFTER_S
    fleet.decider.extend_for_pause(10 * AFTER_S, fleet.now)
    fleet.run(AFTER_S - 10)
    assert fleet.sets == []


def test_disabled_autopilot_reports_what_it_would_do() -> None:
    fleet = Fleet(after_s=0)
    fleet.run(STEADY_S + 5)
    assert fleet.reason() == "every voter fetches from the leader"
    fleet.down.add(3)
    fleet.run(3 * AFTER_S)
    assert fleet.sets == []
    plan = fleet.decider.autopilot.plan(fleet.now)
    assert (plan.step, plan.replica and plan.replica.id) == (Step.REMOVE, 3)
    described = fleet.decider.autopilot.describe(fleet.now)
    assert (described.step, described.node_id, described.after_ms) == ("REMOVE", 3, 0)
    assert [(one.replica_id, one.condition) for one in described.replicas] == [
        (1, "live"),
        (2, "live"),
        (3, "silent"),
        (101, "ready"),
    ]


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        ({"spare_endpoint": ""}, "is not offered as a spare"),
        ({"spare_endpoint": "0.0.0.0:1"}, "other nodes connect to it"),
        ({"low_on_space": True}, "too little disk space"),
        ({"max_metadata_version": 1}, "supports metadata.version up to 1"),
        ({"last_caught_up_age_ms": 9_000}, "node 101 does not follow"),
        ({"node_id": 7}, "has the id of a broker"),
    ],
)
def test_observer_that_cannot_vote_is_not_a_spare(unfit: dict[str, object], why: str) -> None:
    fleet = Fleet()
    fleet.propose(fleet.decide(registration(7)))
    spare = replace(fleet.nodes.pop(101), **unfit)  # type: ignore[arg-type]
    fleet.nodes[spare.node_id] = spare
    fleet.down.add(3)
    fleet.run(2 * AFTER_S)
    assert fleet.sets == []
    assert why in fleet.reason()


def test_spare_that_is_unreachable_at_its_endpoint_is_not_trusted() -> None:
    """etcd: a member was added under an unreachable address, and counted for the quorum."""
    fleet = Fleet()
    fleet.unreached.add("c101:1")
    fleet.down.add(3)
    fleet.run(2 * AFTER_S)
    assert fleet.sets == []
    assert "node 101 cannot be reached at c101:1" in fleet.reason()
    fleet.unreached.clear()
    fleet.run(5)
    assert fleet.voters == (1, 2, 101)


def test_forgotten_spare_is_tried_again() -> None:
    """[The leader would remember each new directory of an observer as long as it leads.]"""
    fleet = Fleet()
    fleet.run(2 * AFTER_S)
    gone = fleet.nodes.pop(101)
    fleet.due()
    fleet.nodes[101] = gone
    fleet.unreached.add("c101:1")
    plans = []
    for _ in range(int(2 * AFTER_S / LOOKS_S)):
        fleet.now += LOOKS_S
        fleet.due()
        plans.append(fleet.decider.autopilot.describe(fleet.now).replicas[-1].condition)
    assert plans[-1] == "cannot be reached at c101:1"


def test_voter_change_by_an_operator_ends_the_replacement() -> None:
    fleet = Fleet(5, 1)
    fleet.name(1, 2, 3, 4, seats=5)
    added = rpc.AddRaftVoterRequest(voter_id=101, voter_directory_id="d101", endpoint="c101:1")
    fleet.propose(fleet.decide(added))
    assert (fleet.voters, fleet.seats) == ((1, 2, 3, 4, 101), 0), "the seat is filled"
    fleet = Fleet(5, 0)
    fleet.name(1, 2, 3, 4, seats=5)
    moved = rpc.UpdateRaftVoterRequest(voter_id=2, voter_directory_id="d2", endpoint="new:1")
    fleet.propose(fleet.decide(moved))
    assert fleet.seats == 5, "a voter that moves changes no number"
    gone = rpc.RemoveRaftVoterRequest(voter_id=4, voter_directory_id="d4")
    fleet.propose(fleet.decide(gone))
    assert (fleet.voters, fleet.seats) == ((1, 2, 3), 0)


@pytest.mark.parametrize("seed", range(12))
def test_random_deaths_never_cost_the_quorum_a_vote(seed: int) -> None:
    """Nodes die and return, leaders change; ``run`` checks each change."""
    rng = random.Random(seed)
    size = rng.choice((3, 4, 5, 7))
    fleet = Fleet(size, rng.randrange(1, 4))
    for _ in range(60):
        mortal = [one for one in fleet.nodes if one != 1]
        chosen = rng.choice(mortal)
        fleet.down ^= {chosen}
        if fleet.live(fleet.voters) <= len(fleet.voters) // 2:
            # The quorum would stop: no leader, no autopilot.
            fleet.down ^= {chosen}
        if rng.random() < 0.2:
            fleet.elect()
        fleet.run(rng.choice((2.0, 15.0, AFTER_S, 2 * AFTER_S)))
        assert abs(len(fleet.voters) - size) <= 1
    fleet.down.clear()
    fleet.run(4 * AFTER_S)
    assert len(fleet.voters) == size
    assert fleet.seats == 0
