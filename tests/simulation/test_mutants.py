"""The simulated cluster notices every rule that is broken on purpose, and an edit that fits no more
is an error.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tiers import in_gate

from raftlog.endpoint import Voter
from raftlog.quorum.leader import Progress
from raftlog.quorum.voters import VoterSet
from simulation.mutants import configs, hunt
from simulation.mutants.edits import Edit, StaleMutantError, edited, find_function
from simulation.mutants.layout import find_spans, put
from simulation.mutants.mutant import BrokenMutantError, Killed, Mutant, Survived, run_mutant
from simulation.mutants.registry import MUTANTS
from simulation.world import run_swarm

GATE = (
    "acknowledge-before-fsync", "commit-by-minority", "lao-ignores-slowest", "repeatable-from-tip", "strict-without-lease",
    "serves-while-fenced", "duplicate-not-looked-for", "stale-epoch-joins-with-data", "snapshot-without-clients",
    "recovery-keeps-generation", "raised-beside-old-brokers", "cursors-ignored", "read-checked-on-arrival",
    "condition-not-compared", "new-leader-ends-leases",
)  # fmt: skip
"""One of each promise: of durability, majorities, LAO, reads at it, strict reads, fencing, exactly
once, ISRs and their epochs, snapshots, recoveries, features, exports, rights, conditions and leases."""
GATE_CONFIGS = ("QUIET", "BROKERS")
CONFIGS = (
    "ELECTIONS", "LATE", "QUIET", "BROKERS", "DEPOSED", "SLOW", "TWINS", "FLAPPING", "VOTERS", "ASKED",
    "ANSWERED", "OVERTAKEN", "DIVERGED", "EVICTED", "HASTY", "REMOVED", "REPLICAS", "MOVING", "UNFENCING", "SNAPSHOTS",
    "PARTS", "TRANSFERS", "EXPORTS", "LIVES", "SILENCED", "DYING", "REFUSED", "LEAVES", "ROLLED", "DATA",
    "DATA_DISKS", "DATA_LATE", "DATA_TWINS", "DATA_UNKNOWN", "LED", "STRICT", "OPERATED", "MAPPED", "MOVED",
    "STEPS", "LOW", "BUSY", "RECOVERED", "BUILDS", "RIGHTS", "RIGHTS_LATE", "RIGHTS_PENDING", "WATCHED",
    "KEEPERS", "KEPT", "STALLED", "OUTLIVED",
)  # fmt: skip
MAJORITY = Edit(
    "raftlog.quorum.leader:Progress.majority_offset", "offsets[-self._majority]", "offsets[-1]"
)


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """All hunts that are asked for are begun at once; each test waits for its own."""
    asked = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    mutants = [MUTANTS[params["mutant"]] for params in asked if "mutant" in params]
    with ThreadPoolExecutor(2) as made:
        yield {
            mutant.name: made.submit(hunt.hunt_one, mutant, mutant.known, 1) for mutant in mutants
        }


@pytest.mark.parametrize("mutant", in_gate(MUTANTS, GATE))
def test_a_mutant_is_killed_by_the_seed_that_is_known_to_kill_it(
    pool: dict[str, Future[Any]], mutant: str
) -> None:
    found = pool[mutant].result()
    assert isinstance(found, Killed), (
        "known to be killed by this seed: find out what has become blind, or find another seed"
    )


def test_the_edits_of_all_mutants_fit() -> None:
    """The gate hunts a few. What became stale of the others would be seen in the night."""
    for mutant in MUTANTS.values():
        with edited(mutant.edits):
            pass


@pytest.mark.parametrize("name", in_gate(CONFIGS, GATE_CONFIGS))
def test_without_an_edit_nothing_fails(name: str) -> None:
    for seed in range(3):
        assert run_swarm(seed, getattr(configs, name)).failure is None


def offset_of_a_majority() -> int:
    progress = Progress(VoterSet(tuple(Voter(i, f"c{i}:1") for i in (1, 2, 3))), 1, 0.0)
    progress.voters[2].end_offset, progress.voters[3].end_offset = 7, 3
    return progress.majority_offset(5)


def test_an_edit_is_in_force_inside_and_nowhere_else() -> None:
    before = find_function(MAJORITY.target).__code__
    assert offset_of_a_majority() == 5
    with edited([MAJORITY]):
        assert offset_of_a_majority() == 7
    assert offset_of_a_majority() == 5
    assert find_function(MAJORITY.target).__code__ is before


def test_an_edit_is_taken_back_when_what_runs_inside_fails() -> None:
    with pytest.raises(RuntimeError), edited([MAJORITY]):
        raise RuntimeError
    assert offset_of_a_majority() == 5


def test_two_edits_of_one_function_are_both_made() -> None:
    with edited(
        [MAJORITY, MAJORITY._replace(old="offsets.sort()", new="offsets.sort(reverse=True)")]
    ):
        assert offset_of_a_majority() == 3


def test_a_method_that_calls_its_base_class_can_be_edited() -> None:
    with edited(
        [
            Edit(
                "raftlog.quorum.follower:Follower.enter",
                "in self.node.lost",
                "in set(self.node.lost)",
            )
        ]
    ):
        assert (
            "__class__"
            in find_function("raftlog.quorum.follower:Follower.enter").__code__.co_freevars
        )
        assert run_swarm(0, configs.QUIET).failure is None


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (MAJORITY._replace(old="no such text"), "0 times"),
        (MAJORITY._replace(old="offsets"), "times, not once"),
        (MAJORITY._replace(target="raftlog.quorum.leader:Progress.gone"), "there is no"),
        (MAJORITY._replace(target="raftlog.quorum.gone:Progress"), "there is no"),
        (MAJORITY._replace(target="raftlog.quorum.follower:Follower.grants_vote"), "there is no"),
        (MAJORITY._replace(target="raftlog.quorum.leader:Progress"), "no function"),
        (MAJORITY._replace(old="offsets.sort()", new="offsets.sort("), "is no Python"),
        (
            MAJORITY._replace(old="offsets.sort()", new="nobody_knows_this()"),
            "has not: \\['nobody_knows_this'\\]",
        ),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error_and_changes_nothing(edit: Edit, why: str) -> None:
    with pytest.raises(StaleMutantError, match=why), edited([MAJORITY, edit]):
        pytest.fail("must not get here")
    assert offset_of_a_majority() == 5


def test_an_edit_that_is_stale_says_where_its_function_is_now() -> None:
    moved = MAJORITY._replace(target="raftlog.quorum.core:Progress.majority_offset")
    with (
        pytest.raises(StaleMutantError, match=r"majority_offset is in raftlog\.quorum\.leader"),
        edited([moved]),
    ):
        pytest.fail("must not get here")


SOURCE = """
    def release(self, link: Any) -> None:
        if (
            self.held  # a comment, with a comma
            and link.peer in self.places
        ):
            self.give(
                link.peer, "a b",
                count=1,
            )
        else:
            queue.append(link)
