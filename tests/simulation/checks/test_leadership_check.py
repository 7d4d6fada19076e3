"""Beginnings and ends of leaderships: sound traces pass, and each unsound one is refused by its
rule.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from checks_harness import Trace, config, voter, voters_record

from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.leadership import Leadership

FETCH_S = 1.0
CONFIG = SimpleNamespace(fetch_timeout_ms=1000, election_timeout_ms=500, election_jitter_max_ms=100)


class Quorum(Trace):
    """Three nodes with clocks and roles."""

    def __init__(self) -> None:
        super().__init__(Leadership)
        self.time = 100.0
        self.leader, self.epoch = "", 0

    def start(self, name: str) -> None:
        super().start(name)
        core = self.host(name).core
        core.role, core.stepped_at = "follower", self.time
        vars(self.host(name).service.quorum).update(vars(CONFIG))

    def at(self, name: str, role: str = "") -> SimpleNamespace:
        """The node's core, by whose clock it is now."""
        core = self.host(name).core
        core.stepped_at = self.time
        core.role = role or core.role
        return core

    def elected(self, name: str, epoch: int, first: object = None) -> None:
        for node in ("c1", "c2", "c3"):
            if self.host(node).core is not None:
                self.at(node, "leader" if node == name else "follower").epoch = epoch
        self.leader, self.epoch = name, epoch
        self.step(name, ev.BecameLeader(epoch, (1, 2)))
        self.append(
            name,
            epoch,
            first
            if first is not None
            else pb.LeaderChangeRecord(leader_id=self.host(name).id, generation=1),
        )

    def fetches(self, *names: str) -> None:
        """The leader gets a Fetch of each."""
        for name in names:
            self.at(self.leader)
            request = quorum.FetchRequest(replica_id=self.host(name).id)
            self.step(self.leader, event=ev.RequestReceived(request, None))

    def answers(self, *names: str) -> None:
        """Each gets an answer of the leader."""
        for name in names:
            self.at(name)
            response = quorum.FetchResponse(leader_epoch=self.epoch)
            self.step(name, event=ev.ResponseReceived(self.host(self.leader).id, 1, response, None))

    def ticks(self) -> None:
        self.at(self.leader)
        self.step(self.leader, event=ev.Tick())

    def works(self, seconds: float, *names: str) -> None:
        """The leader and these followers exchange Fetches for so long."""
        for _ in range(round(seconds / 0.25)):
            self.time += 0.25
            self.fetches(*names)
            self.answers(*names)
            self.ticks()

    def campaigns(self, name: str, epoch: int) -> None:
        core = self.at(name, "candidate")
        core.epoch = epoch
        self.step(name, ev.PersistVote(cast(Any, SimpleNamespace())))


def refused(rule: str) -> pytest.RaisesExc[CheckFailedError]:
    return pytest.raises(CheckFailedError, match=rule)


def test_sound_change_of_leaders_passes() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(5, "c2", "c3")
    trace.append("c1", 1, config("k", "a"))
    trace.step("c1", ev.LostLeadership(1, "asked to"))
    trace.time += 1.2
    trace.campaigns("c2", 2)
    trace.elected("c2", 2)
    trace.works(5, "c1")
    assert trace.last.campaigns == 1


# --- beginnings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [config("k", "a"), pb.FeatureLevelRecord(name="f", feature_level=1)]
)
def test_epoch_that_begins_with_another_record_is_refused(first: object) -> None:
    with refused("no LeaderChange"):
        Quorum().elected("c1", 1, first)


def test_later_epoch_of_the_same_node_begins_with_its_own_record_too() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.step("c1", ev.LostLeadership(1, "asked to"))
    trace.step("c1", ev.BecameLeader(3, (1, 2)))
    # What an old epoch's turn still wrote.
    with refused("no LeaderChange"):
        trace.append("c1", 3, config("k", "a"))


