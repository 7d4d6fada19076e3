"""A stranger attacks a cluster that believes everybody, where it does damage, and one that asks who
it is, where it does none. What became of each attack is printed as a table (``pytest -s``).
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from attacks import (
    ATTACKS_OF_CLIENTS,
    ATTACKS_ON_BROKERS,
    ATTACKS_ON_QUORUM,
    Attack,
    Stage,
    deposed,
    followers_of,
    replicas_of,
    vote_for_broker,
)
from cluster_kit import until_true
from siege import Guarded, Intruder, Operator, Siege, State, asking, believing
from stranger import Answer, Stranger

from raftlog.errors import ErrorCode

ATTACKS = (*ATTACKS_OF_CLIENTS, *ATTACKS_ON_BROKERS, *ATTACKS_ON_QUORUM)
DAMAGE_S, NO_DAMAGE_S = 10.0, 0.5
"""So long damage is waited for, where there is some and where there is none."""
FOR_BROKER = "vote for a broker, nobody leads"
COLUMNS = ("before", "no certificate", "a client's", "another node's")


class Table(defaultdict[str, dict[str, str]]):
    """Attack -> column -> what became of it."""

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("attack", *COLUMNS)]
        rows += [(name, *(said.get(one, "-") for one in COLUMNS)) for name, said in self.items()]
        widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
        return "\n".join(
            " | ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    made = Table(dict)
    yield made
    print(f"\n\n{made}")


@pytest.fixture(scope="module")
def open_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Siege, State]]:
    with believing(tmp_path_factory.mktemp("believing") / "c") as siege:
        yield siege, asyncio.run(_ready(siege))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guarded, State]]:
    with asking(tmp_path_factory.mktemp("asking")) as made:
        yield made, asyncio.run(_ready(made.siege))


async def _ready(siege: Siege) -> State:
    """With its topic, and all in sync."""
    async with siege.operator() as operator:
        await operator.mend(await operator.look())
        return await operator.look()


@pytest.mark.nightly
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_unauthenticated_attack_does_damage(
    open_: tuple[Siege, State], table: Table, attack: Attack
) -> None:
    """Otherwise it would prove nothing that there is none elsewhere."""
    siege, at_first = open_
    stranger, found = Stranger(), list[str]()
    async with siege.operator() as operator:
        await operator.mend(at_first)
        async with attack.scene(siege, operator):
            before = await operator.look()
            answers = await attack.send(Stage(siege, operator, stranger, before))

            async def damaged() -> bool:
                said = attack.damage(before, await operator.look(stranger))
                found.extend([said] if said else [])
                return bool(said)

            with suppress(AssertionError):
                await until_true(damaged, "damage", NO_DAMAGE_S if attack.anyway else DAMAGE_S)
    await stranger.close()
    if attack.anyway:
        assert all(answer.code for answer in answers)
        table[attack.name]["before"] = f"refused without identity, too: {attack.anyway}"
        assert not found
    else:
        assert found, answers
        table[attack.name]["before"] = found[0]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_attack_does_no_damage_when_nodes_authenticate(
    guarded: tuple[Guarded, State], table: Table, attack: Attack
) -> None:
    world, _ = guarded
    siege = world.siege
    async with siege.operator() as operator, attack.scene(siege, operator):
        before = await operator.look()
        other = world.nodes[followers_of(siege, before)[1].node_id]
        for intruder in world.without_certificate():
            for answer in await _attack(operator, siege, before, intruder, attack):
                assert answer.message is None, (intruder.name, answer)
                assert answer.status.name == "UNAVAILABLE", (intruder.name, answer)
        table[attack.name]["no certificate"] = "no handshake"
        for column, files in (("a client's", world.client), ("another node's", other)):
            if column == "another node's" and attack.of_nodes:
                continue
            said = await _refused(operator, world, before, world.thief_of(files), attack)
            table[attack.name][column] = said
        after = await operator.look()
        assert attack.damage(before, after) is None
        if attack.of_nodes:
            answers = await _attack(operator, siege, before, world.thief_of(other), attack)
            assert not any(answer.code for answer in answers), answers
            table[attack.name]["another node's"] = f"may: {attack.of_nodes}"


@pytest.mark.nightly
async def test_broker_that_is_believed_is_voted_for_while_nobody_leads(
    open_: tuple[Siege, State], table: Table
) -> None:
    """The voters take it for one of a newer set."""
    siege, at_first = open_
    stranger, voted = Stranger(), set[int]()
    async with siege.operator() as operator:
        await operator.mend(at_first)
        stage = Stage(siege, operator, stranger, await operator.look())
        with siege.pausing(stage.leader.node_id):

            async def granted() -> bool:
                answers = await vote_for_broker(stage, replicas_of(at_first)[1])
                responses = [one.message.vote_response for one in answers]
                voted.update(one.voter_id for one in responses if one.vote_granted)
                return bool(voted)

            await until_true(granted, "a vote for a broker", 30)
    await stranger.close()
    table[FOR_BROKER]["before"] = f"node {min(voted)} votes for a broker"


async def test_brokers_own_certificate_has_no_part_in_the_quorum(
    guarded: tuple[Guarded, State], table: Table
) -> None:
    world, at_first = guarded
    broker_id = replicas_of(at_first)[1]

    async def send(stage: Stage) -> Sequence[Answer]:
        return await vote_for_broker(stage, broker_id)

    attack = Attack(FOR_BROKER, send, deposed)
    async with world.siege.operator() as operator:
        thief = world.thief_of(world.nodes[broker_id])
        said = await _refused(operator, world, await operator.look(), thief, attack)
    table[FOR_BROKER]["another node's"] = f"{said} (the broker's own)"


async def test_all_is_as_it_was(guarded: tuple[Guarded, State]) -> None:
    """And each request under another's name was counted."""
    world, at_first = guarded
    async with world.siege.operator() as operator:
        assert _lasting(await operator.look()) == _lasting(at_first)
    assert world.counted() == len(world.forged)


async def _attack(
    operator: Operator, siege: Siege, before: State, intruder: Intruder, attack: Attack
) -> list[Answer]:
    stranger = Stranger(intruder.credentials)
    try:
        return list(await attack.send(Stage(siege, operator, stranger, before)))
    finally:
        await stranger.close()
        assert attack.of_nodes or not stranger.loot


async def _refused(
    operator: Operator, world: Guarded, before: State, intruder: Intruder, attack: Attack
) -> str:
    """All of it, with the error that says why, and with a line in the audit log for each request;
    the error.
    """
    audited = world.refusals(intruder.principal)
    answers = await _attack(operator, world.siege, before, intruder, attack)
    assert {answer.code for answer in answers} == {attack.refusal}, (intruder.name, answers)

    async def told() -> bool:
        # What a broker has handed on has two.
        return world.refusals(intruder.principal) >= audited + len(answers)

    await until_true(told, f"{len(answers)} lines of {intruder.principal} in the audit logs")
    forged = len(answers) if attack.forged is None else attack.forged
    world.forged.extend([attack.name] * forged)
    return ErrorCode(attack.refusal).name


def _lasting(state: State) -> object:
    """What no attack may change, and nothing else changes."""
    partition = state.partition
    assert partition is not None
    return (
        state.leader.node_id,
        state.epoch,
        state.voters,
        {one.id: (one.epoch, one.endpoint, one.active) for one in state.image.brokers.values()},
        (partition.leader, partition.isr, partition.partition_epoch),
        sorted(map(str, state.image.acls.values())),
    )
