"""The checker of leaderships."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from checks_harness import Trace, config, play, refused, stories, voter, voters_record

from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.leadership import Leadership

FETCH_S = 1.0
CONFIG = SimpleNamespace(fetch_timeout_ms=1000, election_timeout_ms=500, election_jitter_max_ms=100)


class Quorum(Trace):
    """Three nodes with clocks and roles."""

    def __init__(self) -> None:
        super().__init__(Leadership)
        self.time = 100.0
        self.leader, self.leader_epoch = "", 0

    def start(self, name: str) -> None:
        super().start(name)
        core = self.host(name).core
        core.role, core.stepped_at = "follower", self.time
        vars(self.host(name).service.quorum).update(vars(CONFIG))

    def at(self, name: str, role: str = "") -> SimpleNamespace:
        """Return the node's core, whose clock becomes the current one."""
        core = self.host(name).core
        core.stepped_at = self.time
        core.role = role or core.role
        return core

    def elected(self, name: str, epoch: int, first: object = None) -> None:
        for node in ("c1", "c2", "c3"):
            if self.host(node).core is not None:
                self.at(node, "leader" if node == name else "follower").epoch = epoch
        self.leader, self.leader_epoch = name, epoch
        self.step(name, ev.BecameLeader(epoch, (1, 2)))
        self.append(name, epoch, first if first is not None else self.first_record(name))

    def first_record(self, name: str) -> pb.LeaderChangeRecord:
        return pb.LeaderChangeRecord(leader_id=self.host(name).id, generation=1)

    def claims(self, name: str, epoch: int) -> None:
        """Append the first record of the epoch."""
        self.append(name, epoch, self.first_record(name))

    def resigns(self, name: str) -> None:
        self.step(name, ev.LostLeadership(self.leader_epoch, "asked to"))

    def fetches(self, *names: str) -> None:
        """Give the leader a Fetch of each."""
        for name in names:
            self.at(self.leader)
            request = quorum.FetchRequest(replica_id=self.host(name).id)
            self.step(self.leader, event=ev.RequestReceived(request, None))

    def answers(self, *names: str) -> None:
        """Give each a response of the leader."""
        for name in names:
            self.at(name)
            response = quorum.FetchResponse(leader_epoch=self.leader_epoch)
            self.step(name, event=ev.ResponseReceived(self.host(self.leader).id, 1, response, None))

    def ticks(self) -> None:
        self.at(self.leader)
        self.step(self.leader, event=ev.Tick())

    def works(self, seconds: float, *names: str, answered: bool = True) -> None:
        """Let the leader and these followers exchange Fetches for this time."""
        for _ in range(round(seconds / 0.25)):
            self.time += 0.25
            self.fetches(*names)
            if answered:
                self.answers(*names)
            self.ticks()

    def campaigns(self, name: str, epoch: int) -> None:
        self.at(name, "candidate").epoch = epoch
        self.step(name, ev.PersistVote(cast(Any, SimpleNamespace())))


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


@pytest.mark.parametrize(
    "first", [config("k", "a"), pb.FeatureLevelRecord(name="f", feature_level=1)]
)
def test_epoch_that_begins_with_another_record_is_refused(first: object) -> None:
    with refused("without a LeaderChange"):
        Quorum().elected("c1", 1, first)


@stories(
    """
    what an old epoch's turn still wrote: elected c1 1; resigns c1; wins c1 3 1,2;
        append c1 3 a -> without a LeaderChange
    elsewhere than where it was elected: elected c1 1; resigns c1; wins c1 3 1,2; truncate c1 0;
        claims c1 3 -> begins epoch 3 without
    """
)
def test_later_epoch_of_a_node_begins_with_its_own_record(steps: list[str], rule: str) -> None:
    play(Quorum(), steps, rule)


@stories(
    """
    one of two followers fetches: elected c1 1; works 10 c3
    nobody fetches for a check interval: elected c1 1; works 3 c2; waits 1499; ticks; waits 10;
        ticks -> leads epoch 1, unheard
    a new leader has its time: elected c1 1; waits 1499; ticks; waits 10;
        ticks -> leads epoch 1, unheard
    it has resigned, and the next one has died: elected c1 1; resigns c1; waits 10000; ticks;
        elected c2 2; stop c2; waits 10000; start c2; ticks
    """
)
def test_leader_resigns_when_no_majority_fetches(steps: list[str], rule: str) -> None:
    play(Quorum(), steps, rule)


def test_fetch_of_an_observer_does_not_count_for_check_quorum() -> None:
    trace = Quorum()
    trace.elected("c1", 1)
    with refused("leads epoch 1, unheard"):
        for _ in range(10):
            trace.time += 0.25
            trace.at("c1")
            request = quorum.FetchRequest(replica_id=101)
            trace.step("c1", event=ev.RequestReceived(request, None))
            trace.ticks()


def test_new_voter_set_restarts_its_leaders_time() -> None:
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
    with refused("leads epoch 1, unheard"):
        trace.ticks()


@stories(
    """
    a majority hears the leader: elected c1 1; works 5 c2;
        campaigns c3 2 -> a needless election: c3 opens epoch 2
    all hear the leader: elected c1 1; works 5 c2 c3; campaigns c3 2 -> a needless election
    at once after the last election: elected c1 1; campaigns c3 2
    soon after the last election: elected c1 1; works 2 c2; campaigns c3 2
    after a silence: elected c1 1; works 5 c2 c3; waits 800; campaigns c3 2
    voters that hear the leader only briefly: elected c1 1; works 5 c2 c3 answered=;
        works 1 c2 c3; campaigns c3 2
    the leader alone is content: elected c1 1; works 5 c2 c3 answered=; campaigns c3 2
    """
)
def test_needless_election_is_refused(steps: list[str], rule: str) -> None:
    play(Quorum(), steps, rule)


@pytest.mark.parametrize("committed", [False, True])
def test_candidacy_of_a_removed_voter_is_not_a_needless_election(committed: bool) -> None:
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
