"""Mutants: every rule that is broken on purpose is detected by a simulated cluster or by a test."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tiers import in_gate

from raftlog.endpoint import Voter
from raftlog.quorum.leader import Progress
from raftlog.quorum.voters import VoterSet
from simulation.mutants import configs, hunt
from simulation.mutants.edits import Edit, StaleMutantError, edited, find_function
from simulation.mutants.hunt import Broken, Killed, Survived, run_mutant
from simulation.mutants.mutant import Mutant, RowMutant, SeedMutant, by_seeds, by_tests
from simulation.mutants.registry import (
    MUTANTS,
    NO_EDIT,
    ROOT,
    ROWS,
    SEEDED,
    TABLE,
    named_rows,
    select,
)
from simulation.run import run_swarm

GATE = (
    "acknowledge-before-fsync", "commit-by-minority", "lao-ignores-slowest", "repeatable-from-tip", "strict-without-lease",
    "serves-while-fenced", "duplicate-not-looked-for", "stale-epoch-joins-with-data", "snapshot-without-clients",
    "recovery-keeps-generation", "raised-beside-old-brokers", "cursors-ignored", "read-checked-on-arrival",
    "condition-not-compared", "new-leader-ends-leases", "HB-20.1", "HB-20.2", "ID-4",
)  # fmt: skip
"""One of each promise: of durability, majorities, LAO, reads at it, strict reads, fencing, exactly
once, ISRs and their epochs, snapshots, recoveries, features, exports, rights, conditions and leases; and of
rows of docs/proposals.md."""
GATE_CONFIGS = ("QUIET", "BROKERS")
CONFIGS = (
    "ELECTIONS", "LATE", "QUIET", "BROKERS", "DEPOSED", "SLOW", "TWINS", "FLAPPING", "VOTERS", "ASKED",
    "ANSWERED", "OVERTAKEN", "SET_BACK", "DAMAGED", "DAMAGED_SNAPSHOTS", "DIVERGED", "EVICTED", "HASTY", "REMOVED", "REPLICAS", "MOVING", "UNFENCING", "SNAPSHOTS",
    "PARTS", "TRANSFERS", "EXPORTS", "LIVES", "SILENCED", "DYING", "REFUSED", "LEAVES", "ROLLED", "DATA",
    "DATA_DISKS", "DATA_LOW", "DATA_LATE", "DATA_TWINS", "DATA_UNKNOWN", "LED", "STRICT", "OPERATED", "MAPPED", "MOVED",
    "STEPS", "LOW", "BUSY", "RECOVERED", "BUILDS", "RIGHTS", "RIGHTS_LATE", "RIGHTS_PENDING", "WATCHED",
    "KEEPERS", "KEPT", "STALLED", "OUTLIVED",
)  # fmt: skip
MAJORITY = Edit(
    "raftlog.quorum.leader:Progress.majority_offset", "offsets[-self._majority]", "offsets[-1]"
)


@pytest.fixture(scope="module")
def hunts(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[hunt.Fate]]]:
    """Begin all hunts of the session, two at a time; each test waits for its own."""
    cases = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    mutants = [MUTANTS[case["killed"]] for case in cases if "killed" in case]
    with ThreadPoolExecutor(2) as pool:
        yield {
            one.name: pool.submit(
                hunt.hunt_one, one, one.known if isinstance(one, SeedMutant) else 0, 1
            )
            for one in mutants
        }


@pytest.mark.parametrize("killed", in_gate(MUTANTS, GATE))
def test_mutant_is_killed_as_known(hunts: dict[str, Future[hunt.Fate]], killed: str) -> None:
    fate = hunts[killed].result()
    assert isinstance(fate, Killed), (
        f"{fate}: find out which check has become blind, or another seed"
    )


def test_edits_of_all_mutants_apply_and_their_tests_exist() -> None:
    """The gate hunts a few mutants. One test: a case for each would take longer."""
    wrong: list[str] = []
    for one in MUTANTS.values():
        try:
            with edited(one.edits):
                pass
        except StaleMutantError as error:
            wrong.append(f"{one.name}: {one.rule}: {error}")
        wrong += [f"{one.name}: changes nothing" for edit in one.edits if edit.old == edit.new]
    wrong += [f"{one.name}: no {test}" for one in ROWS for test in one.tests if not is_there(test)]
    assert wrong == []


def is_there(test: str) -> bool:
    """Return whether a node id below ``tests/`` names a file, or a function in it."""
    name, _, function = test.partition("::")
    path = ROOT / "tests" / name
    return path.is_file() and (
        not function or re.search(rf"def {function}\(", path.read_text()) is not None
    )


def test_each_row_of_the_proposals_has_a_mutant_or_a_reason() -> None:
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\|(?!---)", line)]
    heads = sum(line.startswith("| # |") for line in lines)
    rows = named_rows()
    assert len(rows) == len(lines) - heads, "a row without a name"
    assert [row for row, count in Counter(rows).items() if count > 1] == []
    edited_rows = {one.row for one in ROWS}
    assert edited_rows | {*NO_EDIT} == set(rows)
    assert edited_rows & {*NO_EDIT} == set(), "a row has a mutant, or a reason to have none"
    assert all(len(why) > 20 for why in NO_EDIT.values())


def test_rows_and_tables_select_their_mutants() -> None:
    assert [one.name for one in select(["HB-20"])] == ["HB-20.1", "HB-20.2", "HB-20.3"]
    assert [one.name for one in select(["vote-twice", "ID-4"])] == ["vote-twice", "ID-4"]
    assert len(select([])) == len(MUTANTS) == len(SEEDED) + len(ROWS)
    assert {one.row for one in select(["LAO"]) if isinstance(one, RowMutant)} > {"LAO-1", "LAO-2"}
    with pytest.raises(KeyError, match=r"HB-20\.9"):
        select(["HB-20", "HB-20.9"])


@pytest.mark.parametrize("name", in_gate(CONFIGS, GATE_CONFIGS))
def test_hunt_configs_fail_no_check_without_an_edit(name: str) -> None:
    for seed in range(3):
        assert run_swarm(seed, getattr(configs, name)).failure is None


def offset_of_a_majority() -> int:
    progress = Progress(VoterSet(tuple(Voter(i, f"c{i}:1") for i in (1, 2, 3))), 1, 0.0)
    progress.voters[2].end_offset, progress.voters[3].end_offset = 7, 3
    return progress.majority_offset(5)


def test_edit_applies_only_inside_its_block() -> None:
    before = find_function(MAJORITY.target).__code__
    assert offset_of_a_majority() == 5
    with edited([MAJORITY]):
        assert offset_of_a_majority() == 7
    assert offset_of_a_majority() == 5
    assert find_function(MAJORITY.target).__code__ is before


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (MAJORITY._replace(old="no such text"), "0 times"),
        (MAJORITY._replace(old="offsets"), "times, not once"),
        (MAJORITY._replace(target="raftlog.quorum.leader:Progress.gone"), "there is no"),
        (MAJORITY._replace(target="raftlog.quorum.gone:Progress"), "there is no"),
        (MAJORITY._replace(target="raftlog.quorum.follower:Follower.grants_vote"), "there is no"),
        (MAJORITY._replace(target="raftlog.quorum.leader:Progress"), "not a function"),
        (MAJORITY._replace(old="offsets.sort()", new="offsets.sort("), "is not Python"),
        (
            MAJORITY._replace(old="offsets.sort()", new="nobody_knows_this()"),
            "does not have: \\['nobody_knows_this'\\]",
        ),
    ],
)
def test_edit_that_does_not_apply_is_an_error_and_changes_nothing(edit: Edit, why: str) -> None:
    with pytest.raises(StaleMutantError, match=why), edited([MAJORITY, edit]):
        pytest.fail("must not get here")
    assert offset_of_a_majority() == 5


def test_stale_edit_names_the_module_that_now_defines_its_function() -> None:
    moved = MAJORITY._replace(target="raftlog.quorum.core:Progress.majority_offset")
    with (
        pytest.raises(StaleMutantError, match=r"majority_offset is in raftlog\.quorum\.leader"),
        edited([moved]),
    ):
        pytest.fail("must not get here")


def majority(new: str, old: str = MAJORITY.old) -> SeedMutant:
    """Return a mutant of the majority's offset, hunted without faults."""
    return by_seeds("majority", "nothing", configs.QUIET, (MAJORITY.target, old, new))


