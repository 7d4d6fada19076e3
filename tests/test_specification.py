"""The specification in spec/: promises hold, and fail with a rule off; states are reached."""

import sys
from itertools import chain
from pathlib import Path

import pytest
from tiers import nightly

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))

import picture
import quorum_traces
import tlc
import traces

from simulation.cli import silence
from simulation.mutants.registry import SEEDED

HELD = """\
<Commit line 267, col 1 to line 267, col 6 of module Lao>: 5:9
<Commit line 267, col 1 to line 267, col 6 of module Lao>: 10:18
Model checking completed. No error has been found.
40 states generated, 12 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 5.
"""
BROKEN = """\
Error: Invariant LaoNeverAhead is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
/\\ newest = 1
State 2: <Commit line 267, col 1 to line 267, col 6 of module Lao>
/\\ newest = 1
9 states generated, 1,006 distinct states found, 3 states left on queue.
"""


@pytest.fixture
def tlc_jar(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TLC, if Maven can fetch it or it was fetched before."""
    if request.node.get_closest_marker("nightly") is None:
        # In a search of seconds Java's second compiler would take half of the CPU time.
        monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    try:
        return tlc.tlc_jar()
    except tlc.SpecError as error:
        pytest.skip(f"NO TLC: {error}")


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.parametrize(
    "case",
    [case if case.gate else nightly(case) for case in tlc.ALL_CASES],
    ids=lambda case: case.name,
)
@pytest.mark.timeout(3600)
def test_configuration_has_the_expected_verdict(case: tlc.Case) -> None:
    result = tlc.check(case)
    assert result.expected, tlc.row(result) + "\n" + result.story


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.parametrize(
    ("seeds", "events"),
    [(range(2, 12), 120), pytest.param(range(60), 600, marks=pytest.mark.nightly)],
)
@pytest.mark.timeout(3600)
def test_traces_of_clusters_are_steps_of_the_specification(seeds: range, events: int) -> None:
    silence()
    done = traces.check_all(chain((traces.late_commit(),), traces.recorded(seeds, events)))
    assert [traces.report(one) for one in done if one.rejected] == []
    assert sum(one.followed for one in done) > len(seeds) * events / 2
    assert done[0].taken["Learn"] == 1


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.timeout(600)
def test_trace_of_a_recovered_log_is_accepted() -> None:
    silence()
    (done,) = traces.check_all(traces.recorded([5], 900))
    assert not done.rejected, traces.report(done)
    assert done.taken["Restore"] == 1
    kinds = [one["t"] for one in done.steps]
    assert kinds[kinds.index("restore") :].count("anew") == 2


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.timeout(600)
def test_traces_of_a_broken_cluster_are_rejected() -> None:
    silence()
    names = ("lao-ignores-slowest", "lao-counts-fetched")
    done = traces.check_all(traces.broken([SEEDED[name] for name in names], 60, 1))
    assert {one.name.partition(",")[0] for one in done if one.rejected} == set(names)


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.parametrize(
    ("seeds", "events"),
    [(range(10), 120), pytest.param(range(60), 3000, marks=pytest.mark.nightly)],
)
@pytest.mark.timeout(3600)
def test_steps_of_cores_are_steps_of_the_specification(seeds: range, events: int) -> None:
    silence()
    done = quorum_traces.check_all(quorum_traces.recorded(seeds, events))
    assert [quorum_traces.report(one) for one in done if one.rejected] == []
    assert sum(one.followed for one in done) >= len(seeds) * events / 2


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.timeout(600)
def test_steps_of_broken_cores_are_rejected() -> None:
    silence()
    mutants = [SEEDED[name] for name in ("leader-counts-unflushed", "acknowledge-before-fsync")]
    done = quorum_traces.check_all(quorum_traces.broken(mutants, 120, 1))
    assert all(one.rejected for one in done)


def test_offsets_of_a_trace_are_renumbered() -> None:
    trace = traces.Trace("one")
    events = [
        {"t": "elect", "e": 7, "end": 0, "last": 0},
        {"t": "propose", "e": 7, "base": 1, "end": 40, "changes": [], "lao": -1, "known": -1},
        {"t": "high", "e": 7, "n": 20},
        {"t": "commit", "e": 7, "n": 20, "lao": -1, "known": -1},
        {"t": "elect", "e": 9, "end": 30, "last": 7, "hw": 20},
    ]
    traces.Translator(trace, events).translate()
    assert trace.steps == [
        # Of the offsets 1 to 39 only 20 and 29, the last that epoch 9 keeps, and 30 are named.
        {"t": "write", "e": 1, "lao": -1, "known": -1},
        {"t": "write", "e": 1, "lao": -1, "known": -1},
        {"t": "write", "e": 1, "lao": 0, "known": 0},
        {"t": "high", "e": 1, "n": 3},
        {"t": "commit", "e": 1, "n": 3, "lao": 0, "known": 0},
        {"t": "elect", "e": 2, "from": 1, "kept": 4, "secret": 3, "hw": 3},
    ]
    trace.followed = 6
    assert trace.taken == {"Write": 3, "Commit": 1, "Elect": 1}


def test_offsets_of_a_recovered_log_begin_at_its_end() -> None:
    trace = traces.Trace("one")
    events = [
        {"t": "elect", "e": 7, "end": 0, "last": 0, "hw": -1},
        {"t": "propose", "e": 7, "base": 1, "end": 40, "changes": [], "lao": -1, "known": -1},
        {"t": "high", "e": 7, "n": 25},
        # The recovery has written the offsets 21 and 22, and 25 was lost.
        {"t": "restore", "e": 9, "base": 21, "end": 23, "last": 7, "hw": -1},
        {"t": "high", "e": 9, "n": 23},
    ]
    traces.Translator(trace, events).translate()
    assert trace.steps == [
        # Of the offsets 1 to 39 only 20, 21, 23 and 25 are named.
        {"t": "write", "e": 1, "lao": -1, "known": -1},
        {"t": "write", "e": 1, "lao": -1, "known": -1},
        {"t": "write", "e": 1, "lao": -1, "known": -1},
        {"t": "write", "e": 1, "lao": 0, "known": 0},
        {"t": "high", "e": 1, "n": 6},
        {"t": "restore", "e": 2, "from": 1, "kept": 3},
        # 21 begins the epoch, 23 is the record of its first leader.
        {"t": "write", "e": 2, "lao": -1, "known": -1},
        {"t": "high", "e": 2, "n": 5},
    ]
    assert trace.restores == 1


def test_counter_example_is_printed() -> None:
    image = "(b1 :> [p |-> <<b1, 1>>, by |-> 1, r |-> 1])"
    log = f'<< << [ e |-> 1, image |->\n    {image}, t |-> "first" ] >> >>'
    processes = "(<<b1, 1>> :> {})".format
    same = [f"/\\ {name} = {processes(0)}" for name in ("seen", "told", "known", "lease")]
    same += [f"/\\ reported = {processes('<<[a |-> 2, k |-> 0]>>')}", "/\\ inc = (b1 :> 1)"]
    same += [
        f"/\\ log = {log}",
        "/\\ newest = 1",
        "/\\ gen = <<1>>",
        "/\\ token = [g |-> 0, o |-> 0]",
    ]
    story = "".join(
        f"State {number}: <Next line 1, col 1 to line 2, col 3 of module Lao>\n"
        + "\n".join((*same, f"/\\ hw = <<{number}>>", f"/\\ lao = <<{number - 1}>>"))
        + f"\n/\\ applied = {processes(1)}\n\n"
        for number in (1, 2)
    )
    assert [(line.at, line.text) for line in picture.lines_of(picture.states_in(story))] == [
        ("controller 1", "leads; unfenced: b1; log ends at 2"),
        ("controller 1", "commits up to 2; LAO is 1"),
    ]
    drawn = picture.draw("off: <all>", "LaoNeverAhead", story)
    assert "commits up to 2; LAO is 1" in drawn
    assert "off: &lt;all&gt;" in drawn


def test_every_promise_has_a_configuration_in_which_it_fails() -> None:
    assert {case.fails for case in tlc.QUORUM_CASES} >= {
        *tlc.QUORUM.invariants, tlc.QUORUM.step_promise,
    }  # fmt: skip
    only = {name for case in tlc.ELECTION_CASES for name in case.also}
    assert {case.fails for case in tlc.ELECTION_CASES} >= {*tlc.ELECTIONS.liveness, *only}
    broken = {case.fails for case in tlc.CASES}
    # LAO is defined to be unknown while a member reports no offset.
    assert broken >= {*tlc.LAO_PROMISES, "MonotoneToken", "LaoCatchesUp"} - {"LegacyHidesLao"}


def test_every_rule_of_the_module_is_disabled_by_a_configuration() -> None:
    for modules in ((tlc.LAO,), (tlc.QUORUM, tlc.ELECTIONS)):
        off = {
            str(case.bounds["Off"])
            for case in tlc.ALL_CASES
            if case.module in modules and "Off" in case.bounds
        }
        texts = [(tlc.HERE / f"{module.name}.tla").read_text() for module in modules]
        assert off == set().union(*map(tlc.rules_in, texts))


def test_disabled_rule_fails_the_same_promise_in_both_forms() -> None:
    alone, together = (
        {(case.bounds["Off"], case.fails) for case in cases if "Off" in case.bounds}
        for cases in (tlc.CASES, tlc.TOGETHER_CASES)
    )
    assert together < alone
    compared = {rule for rule, _ in together}
    assert compared | tlc.RESTS_ON == {rule for rule, _ in alone}
    assert not compared & tlc.RESTS_ON


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.parametrize("case", tlc.RANDOM, ids=lambda case: case.name)
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_random_walks_break_no_promise(case: tlc.Case) -> None:
    walked = tlc.walk(case, 60)
    assert walked.expected, walked.story
    assert walked.states > 1000


def test_names_of_configurations_are_unique() -> None:
    names = [case.name for case in (*tlc.ALL_CASES, *tlc.LONG, *tlc.RANDOM)]
    assert len(set(names)) == len(names)
    assert set(names) >= tlc.GATE


def test_output_of_a_search_is_parsed() -> None:
    held = tlc.read_output(tlc.CASES[0], HELD, 1.0)
    assert (held.failed, held.states, held.depth, held.steps) == (tlc.HOLDS, 12, 5, 0)
    assert held.taken == {"Commit": 18}
    assert held.expected
    broken = tlc.read_output(tlc.CASES[0], BROKEN, 1.0)
    assert (broken.failed, broken.states, broken.steps) == ("LaoNeverAhead", 1006, 2)
    assert not broken.expected


def test_interrupted_search_is_not_a_verdict() -> None:
    cut = tlc.read_output(
        tlc.CASES[0], "Progress(6): 17 states generated, 8 distinct states found", 1.0
    )
    assert cut.failed == "not finished"
    assert not cut.expected


def test_action_is_found_in_a_list_of_actions() -> None:
    lines = (tlc.HERE / "Quorum.tla").read_text().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if line.endswith(": Grant(n, a)"))
    place = f"{number} 6 {number} {len(lines[number - 1])}"
    a, b = place.rsplit(" ", 2)[0].split(), place.split()[2:]
    searched = f"<Together line 1, col 1 to line 1, col 11 of module Quorum ({place})>: 7:9\n"
    told = (
        f"State 2: <Together line {a[0]}, col {a[1]} to line {b[0]}, col {b[1]} of module Quorum>\n"
    )
    for output in (HELD + searched, BROKEN.replace("LaoNeverAhead", "LogMatching") + told):
        assert tlc.read_output(tlc.QUORUM_CASES[0], output, 1.0).taken["Grant"]


def test_actions_of_complete_searches_and_of_stories_count_as_taken() -> None:
    held = tlc.read_output(tlc.CASES[0], HELD, 1.0)
    broken = tlc.read_output(tlc.CASES[0], BROKEN.replace("<Commit", "<Elect"), 1.0)
    assert "Lao.Commit" not in tlc.never_taken([held])
    assert "Lao.Commit" in tlc.never_taken([broken])
    assert "Lao.Elect" not in tlc.never_taken([broken])
