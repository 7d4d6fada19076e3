"""The states that the shipped cores of a quorum reach are those of its specification."""

import pickle
import re
import sys
from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from command_runs import run_text

sys.path.insert(0, str(Path(__file__).parents[2] / "spec"))

import tlc
from quorum_search import ONE_RECORD, SCENES, TWO_RECORDS, Move, Scene, Search, Spent, State, calm
from quorum_states import LocalState

Local = tuple[str, int, int, int, int]
"""Role, epoch, end of the log, of the durable log, high watermark."""
# As in the cores, a commit follows at once, a response has records if the leader has more, and a
# flush of the leader covers what it had when the flush began.
MODULE = """\
---- MODULE Reached ----
EXTENDS Quorum
Due == \\E l \\in Nodes : role[l] = "leader" /\\ \\E k \\in 1..Len(log[l]) : MayCommit(l, k, Flushed(l) >= k)
Follows == \\A n \\in Nodes :
  role[n] = "follower" /\\ hw'[n] # hw[n] /\\ log'[n] = log[n] => Len(log[n]) = Len(log[leader[n]])
EarlierFlush(n) == role[n] = "leader" /\\ \\E k \\in 1..Len(log[n]) : Flush(n, k)
RSpec == Init /\\ role[1] = "leader" /\\ [][\\E n \\in Nodes :
  (Step(n) \\/ EarlierFlush(n)) /\\ (Due => hw' # hw) /\\ Follows]_vars
Reached == Due \\/ PrintT(<<"reached", [n \\in Nodes |->
  <<role[n], vote[n].e, Len(log[n]), Flushed(n), hw[n]>>]>>)
====
"""


class Reached(Search):
    """A search that also records each state in the module's terms."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._locals = {self._first[: self._size]}

    @property
    def _size(self) -> int:
        return array("I").itemsize * self._count

    def _after(self, state: State, move: Move) -> bytes | None:
        after = super()._after(state, move)
        if after is not None:
            self._locals.add(after[: self._size])
        return after

    def reached(self) -> set[tuple[Local, ...]]:
        """Return the states in the module's terms."""
        known = [self._known(local) for local in self._nodes.states]
        return {tuple(known[number] for number in array("I", packed)) for packed in self._locals}

    def _known(self, local: LocalState) -> Local:
        logs = self._nodes.logs
        high_watermark = max(0, pickle.loads(local.pickled).high_watermark)
        ends = len(logs[local.log]), len(logs[local.durable])
        return local.role, local.epoch, *ends, high_watermark


def reached_by_the_module(
    directory: Path, writes: int, resignations: int
) -> set[tuple[Local, ...]]:
    case = tlc.quorum(
        "reached",
        {"Nodes": "{1, 2, 3}", "Configured": "{1, 2, 3}", "Nobody": 0, "Begin": "calm"},
        {"MaxEpoch": 1, "MaxWrites": writes, "MaxResignations": resignations},
    )
    config = tlc.config_of(case).split("SYMMETRY")[0].replace("Spec\n", "RSpec\n", 1)
    (directory / "case.cfg").write_text(f"{config}CHECK_DEADLOCK FALSE\nINVARIANT Reached\n")
    (directory / "Reached.tla").write_text(MODULE)
    (directory / "Quorum.tla").write_text((tlc.HERE / "Quorum.tla").read_text())
    done = run_text(
        [
            *tlc.java(),
            "-workers",
            "1",
            "-metadir",
            str(directory),
            "-config",
            "case.cfg",
            "Reached",
        ],
        cwd=directory,
        check=True,
    )
    assert "No error has been found" in done.stdout
    found = set()
    for text in done.stdout.split('"reached"')[1:]:
        parts = re.findall(r'<<\s*"(\w+)",\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\s*>>', text)[:3]
        found.add(tuple((role, int(a), int(b), int(c), int(d)) for role, a, b, c, d in parts))
    return found


def reached_by_the_cores(budget: Spent, fetch_bytes: int) -> set[tuple[Local, ...]]:
    scene = replace(SCENES["two writes"], begin=partial(calm, fetch_bytes), budget=budget, epochs=1)
    search = Reached(scene)
    assert search.run().complete
    # An election cannot be won: there is no epoch left. Pre-votes are not compared.
    compared = {"leader", "follower", "resigned"}
    return {one for one in search.reached() if {local[0] for local in one} <= compared}


def needs_a_deadline(state: tuple[Local, ...]) -> bool:
    """Return whether a follower knows that a record is committed which it has not flushed: it has
    fetched the record after the commit. A Fetch waits for the record, so that needs a deadline.
    """
    return any(known > flushed for role, _, _, flushed, known in state if role == "follower")


@pytest.mark.parametrize(
    ("budget", "count"),
    [
        (Spent(writes=1, deadlines=1), 39),
        (Spent(writes=1, resignations=1), 70),
        pytest.param(
            Spent(writes=2, deadlines=2),
            434,
            marks=[pytest.mark.nightly, pytest.mark.timeout(1800)],
        ),
    ],
)
def test_cores_and_specification_reach_the_same_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: Spent, count: int
) -> None:
    # In a search of seconds Java's second compiler would take half of the CPU time.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    sizes = (ONE_RECORD, TWO_RECORDS)[: budget.writes]
    reached = set[tuple[Local, ...]]().union(*(reached_by_the_cores(budget, n) for n in sizes))
    try:
        allowed = reached_by_the_module(tmp_path, budget.writes, budget.resignations)
    except tlc.SpecError as error:
        pytest.skip(f"NO TLC: {error}")
    if not budget.deadlines:
        allowed = {state for state in allowed if not needs_a_deadline(state)}
    assert reached == allowed
    assert len(reached) == count