def identity(new: str, old: str = "return stored") -> RowMutant:
    """Return a mutant of the id of a broker that has stored one."""
    target = "broker.registration.broker_id:known_id"
    return by_tests(
        "broker/test_broker_identity.py::test_configured_id_takes_precedence",
        ("X-1", "", target, f"{old} if configured == NO_NODE_ID else configured", new),
    )[0]


def test_endless_mutant_is_ended_and_reported_as_hung() -> None:
    begun = time.monotonic()
    fate = hunt.hunt_one(majority("while True: pass", "offsets.sort()"), 7, 3, run_wall_s=3.0)
    assert fate == hunt.Hung(7, 1)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (majority("offsets[__import__('os')._exit(3)]"), "the process of seed 4 died"),
        (identity("return stored.no_such_name"), "no_such_name"),
        (identity("return stored", "return no_such_text"), "0 times"),
    ],
)
def test_mutant_that_proves_nothing_is_broken(mutant: Mutant, message: str) -> None:
    fate = hunt.hunt_one(mutant, 4, 1)
    assert isinstance(fate, Broken), fate
    assert message in fate.message


def test_mutant_without_effect_survives() -> None:
    assert run_mutant(majority("offsets[-self._majority + 0]"), [0, 1]) == Survived(2)
    harmless = identity("return configured if stored == NO_NODE_ID else stored")
    assert hunt.hunt_one(harmless, 0, 1) == Survived(1)


def test_table_names_checks_and_failures() -> None:
    one, other = select(["vote-twice", "vote-not-durable"])
    results = [
        hunt.Result(one, 50, (Killed(3, 4, "Lao"), Killed(1003, 4, "States I9"), Killed(1, 2, "Lao"))),
        hunt.Result(other, 9, (Killed(0, 1, "Lao"), Survived(9), hunt.Hung(7, 1), Broken("stale"))),
    ]  # fmt: skip
    assert hunt.as_markdown(results).splitlines()[2:] == [
        f"| `vote-twice` | {one.rule} | Lao, States I9 | 4 (50) |",
        f"| `vote-not-durable` | {other.rule} | Lao (**survived 1 of 4, hung 1 of 4, broken: stale**)"
        " | 1 (9) |",
    ]
    assert [result.killed for result in results] == [True, False]
