"""The permission matrix: every request found by reflection, by every kind of caller, on every
listener.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from matrix_callers import (
    CLIENTS,
    INTERNAL,
    LISTENERS,
    TOKENS,
    Caller,
    Certificate,
    Method,
    Rpc,
    Token,
    callers,
    methods_of_build,
    rpcs_of,
)
from matrix_cases import ALLOWED, Case, Kind, Verdict, cases_of
from matrix_cluster import ROOT, Tip, World, running
from matrix_send import methods_of, send

from raftlog.errors import ErrorCode
from raftlog.node.security.permissions import QUORUM
from raftlog.transport.api import Conversation

ROLES = ("controller", "broker")
AT_ONCE = 4
ROOT_BY_TOKEN = Caller("root", Certificate.NONE, token=Token.GOOD, subject="admin")
IN_GATE = {
    "another CA's admin", "expired node", "literal", "admin", "denied-part", "broker",
    "removed voter", "token of without", "token signed with another key",
}  # fmt: skip
OF_GRPC = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("matrix")) as made:
        yield made


async def reflected(world: World) -> list[Rpc]:
    """Check that each listener reports by reflection only what it serves."""
    rpcs: list[Rpc] = []
    found: set[Method] = set()
    for role in ROLES:
        told = {
            listener: await methods_of(
                world, ROOT if listener.certificates else ROOT_BY_TOKEN, listener, role
            )
            for listener in LISTENERS
        }
        assert set(told[CLIENTS]) == set(told[TOKENS]) <= set(told[INTERNAL])
        rpcs += rpcs_of(role, told[INTERNAL])
        found.update(told[INTERNAL])
    assert {one for one in found if one.service not in OF_GRPC} == methods_of_build()
    assert {one.method for one in rpcs} == found, "a method has no case"
    return rpcs


class Played(NamedTuple):
    """``tips``: the end of the log after each group of cases."""

    outcomes: list[tuple[Case, Verdict]]
    tips: set[Tip]

    @property
    def differences(self) -> list[str]:
        return [
            f"{case}: the table says {case.verdict}, found {verdict}"
            for case, verdict in self.outcomes
            if verdict != case.verdict
        ]


async def sent(world: World, cases: Sequence[Case]) -> Played:
    """Send the requests of one caller on one listener concurrently, a few such groups at a time."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for one in cases:
        groups.setdefault((one.caller.name, one.listener.name), []).append(one)
    places = asyncio.Semaphore(AT_ONCE)
    played = Played([], set())

    async def send_group(some: list[Case]) -> None:
        async with places:
            played.outcomes.extend(await send(world, some))
            played.tips.add(await world.tip())

    await asyncio.gather(*(send_group(some) for some in groups.values()))
    return played


async def play(world: World, everybody: Sequence[Caller]) -> None:
    """Send the requests that are refused in whole or in part first, while nothing else writes."""
    cases = cases_of(everybody, await reflected(world), world.facts)
    before, tip = await world.settled(), await world.tip()
    of_refused = [one for one in cases if one.verdict.kind is not Kind.ALLOWED]
    refused = await sent(world, of_refused)
    assert refused.differences == []
    assert refused.tips == {tip}
    assert await world.settled() == before
    of_allowed = [one for one in cases if one.verdict.kind is Kind.ALLOWED]
    allowed = await sent(world, of_allowed)
    assert allowed.differences == []
    assert {(one.leader_id, one.epoch) for one in allowed.tips} == {(tip.leader_id, tip.epoch)}
    done = [case for case, _ in (*refused.outcomes, *allowed.outcomes)]
    assert sorted(map(str, done)) == sorted(map(str, cases)), "none is skipped"


def test_each_verdict_is_the_tables_and_a_refusal_changes_no_state_or_epoch(world: World) -> None:
    """Check some callers; the others are checked at night."""
    everybody = [one for one in callers(world.facts.nodes) if one.name in IN_GATE]
    assert {one.name for one in everybody} == IN_GATE
    asyncio.run(play(world, everybody))


async def test_certificate_of_a_removed_voter_ends_no_leadership(world: World) -> None:
    """It is still a node's, so its requests pass authorization: the quorum refuses them."""
    (removed,) = (one for one in callers(world.facts.nodes) if one.name == "removed voter")

    cases = [
        one._replace(verdict=Verdict(Kind.REFUSED, (ErrorCode.INVALID_REQUEST,)))
        for one in cases_of([removed], await reflected(world), world.facts)
        if one.rpc.conversation is Conversation.QUORUM and one.verdict == ALLOWED
    ]
    assert {case.rpc.kind for case in cases} == set(QUORUM)
    before = await world.settled()
    played = await sent(world, cases)
    assert [verdict for _, verdict in played.outcomes] == [ALLOWED] * len(cases)
    assert await world.settled() == before


@pytest.mark.nightly
def test_verdicts_of_every_caller_are_the_tables_and_refusals_change_nothing(world: World) -> None:
    everybody = callers(world.facts.nodes)
    asyncio.run(play(world, everybody))
