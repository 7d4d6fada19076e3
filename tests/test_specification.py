"""The specification in spec/: its promises hold, each fails with its rule switched off, and what
makes the promises worth something is reached.
"""

import sys
from pathlib import Path

import pytest
from tiers import nightly

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))

import tlc

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


@pytest.fixture(scope="session")
def tlc_jar() -> Path:
    """TLC, where there is Maven to fetch it, or it was fetched before."""
    try:
        return tlc.tlc_jar()
    except tlc.SpecError as error:
        pytest.skip(f"NO TLC: {error}")


@pytest.mark.usefixtures("tlc_jar")
@pytest.mark.parametrize(
    "case", [case if case.gate else nightly(case) for case in tlc.CASES], ids=lambda case: case.name
)
@pytest.mark.timeout(3600)
def test_a_configuration_has_the_expected_verdict(case: tlc.Case) -> None:
    result = tlc.check(case)
    assert result.expected, tlc.row(result) + "\n" + result.story


def test_every_promise_has_a_configuration_in_which_it_fails() -> None:
    broken = {case.fails for case in tlc.CASES}
    # What is left of a promise without any rule is true by its definition.
    assert broken >= {*tlc.LAO_PROMISES, "MonotoneToken", "LaoCatchesUp"} - {
        "RepeatableRead", "ReadAfterAcknowledged", "LegacyHidesLao",
    }  # fmt: skip


def test_every_rule_of_the_module_is_switched_off_by_a_configuration() -> None:
    module = (tlc.HERE / "Lao.tla").read_text()
    off = {str(case.bounds["Off"]) for case in (*tlc.CASES, *tlc.PENDING) if "Off" in case.bounds}
    assert off == tlc.rules_in(module)


def test_output_of_a_search_is_read() -> None:
    held = tlc.read_output(tlc.CASES[0], HELD, 1.0)
    assert (held.failed, held.states, held.depth, held.steps) == (tlc.HOLDS, 12, 5, 0)
    assert held.taken == {"Commit": 18}
    assert held.expected
    broken = tlc.read_output(tlc.CASES[0], BROKEN, 1.0)
    assert (broken.failed, broken.states, broken.steps) == ("LaoNeverAhead", 1006, 2)
    assert not broken.expected


def test_a_search_that_is_cut_short_is_no_verdict() -> None:
    cut = tlc.read_output(
        tlc.CASES[0], "Progress(6): 17 states generated, 8 distinct states found", 1.0
    )
    assert cut.failed == "not finished"
    assert not cut.expected


def test_actions_of_complete_searches_and_of_stories_count_as_taken() -> None:
    held = tlc.read_output(tlc.CASES[0], HELD, 1.0)
    broken = tlc.read_output(tlc.CASES[0], BROKEN.replace("<Commit", "<Elect"), 1.0)
    assert "Commit" not in tlc.never_taken([held])
    assert "Commit" in tlc.never_taken([broken])
    assert "Elect" not in tlc.never_taken([broken])
