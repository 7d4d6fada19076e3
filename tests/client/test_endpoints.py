from __future__ import annotations

import random

import pytest

from raftlog.client.endpoints import (
    NAMED_MAX,
    UNREACHABLE_FOR_S,
    EndpointSelector,
    KnownEndpoints,
    with_reasons,
)
from raftlog.errors import ConfigError


def finder(*endpoints: str) -> EndpointSelector:
    return EndpointSelector(endpoints, random.Random(3))


def test_begins_with_the_first_and_goes_round() -> None:
    it = finder("a", "b", "c")
    seen = [it.target]
    for _ in range(5):
        assert it.lost(0.0) > 0
        seen.append(it.target)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_pauses_grow_to_a_bound_and_begin_again_after_success() -> None:
    it = finder("a", "b")
    pauses = [it.lost(0.0) for _ in range(12)]
    assert pauses[0] <= 0.02
    assert 0.25 <= pauses[-1] <= 0.5
    it.reached()
    assert it.lost(0.0) <= 0.02


def test_hints_are_followed_at_once_but_not_in_circles() -> None:
    it = finder("a", "b")
    assert it.redirected("x", 0.0) == 0.0
    assert it.redirected("y", 0.0) == 0.0
    assert it.target == "y"
    assert it.redirected("x", 0.0) > 0
    assert it.target == "b"
    assert it.redirected("x", 0.0) == 0.0, "after a pause it may be asked again"


@pytest.mark.parametrize("hint", ["", "a"])
def test_no_hint_and_a_hint_to_itself_are_none(hint: str) -> None:
    it = finder("a", "b")
    assert it.redirected(hint, 0.0) > 0
    assert it.target == "b"


def test_who_served_until_now_is_followed_by_the_next_one_without_a_pause() -> None:
    it = finder("a", "b", "c")
    it.reached()
    assert it.unreachable(10.0, served=True) == 0.0
    assert it.target == "b"
    assert 0 < it.unreachable(10.0) <= 0.02, "the pauses begin with the shortest"
    assert it.target == "c"


def test_the_unreachable_are_passed_over_for_a_while() -> None:
    it = finder("a", "b", "c")
    it.unreachable(10.0)
    it.lost(10.0)
    it.lost(10.0)
    assert it.target == "b", "not a"
    assert it.redirected("a", 10.0 + UNREACHABLE_FOR_S / 2) > 0
    assert it.target == "c"
    assert it.redirected("a", 10.0 + UNREACHABLE_FOR_S) == 0.0


def test_if_none_is_reachable_it_goes_on_trying_all() -> None:
    it = finder("a", "b")
    seen = set()
    for _ in range(4):
        it.unreachable(0.0)
        seen.add(it.target)
    assert seen == {"a", "b"}


def test_servers_that_others_name_are_kept_and_asked_after_the_given_ones() -> None:
    known = KnownEndpoints(["a:1", "b:1"])
    it = EndpointSelector(known, random.Random(3))
    known.learn(["c:1", "a:1", "no endpoint", "d:70000"])
    known.learn(["[::1]:1"])
    seen = [it.target]
    for _ in range(4):
        it.lost(0.0)
        seen.append(it.target)
    assert seen == ["a:1", "b:1", "[::1]:1", "c:1", "a:1"]
    it.redirected("e:1", 0.0)
    assert it.known == ("a:1", "b:1", "e:1", "[::1]:1", "c:1")


def test_named_servers_are_bounded_and_the_last_named_stay() -> None:
    known = KnownEndpoints(["a:1"])
    for number in range(2 * NAMED_MAX):
        known.learn([f"h{number}:1"])
    assert list(known) == ["a:1", *(f"h{2 * NAMED_MAX - 1 - n}:1" for n in range(NAMED_MAX))]


def test_repeated_endpoints_count_once_and_none_is_an_error() -> None:
    assert finder("a", "a", "b").known == ("a", "b")
    with pytest.raises(ConfigError):
        finder()


def test_each_reason_is_said_once() -> None:
    refused, silent = "UNAVAILABLE: Connection refused (111)", "does not answer"
    assert with_reasons({"a:1": refused, "b:1": silent, "c:1": refused, "d:1": ""}) == (
        f"a:1 and c:1 ({refused}), b:1 ({silent}), d:1"
    )
    assert with_reasons({"a:1": refused}) == f"a:1 ({refused})"