"""


@pytest.mark.parametrize(
    ("old", "new", "instead"),
    [
        (
            "self.held and\n link.peer in self.places",
            "False",
            "        if (\n            False\n        ):",
        ),
        ("self.held and link.peer in", "link.peer in", "            link.peer in self.places\n"),
        (
            'give(link.peer, "a b", count=1)',
            "give(link.peer)",
            "            self.give(link.peer)\n        else:",
        ),
        (
            "        else:\n queue.append(link)\n",
            "        else:\n            pass\n",
            "        else:\n            pass\n",
        ),
    ],
)
def test_an_edit_is_found_whatever_the_layout(old: str, new: str, instead: str) -> None:
    assert SOURCE.count(old) == 0
    (span,) = find_spans(SOURCE, old)
    assert instead in put(SOURCE, span, old, new)


@pytest.mark.parametrize(
    "other", ['"a  b"', "link . peers", "self.hel", "", "  # a comment", "link, peer"]
)
def test_what_differs_in_more_than_its_layout_is_not_found(other: str) -> None:
    assert find_spans(SOURCE, other) == []


def test_what_stands_twice_is_found_twice() -> None:
    assert len(find_spans(SOURCE, "link . peer")) == 2


def test_a_mutant_that_only_crashes_the_program_is_no_kill() -> None:
    crash = Mutant("crash", "nothing", (MAJORITY._replace(new="offsets[1 // 0]"),), configs.QUIET)
    with pytest.raises(BrokenMutantError, match="ZeroDivisionError"):
        run_mutant(crash, [0])


def test_a_mutant_that_spins_is_ended_and_not_called_killed() -> None:
    spins = Mutant(
        "spins",
        "nothing",
        (MAJORITY._replace(old="offsets.sort()", new="while True: pass"),),
        configs.QUIET,
    )
    begun = time.monotonic()
    assert hunt.hunt_one(spins, 7, 3, run_wall_s=3.0) == hunt.Hung(7, 1)
    assert time.monotonic() - begun < 20
    row = hunt.Row("spins", "nothing", "", 3, (hunt.Hung(7, 1),))
    assert not row.killed
    assert "**hung** in 1 of 1 hunts" in hunt.as_markdown([row])


def test_a_hunt_in_a_process_of_its_own_tells_of_crashes_and_stale_edits() -> None:
    crash = Mutant("crash", "nothing", (MAJORITY._replace(new="offsets[1 // 0]"),), configs.QUIET)
    with pytest.raises(BrokenMutantError, match="ZeroDivisionError"):
        hunt.hunt_one(crash, 0, 1)
    died = Mutant(
        "died",
        "nothing",
        (MAJORITY._replace(new="offsets[__import__('os')._exit(3)]"),),
        configs.QUIET,
    )
    with pytest.raises(BrokenMutantError, match="the process of seed 4 died"):
        hunt.hunt_one(died, 4, 1)
    stale = Mutant("stale", "nothing", (MAJORITY._replace(old="no such text"),), configs.QUIET)
    with pytest.raises(BrokenMutantError, match="0 times"):
        hunt.hunt_one(stale, 0, 1)


def test_a_mutant_that_breaks_nothing_survives() -> None:
    harmless = Mutant(
        "harmless",
        "nothing",
        (MAJORITY._replace(new="offsets[-self._majority + 0]"),),
        configs.QUIET,
    )
    assert run_mutant(harmless, [0, 1]) == Survived(2)


def test_the_table_says_what_happened() -> None:
    rows = [
        hunt.Row("one", "is broken", "", 50, (Killed(3, 4, "Lao", "m"), Killed(1003, 4, "States I9", "m"), Killed(1, 2, "Lao", "m"))),
        hunt.Row("other", "is too", "", 9, (Killed(0, 1, "Lao", "m"), Survived(9))),
    ]  # fmt: skip
    assert hunt.as_markdown(rows).splitlines()[2:] == [
        "| `one` | is broken | Lao, States I9 | 4 (50) |",
        "| `other` | is too | Lao (**survived** 1 of 2 hunts) | 5 (9) |",
    ]
    assert [row.killed for row in rows] == [True, False]
