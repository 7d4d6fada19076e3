"""Scenarios with one fault each, and a quiet cluster."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tiers import nightly

from broker.partition import events as ev
from raftlog import batch
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import controller_request
from raftlog.clock import TOLERANCE_MS
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Cause
from raftlog.quorum import messages
from raftlog.quorum.follower import Follower
from raftlog.quorum.leader import Leader
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation import recovered_quorum, replaced_voter
from simulation.checks.api import BrokerView, Checker, CheckFailedError
from simulation.checks.suite import all_checkers
from simulation.flapping import flap
from simulation.mutants import configs
from simulation.mutants.configs import HOLDERS, RECOVERED
from simulation.mutants.edits import Edit, edited
from simulation.outcome import Outcome
from simulation.replaced_disk import RECORDS, race
from simulation.replaced_voter import CONFIG as REPLACED
from simulation.replaced_voter import run_story
from simulation.run import Swarm, run_swarm
from simulation.silent_leader import hang
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import START_OF_TIME_MS, host_context, run
from simulation.world import World


@pytest.mark.nightly
def test_recovered_quorum_continues_and_brokers_keep_their_records() -> None:
    found: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(6):
        outcome = run_swarm(seed, RECOVERED)
        assert outcome.failure is None, seed
        found.update(outcome.looked_at)
        faults.update(outcome.faults)
    for what in ("kept", "forgotten", "partitions", "verified", "elected"):
        assert found[f"Recovered.{what}"], what
    for what in ("", ":interrupted", ":old_token", ":successor"):
        assert faults[f"quorum_lost{what}"], what


def test_locks_of_an_abandoned_generation_guard_nothing() -> None:
    """Seed 8: an old guard meets the lock that has its key and its offset."""
    outcome = run_swarm(8, HOLDERS)
    assert outcome.failure is None
    for what in ("guarded", "taken_after_recovery", "confirmed", "expired"):
        assert outcome.looked_at[f"Held.{what}"], what


class Elections:
    """A world whose leader resigns; the next leader with its epoch and time."""

    def __init__(self, *next_leaders: str) -> None:
        self.services = {name: self._service(name) for name in ("c1", "c2")}
        self._next, self.resigned, self._at, self._epoch = list(next_leaders), 0, 0.0, 7
        self.services["c1"].node.controller_epoch = 7
        self.leads: str | None = "c1"
        self.network = SimpleNamespace(loop=SimpleNamespace(call_soon=self._soon))

    def _service(self, name: str) -> Any:
        return SimpleNamespace(
            replica=SimpleNamespace(resign=self._resign),
            quorum=SimpleNamespace(node_id=int(name[1:])),
            node=SimpleNamespace(controller_epoch=-1),
        )

    def _soon(self, call: Any, *arguments: Any, context: Any) -> None:
        call(*arguments)

    def _resign(self, reason: str) -> None:
        self.resigned, self._epoch = self.resigned + 1, self._epoch + 1
        self.leads = self._next.pop(0) if self._next else None
        if self.leads:
            self.services[self.leads].node.controller_epoch = self._epoch

    def now(self) -> float:
        return self._at

    def active(self) -> Any:
        return self.services[self.leads] if self.leads else None

    async def until(self, condition: Any, within_s: float, what: str) -> None:
        self._at += 1.0
        if not condition() or within_s <= 0:
            raise CheckFailedError(f"within {within_s:g} s it did not happen: {what}")


def succeeded(*next_leaders: str, within_s: float = 60.0) -> Elections:
    world: Any = Elections(*next_leaders)
    asyncio.run(recovered_quorum.another_leads(world, world.services["c1"], within_s))
    return world


def test_voter_with_the_longer_log_is_reelected_until_another_can_lead() -> None:
    """[Seeds 771994 and 775264 of an older build: of two voters one lacked three records.]"""
    assert succeeded("c2").resigned == 1
    world = succeeded("c1", "c1", "c2")
    assert (world.resigned, world.leads) == (3, "c2")


def test_recovery_fails_when_no_leader_or_no_other_leader_is_elected() -> None:
    with pytest.raises(CheckFailedError, match="another one leads"):
        succeeded()
    with pytest.raises(CheckFailedError, match="another one leads"):
        succeeded(*["c1"] * 100, within_s=20.0)


def test_checkers_of_the_next_generation_change_nothing() -> None:
    watched, alone = run_swarm(1, RECOVERED, all_checkers()), run_swarm(1, RECOVERED, [])
    assert watched.failure is None
    assert watched.digest == alone.digest


# --- The race of KIP-903 -------------------------------------------------------------------------


NO_CHECK = Edit(
    "controller.decisions.partitions.alter_partition:_ineligible",
    "if member.broker_epoch != broker.epoch and not (skip and member.broker_epoch =="
    " UNKNOWN_EPOCH):",
    "if False:",
)


@pytest.mark.parametrize("seed", range(3))
def test_late_proposal_of_an_ended_epoch_is_refused_and_nothing_is_lost(seed: int) -> None:
    found = race(seed, all_checkers())
    assert found.failure is None
    assert ErrorCode.INELIGIBLE_REPLICA.name in found.answers
    assert found.isr_after == (201,)
    assert found.leaders == [-1, 201], "nobody leads until the one comes back that has everything"
    assert len(found.acknowledged) == 2 * RECORDS
    assert found.lost == []


def test_acknowledged_records_are_lost_without_the_check() -> None:
    with edited([NO_CHECK]):
        found = race()
    assert found.failure is None
    assert ErrorCode.INELIGIBLE_REPLICA.name not in found.answers
    assert set(found.isr_after) == {201, 202}
    assert found.leaders[0] == 202, "the empty disk leads"
    assert len(found.lost) == 2 * RECORDS


def test_checkers_detect_the_committed_isr_without_the_check() -> None:
    with edited([NO_CHECK]):
        found = race(1, all_checkers())
    assert "I21" in str(found.failure) or "I24" in str(found.failure)


# --- Brokers whose wall clocks are years ahead ---------------------------------------------------


YEARS_MS = 10 * 365 * 86_400_000
CONFIG = SwarmConfig(voters=3, brokers=3, clients=1, data_per_s=20.0, reads_per_s=0.0)


class Stamps(Checker):
    """Records by how much timestamps are ahead, and what is dropped."""

    def __init__(self) -> None:
        self.ahead_ms: list[int] = []
        self.dropped: list[ev.AdvanceStart] = []

    def data_step(
        self, host: BrokerView, event: ev.Event, effects: Sequence[ev.Effect], now: float
    ) -> None:
        now_ms = START_OF_TIME_MS + round(self.world.now() * 1000)
        for effect in effects:
            if isinstance(effect, ev.AdvanceStart):
                self.dropped.append(effect)
            elif isinstance(effect, ev.Append):
                stamps = [one.timestamp_ms for one in batch.headers(effect.chunk)]
                self.ahead_ms += [stamp - now_ms for stamp in stamps]


def test_brokers_with_wrong_clocks_keep_all_records_and_stamp_them_with_the_quorums_time() -> None:
    """[A broker's clock was ahead once: everything committed in its partitions was dropped.]"""
    stamps = Stamps()

    async def main() -> None:
        world = Swarm(Outcome(7, CONFIG), [*all_checkers(), stamps])
        for host in world.fleet.hosts():
            host.start()
        await world.until(world.is_up, 30.0, "the cluster comes up")
        world.workload.begin()
        await asyncio.sleep(3.0)
        for member in world.members:
            member.wall_offset_ms = YEARS_MS
        await asyncio.sleep(5.0)
        for member in world.members:
            assert member.service is not None
            assert member.service.time.ahead_ms() == pytest.approx(YEARS_MS, abs=TOLERANCE_MS)
        world.finish()

    run(main())
    assert len(stamps.ahead_ms) > 50
    assert max(stamps.ahead_ms) <= 2 * TOLERANCE_MS
    assert stamps.dropped == []


# --- A broker whose disk hangs -------------------------------------------------------------------


HANG_TIMEOUT_S = CONFIG.session_timeout_ms / 1000
PROBATION_S = 10.0


def test_leaderships_leave_a_broker_with_a_hanging_disk_and_return() -> None:
    """It sends heartbeats throughout; without its own report it would continue to lead."""
    took: list[float] = []

    async def main() -> None:
        world = Swarm(Outcome(11, CONFIG), all_checkers())
        for host in world.fleet.hosts():
            host.start()
        await world.until(world.is_up, 30.0, "the cluster comes up")
        world.workload.begin()

        def leads(id_: int) -> int:
            return sum(one.leader == id_ for one in world.active_image().partitions.values())

        await world.until(
            lambda: any(leads(one.id) for one in world.members), 30.0, "partitions have leaders"
        )
        await asyncio.sleep(3.0)
        hung = max(world.members, key=lambda one: leads(one.id))
        assert leads(hung.id)
        assert hung.disk is not None
        hung.disk.hang()
        began = world.now()
        await world.until(lambda: not leads(hung.id), 30.0, "others lead its partitions")
        took.append(world.now() - began)
        registration = world.active_image().brokers[hung.id]
        assert (registration.fenced, registration.cause) == (True, Cause.DISK_HANGS)
        await asyncio.sleep(2 * PROBATION_S)
        assert world.active_image().brokers[hung.id].fenced, "it hangs still"
        world.network.loop.call_soon(hung.disk.resume, context=host_context(hung.name))
        await world.until(
            lambda: not world.active_image().brokers[hung.id].fenced, PROBATION_S, "it is back"
        )
        await asyncio.sleep(3.0)
        world.finish()
        assert world.watch.failure is None

    run(main())
    # A flush begins, the look at the disk each second, the heartbeat, the decision.
    assert took[0] < HANG_TIMEOUT_S + 2.5


# --- Dead voters and spares ----------------------------------------------------------------------


FIVE = replace(REPLACED, voters=5, observers=0)


@pytest.mark.parametrize(
    ("story", "config", "replaced"),
    [
        ("shrinking", FIVE, 0),
        ("between", REPLACED, 1),
        ("rolled", REPLACED, 0),
        ("replaced", REPLACED, 2),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_lost_quorum_scenario_passes(
    story: str, config: SwarmConfig, replaced: int, seed: int
) -> None:
    found = run_story(getattr(replaced_voter, story), config, seed, all_checkers())
    assert found.failure is None
    assert found.looked_at["Replacements.completed"] == replaced


def test_voters_are_replaced_under_faults() -> None:
    found = run_swarm(0, configs.REPLACED)
    assert found.failure is None
    assert found.looked_at["Replacements.completed"] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preferred_leader_leads_again_after_it_died(seed: int) -> None:
    config = replace(REPLACED, observers=0, replace_after_ms=0, preferred=seed)
    assert run_story(replaced_voter.preferred, config, seed, all_checkers()).failure is None


# --- No needless election ------------------------------------------------------------------------


SEEDS = 30


def needless_elections(seeds: range) -> list[str]:
    return [
        f"seed {seed}: {outcome.failure}"
        for seed in seeds
        for outcome, _ in [flap(seed)]
        if outcome.failure
    ]


@pytest.mark.nightly
def test_no_needless_election_happens() -> None:
    seen: Counter[str] = Counter()
    virtual_s, campaigns = 0.0, 0
    for seed in range(SEEDS):
        outcome, needless = flap(seed)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        seen += needless.seen
        virtual_s, campaigns = virtual_s + outcome.virtual_s, campaigns + needless.campaigns
    print(f"{virtual_s:.0f} s simulated, {campaigns} campaigns came to nothing: {dict(seen)}")
    assert set(seen) == {
        "cut", "pause", "reset", "kill", "long pause", "isolation", "one way", "away from the leader", "flapping",
    }  # fmt: skip
    assert campaigns > SEEDS, "those cast out have asked for votes"


@pytest.mark.nightly
def test_same_seed_produces_the_same_run() -> None:
    (one, _), (again, _) = flap(3), flap(3)
    assert one.digest == again.digest
    assert one.digest != flap(4)[0].digest


def test_few_runs_have_no_needless_election() -> None:
    assert needless_elections(range(2)) == []


@pytest.mark.nightly
def test_wrongly_granted_pre_votes_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "grants_pre_vote", lambda self: True)
    assert needless_elections(range(10))


@pytest.mark.nightly
def test_leader_that_counts_silent_voters_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Leader.on_tick

    def on_tick(self: Leader) -> None:
        if self.progress.silent_voters(self.node.now - 1.5):
            self._resign("a voter is silent")
        else:
            honest(self)

    monkeypatch.setattr(Leader, "on_tick", on_tick)
    assert needless_elections(range(10))


SILENT_LEADER_SEEDS = 4, 12
"""Seeds in the gate, and at night."""
FORGETFUL_SEED = 20
"""Notices voters that forget who has asked them, which one in eight does."""


def late(seeds: range) -> tuple[int, list[str]]:
    """Return the numbers of replaced leaders and late ones. Raises a run's failure."""
    count, found = 0, []
    for seed in seeds:
        outcome, replaced = hang(seed)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        count += len(replaced.took_s)
        found += [f"seed {seed}: {one}" for one in replaced.late]
    return count, found


@pytest.mark.parametrize("seeds", [SILENT_LEADER_SEEDS[0], nightly(SILENT_LEADER_SEEDS[1])])
def test_every_silent_leader_is_replaced_in_time(seeds: int) -> None:
    count, found = late(range(seeds))
    assert found == []
    assert count > 3 * seeds


def test_voters_forgetting_a_requester_cause_elections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_note_asker", lambda *_, **__: None)
    _, found = late(range(FORGETFUL_SEED, FORGETFUL_SEED + 1))
    assert found


# --- Visible writes in a quiet cluster -----------------------------------------------------------


QUIET = SwarmConfig(voters=1, brokers=3, clients=0, session_timeout_ms=9000)
IDLE_S = 0.3
AT_ONCE_S = 0.1
"""Far below the time that a fetch waits, and that lies between two heartbeats."""


def numbered(client_id: int, generation: int, acks: common_pb2.Acks) -> pb.ControllerRequest:
    config = pb.AlterableConfig(name="num.io.threads", value="9")
    resource = pb.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    return controller_request(
        pb.IncrementalAlterConfigsRequest(resources=[resource]),
        acks=acks,
        client=common_pb2.ClientIdentity(client_id=client_id, sequence=1, generation=generation),
    )


async def retried(operator: ControllerClient) -> float:
    opened = await operator.call(pb.OpenClientRequest(name="c"))
    client = opened.open_client.client_id, opened.write.token.generation
    await operator.call(numbered(*client, common_pb2.ACKS_COMMITTED))
    await asyncio.sleep(IDLE_S)
    begun = asyncio.get_running_loop().time()
    again = await operator.call(numbered(*client, common_pb2.ACKS_VISIBLE), timeout_s=10.0)
    assert again.write.duplicate
    assert again.write.reached == common_pb2.ACKS_VISIBLE
    return asyncio.get_running_loop().time() - begun


async def written_one_by_one(operator: ControllerClient) -> float:
    """Return the longest time that a visible write took."""
    longest_s = 0.0
    for number in range(5):
        await asyncio.sleep(IDLE_S)
        begun = asyncio.get_running_loop().time()
        body = pb.OpenClientRequest(name=f"c{number}")
        written = await operator.call(
            controller_request(body, acks=common_pb2.ACKS_VISIBLE), timeout_s=10.0
        )
        assert written.write.reached == common_pb2.ACKS_VISIBLE
        longest_s = max(longest_s, asyncio.get_running_loop().time() - begun)
    return longest_s


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("writes", [retried, written_one_by_one])
def test_visible_write_is_answered_at_once_in_a_quiet_cluster(
    writes: Callable[[ControllerClient], Awaitable[float]], brokers: int
) -> None:
    config = replace(QUIET, brokers=brokers)

    async def main() -> float:
        world = World(Outcome(7, config), all_checkers())
        for host in world.fleet.hosts():
            host.start()
        await world.until(world.is_up, 30.0, "the test goes on")
        await asyncio.sleep(1.0)
        transport = world.network.transport_for("client")
        operator = ControllerClient(transport, world.fleet.endpoints, rng=random.Random(1))
        try:
            return await writes(operator)
        finally:
            operator.close()
            world.finish()

    assert run(main()) < AT_ONCE_S
