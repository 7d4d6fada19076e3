"""Votes that are stored ahead: what the shell writes, in which order, and when it says so."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from unittest.mock import Mock

import pytest
from simulated import simulated
from test_shell_rules import FakeLink, Leads

from raftlog.errors import StorageError
from raftlog.quorum import events
from raftlog.replica.local_log import LocalLog
from raftlog.replica.replica import SAVE_LEADER_AFTER_S
from raftlog.storage.api import NodeIdentity, VoteState
from simulation.twins.disk import SimDisk
from simulation.twins.loop import run

AHEAD = VoteState(epoch=6, voted_id=2, voted_directory_id="dir-2")


def prepared(shell: Leads) -> list[int]:
    return [step.number for step in shell.steps if isinstance(step, events.VotePrepared)]


def test_it_holds_nothing_back_and_is_reported_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link: Any = FakeLink()

    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(events.PrepareVote(AHEAD, 7), events.Reply(link, "said at once"))
        assert link.sent == ["said at once"]
        assert [vote for vote, _ in shell.votes] == [AHEAD]
        assert prepared(shell) == []
        shell.persist()
        assert prepared(shell) == [7]

    run(main())


@pytest.mark.parametrize("saved_before", [True, False])
def test_who_leads_is_not_saved_behind_it_unless_that_is_newer(
    saved_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[The vote is told, who leads the epoch before is saved over it, and a crash forgets the
    vote]
    """
    led = events.SaveLeader(VoteState(epoch=5, leader_id=2))

    async def main() -> None:
        shell = Leads(monkeypatch)
        ahead = events.PrepareVote(AHEAD, 7)
        shell.make(*((led, ahead) if saved_before else (ahead, led)))
        await asyncio.sleep(2 * SAVE_LEADER_AFTER_S)
        written = [vote for vote, _ in shell.votes]
        assert written == ([AHEAD] if saved_before else [AHEAD, led.vote])

    run(main())


def test_a_vote_that_is_being_stored_ahead_is_not_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow disk: the vote is given, and waits only for the rest of the write."""
    link: Any = FakeLink()

    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(events.PrepareVote(AHEAD, 7))
        shell.make(events.PersistVote(AHEAD), events.Reply(link, "granted"))
        await asyncio.sleep(0)
        assert (len(shell.votes), link.sent) == (1, [])
        shell.persist()
        assert link.sent == ["granted"]
        assert shell.steps[-1] == events.VotePersisted(AHEAD)
        assert prepared(shell) == []

    run(main())


@pytest.mark.parametrize("between", ["another vote", "who leads"])
def test_one_behind_which_another_was_written_does_not_stand_for_a_vote(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the disk would have the other one when the vote is told."""
    link: Any = FakeLink()

    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(events.PrepareVote(AHEAD, 7))
        if between == "another vote":
            shell.make(events.PersistVote(VoteState(6)))
        else:
            shell.make(events.SaveLeader(VoteState(5, leader_id=2)))
        await asyncio.sleep(2 * SAVE_LEADER_AFTER_S)
        shell.make(events.PersistVote(AHEAD), events.Reply(link, "granted"))
        await asyncio.sleep(0)
        shell.persist()
        assert link.sent == []
        shell.persist()
        await asyncio.sleep(0)
        assert link.sent == []
        shell.persist()
        assert link.sent == ["granted"]

    run(main())


def test_it_does_not_overtake_a_vote_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(events.PersistVote(VoteState(5)), events.PrepareVote(AHEAD, 7))
        await asyncio.sleep(0)
        assert [vote for vote, _ in shell.votes] == [VoteState(5)]
        shell.persist()
        await asyncio.sleep(0)
        assert (shell.votes, prepared(shell)) == ([], [])

    run(main())


@pytest.mark.parametrize("given", [True, False])
def test_a_disk_that_fails_at_it_stops_the_node(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = FakeLink()

    async def main() -> None:
        shell = Leads(monkeypatch)
        shell.make(events.PrepareVote(AHEAD, 7))
        if given:
            shell.make(events.PersistVote(AHEAD), events.Reply(link, "granted"))
            await asyncio.sleep(0)
        shell.votes.pop(0)[1](StorageError("no"))
        assert [name for name, _ in shell.listener.calls][-1] == "failed"
        assert link.sent == []

    run(main())


@simulated
async def test_a_flush_that_is_put_off_is_done_by_the_next_one_or_in_time() -> None:
    """[The first record of an epoch is synced alone, and the writes that follow it again]"""
    store = SimDisk(NodeIdentity("c", 1, "dir-1"), random.Random(1)).open()
    store.recover()
    flushes = Mock()
    store.flush = flushes  # type: ignore[method-assign]
    log = LocalLog(store, step=Mock(), fail=Mock())
    log.flush_soon(inline=True, within_s=0.002)
    await asyncio.sleep(0)
    assert not flushes.called
    log.flush_soon(inline=False)
    await asyncio.sleep(0)
    assert flushes.call_count == 1
    await asyncio.sleep(0.01)
    assert flushes.call_count == 1
    log.flush_soon(inline=True, within_s=0.002)
    await asyncio.sleep(0.0021)
    assert flushes.call_count == 2
