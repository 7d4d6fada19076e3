"""Read-index rounds."""

from one_node import caught_up, follower_of_two, leader_of_three, respond
from quorum_harness import Cluster, effects_of, elected

from raftlog.quorum.events import (
    ReadIndexConfirmed,
    ReadIndexRequested,
    ReadIndexStarted,
    ReplyFetch,
    SendFetch,
)


def test_round_requires_echoes_of_a_majority() -> None:
    node = leader_of_three()
    caught_up(node)
    caught_up(node)
    at = len(node.effects)
    node.step(ReadIndexRequested())
    started, reply = node.effects[at:]
    assert started == ReadIndexStarted(1)
    assert reply.response.round == 1, "parked Fetches are released with it"
    caught_up(node)
    assert not effects_of(node, ReadIndexConfirmed), "a Fetch that was on its way proves nothing"
    caught_up(node, round=1)
    assert effects_of(node, ReadIndexConfirmed) == [ReadIndexConfirmed(1)]
    caught_up(node, 3, round=1)
    assert effects_of(node, ReadIndexConfirmed) == [ReadIndexConfirmed(1)]


def test_fetch_without_the_current_round_is_answered_at_once() -> None:
    node = leader_of_three()
    caught_up(node)
    node.step(ReadIndexRequested())
    (reply,) = caught_up(node)
    assert reply.response.round == 1
    assert caught_up(node, round=1) == []


def test_observers_confirm_no_round() -> None:
    node = leader_of_three()
    node.step(ReadIndexRequested())
    for observer in (8, 9):
        assert caught_up(node, observer, round=1) == [], "and are not woken for it"
    caught_up(node, 2, replica_directory_id="wiped", round=1)
    assert not effects_of(node, ReadIndexConfirmed)


def test_rounds_are_shared_until_sent_to_a_voter() -> None:
    node = leader_of_three()
    caught_up(node)
    for _ in range(3):
        node.step(ReadIndexRequested())
    assert [e.round for e in effects_of(node, ReadIndexStarted)] == [1, 1, 1]
    caught_up(node)
    node.step(ReadIndexRequested())
    assert node.last(ReadIndexStarted).round == 2
    caught_up(node, round=1)
    assert effects_of(node, ReadIndexConfirmed) == [ReadIndexConfirmed(1)]
    caught_up(node, round=2)
    assert node.last(ReadIndexConfirmed) == ReadIndexConfirmed(2)


def test_echo_confirms_all_earlier_rounds() -> None:
    node = leader_of_three()
    for _ in range(3):
        node.step(ReadIndexRequested())
        caught_up(node)
    caught_up(node, 3, round=3)
    assert effects_of(node, ReadIndexConfirmed) == [ReadIndexConfirmed(3)]


def test_round_is_confirmed_by_a_majority_of_five() -> None:
    leader = Cluster(5, connected=True).elect()
    leader.step(ReadIndexRequested())
    for replica in [i for i in range(1, 6) if i != leader.id][:2]:
        assert not effects_of(leader, ReadIndexConfirmed)
        caught_up(leader, replica, round=1)
    assert effects_of(leader, ReadIndexConfirmed) == [ReadIndexConfirmed(1)]


def test_single_voter_confirms_rounds_at_once() -> None:
    node = Cluster(1).elect()
    node.step(ReadIndexRequested())
    assert node.effects[-2:] == [ReadIndexStarted(1), ReadIndexConfirmed(1)]
    node.step(ReadIndexRequested())
    assert node.last(ReadIndexConfirmed) == ReadIndexConfirmed(node.last(ReadIndexStarted).round)


def test_only_a_leader_starts_rounds() -> None:
    node = follower_of_two()
    node.step(ReadIndexRequested())
    assert not effects_of(node, ReadIndexStarted)


def test_follower_echoes_the_highest_round_of_this_leader() -> None:
    node = follower_of_two()
    respond(node, round=4)
    assert node.last(SendFetch).request.round == 4
    respond(node, round=2)
    assert node.last(SendFetch).request.round == 4
    respond(node, error_code=74, leader_id=3, leader_epoch=8, round=9)
    assert node.last(SendFetch).request.round == 0, "another epoch, other numbers"


def test_deposed_leader_confirms_no_round() -> None:
    """[A Fetch in flight was sent before its sender voted for another.]"""
    cluster, leader = elected()
    # Release both parked Fetches; the followers' next ones stay on their way.
    cluster.propose()
    while not (len(cluster.network) == 2 and all(m.is_request for m in cluster.network)):
        if not any(node.flush() for node in cluster.alive):
            cluster.deliver(cluster.network.pop(0))
    late = list(cluster.network)
    cluster.network.clear()
    cluster.isolate(leader.id)
    cluster.run_until(lambda: any(node is not leader for node in cluster.leaders()), 5)
    assert leader.up.role == "leader", "does not know yet"
    leader.step(ReadIndexRequested())
    cluster.heal()
    for message in late:
        cluster.deliver(message)
    assert not effects_of(leader, ReadIndexConfirmed)
    assert leader.last(ReplyFetch).response.round == 1
