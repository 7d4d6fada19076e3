"""Epoch index, log state, voter set, progress, rounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.errors import ConfigError
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.quorum.config import Voter
from raftlog.quorum.events import LogSpan
from raftlog.quorum.leader import MAX_OBSERVERS, OBSERVER_FORGOTTEN_AFTER_S, Progress
from raftlog.quorum.log_state import EpochIndex, LogEnds, LogState
from raftlog.quorum.voters import VoterSet


def voter_set(count: int, *, known: bool = True) -> VoterSet:
    return VoterSet(
        tuple(Voter(i, f"h{i}:1", f"dir{i}" if known else "") for i in range(count, 0, -1))
    )


def test_epoch_0_of_a_partition_is_an_ordinary_epoch() -> None:
    log = LogEnds(0, 0, ())
    log.append(LogSpan(0, 2, ((0, 0),), b"", 0))
    assert log.epochs.entries == ((0, 0),)
    assert log.divergence(2, 0) is None
    assert (log.epochs.last_epoch, log.epochs.last_start) == (0, 0)
    log.truncate(0)
    assert (log.epochs.last_epoch, log.epochs.last_start) == (0, -1)


def test_epochs_never_decrease() -> None:
    index = EpochIndex([(2, 10)])
    index.append(2, 12)
    assert index.entries == ((2, 10),)
    with pytest.raises(ValueError, match="epoch 1 at 13 after epoch 2 at 10"):
        index.append(1, 13)
    with pytest.raises(ValueError, match="epoch 3 at 10"):
        index.append(3, 10)


LOGS = st.lists(st.integers(1, 5), max_size=12).map(sorted)


def log_of(epochs: list[int]) -> LogState:
    runs = tuple((e, i) for i, e in enumerate(epochs) if i == 0 or epochs[i - 1] != e)
    return LogState(RecoveredLog(VoteState(), 0, len(epochs), runs))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(LOGS, LOGS)
def test_divergence_ends_at_the_longest_common_prefix(
    leader_epochs: list[int], follower_epochs: list[int]
) -> None:
    """Equal (offset, epoch) implies equal prefixes. Truncation ends at the common prefix."""
    leader, follower = log_of(leader_epochs), log_of(follower_epochs)
    # A record is named by its epoch and where that epoch began: epochs that begin elsewhere would
    # be another leader's.
    common = 0
    while (
        common < min(leader.end, follower.end) and leader_epochs[common] == follower_epochs[common]
    ):
        common += 1
    matches = all(
        leader_epochs[i] != follower_epochs[i] for i in range(common, min(leader.end, follower.end))
    )
    rounds = 0
    while (hint := leader.divergence(follower.end, follower.last_epoch)) is not None:
        target = min(hint[1], follower.end_offset_for_epoch(hint[0])[1])
        assert target < follower.end, "every round drops something"
        follower.truncate(target)
        rounds += 1
    assert rounds <= 6
    if matches and not set(leader_epochs[common:]) & set(follower_epochs[common:]):
        assert follower.end <= common
        assert follower.epochs.entries == log_of(leader_epochs[: follower.end]).epochs.entries


@pytest.mark.parametrize(
    ("base", "end", "epochs", "good"),
    [
        (3, 5, ((2, 3),), True),
        (3, 6, ((2, 3), (4, 5)), True),
        (2, 5, ((2, 2),), False),  # overlaps
        (4, 5, ((2, 4),), False),  # leaves a gap
        (3, 3, ((2, 3),), False),  # empty
        (3, 5, (), False),
        (3, 5, ((1, 3),), False),  # an epoch below the log's
        (3, 5, ((5, 3),), False),  # an epoch above the node's
        (3, 5, ((4, 3), (2, 4)), False),
        (3, 5, ((2, 3), (4, 5)), False),  # a run beyond the end
        (3, 5, ((2, 4),), False),  # the first run begins late
        (3, 5, ((2, 3), (4, 3)), False),
    ],
)
def test_span_must_continue_the_log(
    base: int, end: int, epochs: tuple[tuple[int, int], ...], good: bool
) -> None:
    assert log_of([1, 1, 2]).accepts(LogSpan(base, end, epochs, b"", 0), max_epoch=4) is good


def test_voter_set_counts_majorities() -> None:
    voters = voter_set(4)
    assert voters.ids == (1, 2, 3, 4)
    assert (voters.majority, voter_set(1).majority, voter_set(5).majority) == (3, 1, 3)
    assert voters.includes(2, "dir2")
    assert not voters.includes(2, "other")
    assert voter_set(2, known=False).includes(2, "other")
    assert not voters.includes(9, "")
    assert len(VoterSet(())) == 0
    with pytest.raises(ConfigError, match="names node 1 more than once"):
        VoterSet((Voter(1, "a:1"), Voter(1, "b:1")))
    with pytest.raises(ConfigError, match="negative node id -1"):
        VoterSet((Voter(-1, "a:1"),))


def test_replica_is_caught_up_at_the_fetch_that_reaches_the_leader_end() -> None:
    replica = Progress(voter_set(3), 1, 0.0).heard_from(2, "dir2")
    replica.acknowledge(3, 5, 1.0)
    seen: list[float | None] = [replica.caught_up_at]
    for end, leader_end, now in ((5, 8, 2.0), (8, 8, 3.0)):
        replica.acknowledge(end, leader_end, now)
        seen.append(replica.caught_up_at)
    assert seen == [None, 1.0, 3.0], "at 2.0 it has what the leader had at the Fetch before"


def test_preferred_candidates_are_ordered_by_offset() -> None:
    progress = Progress(voter_set(4), 1, 0.0)
    progress.heard_from(4, "dir4").acknowledge(9, 9, 1.0)
    progress.heard_from(2, "dir2").acknowledge(7, 9, 1.0)
    assert progress.preferred_candidates() == (4, 2, 3)


def test_observers_are_bounded_and_forgotten() -> None:
    progress = Progress(voter_set(3), 1, 0.0)
    for i in range(MAX_OBSERVERS + 5):
        progress.heard_from(100 + i, "d").acknowledge(0, 0, float(i))
    assert len(progress.observers) == MAX_OBSERVERS
    assert (100, "d") not in progress.observers
    progress.forget_silent_observers(OBSERVER_FORGOTTEN_AFTER_S + 10)
    assert min(progress.observers) == (111, "d")