def test_epoch_that_begins_elsewhere_than_where_the_leader_was_elected_is_refused() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.step("c1", ev.LostLeadership(1, "asked to"))
    trace.step("c1", ev.BecameLeader(3, (1, 2)))
    trace.truncate("c1", 0)
    with refused("begins epoch 3 with a batch at 0"):
        trace.append("c1", 3, pb.LeaderChangeRecord(leader_id=1, generation=1))


# --- check-quorum -------------------------------------------------------------------------------


def test_leader_that_one_of_two_followers_fetches_from_leads_on() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(10, "c3")


def test_leader_without_fetches_is_refused_after_its_check_interval() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(3, "c2")
    trace.time += 1.5 * FETCH_S - 0.001
    trace.ticks()
    trace.time += 0.01
    with refused("no majority has fetched"):
        trace.ticks()


def test_new_leader_has_its_time_from_its_election_on() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.time += 1.5 * FETCH_S - 0.001
    trace.ticks()
    trace.time += 0.01
    with refused("leads epoch 1 still"):
        trace.ticks()


def test_observers_fetch_does_not_count_for_check_quorum() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    with refused("no majority has fetched"):
        for _ in range(10):
            trace.time += 0.25
            trace.at("c1")
            request = quorum.FetchRequest(replica_id=101)
            trace.step("c1", event=ev.RequestReceived(request, None))
            trace.ticks()


def test_leader_that_resigned_or_died_need_not_be_elected_in_time() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.step("c1", ev.LostLeadership(1, "no majority"))
    trace.time += 10
    trace.ticks()
    trace.elected("c2", 2)
    trace.stop("c2")
    trace.time += 10
    trace.start("c2")
    trace.ticks()


def test_new_voter_set_gives_its_leader_time_again() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(1, "c2", "c3")
    trace.time += 1.4
    trace.at("c1")
    trace.append("c1", 1, voters_record(voter(1), voter(2), voter(3)))
    trace.step("c1", ev.VotersChanged(1, (voter(1), voter(2), voter(3))))
    trace.time += 1.4
    trace.ticks()
    trace.time += 0.2
    with refused("no majority has fetched"):
        trace.ticks()


# --- needless elections -------------------------------------------------------------------------


def test_election_while_a_majority_hears_the_leader_is_refused() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(5, "c2")
    with refused("a needless election: c3 opens epoch 2"):
        trace.campaigns("c3", 2)


def test_candidacy_of_a_voter_that_hears_the_leader_is_refused() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(5, "c2", "c3")
    with refused("a needless election"):
        trace.campaigns("c3", 2)


@pytest.mark.parametrize("committed", [False, True])
def test_candidacy_of_a_removed_voter_is_no_needless_election(committed: bool) -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    end = trace.append("c1", 1, voters_record(voter(1), voter(2)))
    if committed:
        trace.commit("c1", end)
    trace.works(5, "c2")
    if committed:
        trace.campaigns("c3", 2)
        trace.host("c3").core.role = "follower"
    with refused("a needless election"):
        trace.campaigns("c2" if committed else "c3", 3)


@pytest.mark.parametrize("heard_s", [0.0, 2.0])
def test_election_soon_after_the_last_one_may_rest_on_what_was_before(heard_s: float) -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(heard_s, "c2")
    trace.campaigns("c3", 2)


def test_election_after_a_silence_passes() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    trace.works(5, "c2", "c3")
    trace.time += 0.8 * FETCH_S
    trace.campaigns("c3", 2)


def test_election_by_voters_that_hear_the_leader_only_briefly_passes() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    for _ in range(20):
        trace.time += 0.25
        trace.fetches("c2", "c3")
        trace.ticks()
    trace.works(1, "c2", "c3")
    trace.campaigns("c3", 2)


def test_election_when_only_the_leader_and_no_majority_is_content_passes() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    for _ in range(20):
        trace.time += 0.25
        trace.fetches("c2", "c3")
        trace.ticks()
    trace.campaigns("c3", 2)
