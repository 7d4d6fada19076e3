"""Log lines and readiness of a node without a leader."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from quorum_world import QuorumWorld
from scenarios import simulated
from structlog.testing import capture_logs

from controller.service.catch_up import CLAIM_MAX_S, FAR_BEHIND_RECORDS, CatchUp, ClaimWatch
from controller.service.node import Directory
from controller.service.status import AGAIN_S, FIRST_S, OutageWatch, outage_text, ready
from controller.settings import ControllerSettings
from raftlog.endpoint import Voter
from raftlog.node.replica.peers import PeerReach
from raftlog.quorum.core import QuorumDescription

VOTERS = tuple(Voter(one, f"d{one}", f"127.0.0.1:{9090 + one}") for one in (1, 2, 3))


def described(role: str, voters: tuple[Voter, ...] = VOTERS) -> QuorumDescription:
    return QuorumDescription(role, 36, 1, -1, 0, 9, 9, 9, 0, (), (), voters)


@pytest.mark.parametrize(
    ("peers", "text"),
    [
        (
            [PeerReach(1, "Connection refused", 12_340), PeerReach(3, "no route", 500)],
            "no leader is known in epoch 36: 1 of 3 voters can be reached, 2 are needed;"
            " node 1 for 12.3 s: Connection refused; node 3 for 0.5 s: no route",
        ),
        (
            [PeerReach(1, "Connection refused", 40), PeerReach(3)],
            "no leader is known in epoch 36: 2 of 3 voters can be reached, which is enough for an"
            " election; node 1 for 0.0 s: Connection refused",
        ),
        (
            [PeerReach(1), PeerReach(3)],
            "no leader is known in epoch 36: 3 of 3 voters can be reached, which is enough for an"
            " election",
        ),
    ],
)
def test_outage_is_described_in_one_sentence(peers: list[PeerReach], text: str) -> None:
    assert outage_text(described("prospective"), 2, peers) == text


def test_starting_a_new_quorum_requires_all_voters() -> None:
    """[2 of 3 were reachable, "which is enough for an election", and none was ever held.]"""
    seen = replace(described("prospective"), votes_needed=3)
    assert outage_text(seen, 2, [PeerReach(1), PeerReach(3, "no route", 500)]) == (
        "no leader is known in epoch 36: 2 of 3 voters can be reached, 3 are needed to found a"
        " quorum: a configured voter set begins with the votes of all; node 3 for 0.5 s: no route"
    )


def test_outage_of_a_node_without_voters_is_described() -> None:
    assert "knows no voters" in outage_text(described("unattached", ()), 2, [])


def watched() -> tuple[OutageWatch, Any]:
    directory = Directory(2, VOTERS)
    core = SimpleNamespace(role="prospective", hears=False)
    node: Any = SimpleNamespace(
        directory=directory,
        leader_id=1,
        quorum=SimpleNamespace(node_id=2),
        replica=SimpleNamespace(
            core=core,
            describe=lambda now: replace(described(core.role), hears_leader=core.hears),
            peer_reach=lambda: (PeerReach(1, "Connection refused", 10), PeerReach(3)),
        ),
    )
    return OutageWatch(node), node


def test_outage_is_logged_when_an_election_is_overdue_and_at_its_end() -> None:
    watch, node = watched()
    with capture_logs() as lines:
        watch.tick(10.0)
        assert not lines, "an election takes less"
        assert "node 1 for 0.0 s: Connection refused" in node.directory.not_controller().message
        watch.tick(10.0 + FIRST_S)
        watch.tick(10.1 + FIRST_S)
        assert [(line["event"], line["log_level"]) for line in lines] == [("no leader", "warning")]
        assert "2 of 3 voters can be reached" in lines[0]["reason"]
        watch.tick(10.0 + FIRST_S + AGAIN_S)
        assert len(lines) == 2
        node.replica.core.role = "follower"
        watch.tick(49.0)
        assert len(lines) == 2, "after a lost pre-vote it follows one that answers nothing"
        assert "2 of 3 voters" in node.directory.outage
        node.replica.core.hears = True
        watch.tick(50.0)
        watch.tick(50.1)
    assert lines[2:] == [
        {"event": "a leader is known again", "after_ms": 40_000, "log_level": "info"}
    ]
    assert node.directory.outage == ""
    assert "reached" not in node.directory.not_controller().message


def test_short_election_logs_nothing() -> None:
    watch, node = watched()
    with capture_logs() as lines:
        watch.tick(10.0)
        node.replica.core.role, node.leader_id = "leader", 2
        watch.tick(10.2)
    assert not lines
    assert node.directory.outage == ""


@pytest.mark.parametrize("leads", [True, False])
@simulated
async def test_controller_without_a_quorum_is_not_ready_despite_open_links(leads: bool) -> None:
    """[Between two pre-votes a voter followed a leader without hearing from it, and was ready.]"""
    world = QuorumWorld(voters=3)
    await world.write("a")
    leader = await world.active()
    cut = leader if leads else next(one for one in world.up() if one is not leader)
    await world.until(lambda: all(ready(one.service)[0] for one in world.up()))
    paused = [one for one in world.up() if one is not cut]
    for other in paused:
        world.network.pause(other.name)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.sleep(cut.service.node.quorum.fetch_timeout_ms / 1000 + 0.3)
    while loop.time() < begun + 20:
        is_ready, why = ready(cut.service)
        assert not is_ready, (loop.time() - begun, why)
        await asyncio.sleep(0.05)
    for other in paused:
        world.network.resume(other.name)
    await world.until(lambda: all(ready(one.service)[0] for one in world.up()))


# --- A standby that is far behind lets the new leader claim first, and never waits for long ------


FAR = FAR_BEHIND_RECORDS


def test_claim_watch_delays_long_work_while_a_new_leader_may_be_claiming() -> None:
    watch = ClaimWatch()
    assert not watch.waits(FAR, 5.0)
    watch.leader_changed(elected=True, now=5.0)
    for _ in range(2):
        watch.committed(100)
        assert (watch.waits(FAR, 5.0), watch.waits(FAR - 1, 5.0)) == (True, False)
    assert watch.waits(FAR, 5.0 + CLAIM_MAX_S - 0.01)
    assert not watch.waits(FAR, 5.0 + CLAIM_MAX_S)
    watch.committed(101)
    assert not watch.waits(FAR, 5.1), "it decides"
    watch.leader_changed(elected=False, now=6.0)
    assert not watch.waits(FAR, 6.0)


class Standby:
    """A node with its own clock, which records what it folds."""

    def __init__(self) -> None:
        self.now = 5.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.woken = 0
        self.folded: list[int] = []
        self.node: Any = SimpleNamespace(
            now=lambda: self.now,
            load=None,
            leadership=None,
            closed=False,
            committed_end=-1,
            committed=SimpleNamespace(offset=-1, advance=self._advance),
            replica=SimpleNamespace(last_epoch=1),
        )
        self.catch_up = CatchUp(
            cast(Any, self.node),
            ControllerSettings(),
            SimpleNamespace(),  # type: ignore[arg-type]
            random.Random(1),
            send=lambda _: None,
            claimed=lambda: None,
            wake=self._wake,
            call_later=self._call_later,
        )

    def _advance(self, _replica: object, end: int) -> bool:
        self.node.committed.offset = end - 1
        self.folded.append(end)
        return True

    def _wake(self) -> None:
        self.woken += 1

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay_s, callback))
        return SimpleNamespace(cancel=lambda: None)

    def committed(self, end: int) -> None:
        self.node.committed_end = end
        self.catch_up.fold_soon()

    def run_until(self, at: float) -> None:
        while self.timers and self.timers[0][0] <= at:
            self.now, callback = self.timers.pop(0)
            woken = self.woken
            callback()
            if self.woken > woken:
                self.catch_up.step()
        self.now = at


@pytest.mark.parametrize(
    ("last_epoch", "decides", "folds_at"),
    [(1, False, 5.0 + CLAIM_MAX_S), (1, True, 5.15), (7, False, 5.0)],
    ids=["leader's time is over", "leader decides", "leader's records are known"],
)
def test_standby_with_a_long_log_lets_the_leader_claim_first(
    last_epoch: int, decides: bool, folds_at: float
) -> None:
    standby = Standby()
    standby.node.replica.last_epoch = last_epoch
    standby.catch_up.leader_changed(2, 7)
    standby.committed(FAR)
    standby.run_until(folds_at - 0.05)
    assert standby.folded == []
    if decides:
        standby.committed(FAR + 1)
    standby.run_until(folds_at + 0.05)
    assert standby.folded == [FAR + decides]
