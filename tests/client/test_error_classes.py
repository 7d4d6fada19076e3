"""One class for each error code, and the choice of the next endpoint."""

import pickle
import random
import re

import pytest

from raftlog import errors
from raftlog.client.endpoints import (
    NAMED_MAX,
    UNREACHABLE_FOR_S,
    EndpointSelector,
    KnownEndpoints,
    with_reasons,
)
from raftlog.client.requests import RefusedItemsError
from raftlog.errors import ApiError, ConfigError, ErrorCode, ItemsRefusedError, UnknownOutcomeError
from raftlog.wire.controller.v1 import controller_pb2

BETWEEN_NODES = {
    "DIRECTORY_SET_BACK",
    "DIRECTORY_IN_USE",
    "STALE_BROKER_EPOCH",
    "DUPLICATE_BROKER_REGISTRATION",
    "INELIGIBLE_REPLICA",
    "NEW_LEADER_ELECTED",
    "INVALID_REGISTRATION",
    "INVALID_VOTER_KEY",
    "OPERATION_NOT_ATTEMPTED",
    "POSITION_OUT_OF_RANGE",
    "SNAPSHOT_NOT_FOUND",
}
"""Codes that no application gets."""
FOR_APPLICATIONS = [
    code for code in ErrorCode if code is not ErrorCode.NONE and code.name not in BETWEEN_NODES
]


def class_name(code: ErrorCode) -> str:
    words = re.sub(r"_(EXCEPTION|ERROR)$", "", code.name).split("_")
    return "".join(map(str.capitalize, words)) + "Error"


@pytest.mark.parametrize("code", FOR_APPLICATIONS, ids=lambda code: code.name)
def test_error_has_the_class_of_its_code(code: ErrorCode) -> None:
    kind = getattr(errors, class_name(code))
    error = ApiError(code, "why", field="topics[0].name")
    assert type(error) is kind
    assert issubclass(kind, ApiError)
    assert (error.code, error.message, error.field) == (code, "why", "topics[0].name")
    assert (kind.__doc__ or "").strip()


@pytest.mark.parametrize(
    "error",
    [
        errors.RaftlogError("why"),
        errors.ConfigError("why"),
        errors.PlaceLostError("why"),
        errors.ClientClosedError("why"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_without_a_request_has_the_same_attributes(error: errors.RaftlogError) -> None:
    assert (error.message, error.field) == ("why", "")
    assert (error.retriable, error.outcome_unknown) == (False, False)
    is_closed = isinstance(error, errors.ClientClosedError)
    assert error.code == (ErrorCode.NETWORK_EXCEPTION if is_closed else None)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "why"


def test_codes_between_nodes_have_no_class() -> None:
    for name in BETWEEN_NODES:
        assert type(ApiError(ErrorCode[name], "")) is ApiError
    assert len(FOR_APPLICATIONS) + len(BETWEEN_NODES) + 1 == len(ErrorCode)


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT])
def test_unknown_outcome_is_not_caught_as_a_refusal(code: ErrorCode) -> None:
    """[``except TopicAlreadyExistsError: pass`` after a create that may never be executed.]"""
    error = ApiError(code, "why", outcome_unknown=True)
    assert type(error) is UnknownOutcomeError
    assert not error.retriable
    assert (error.code, error.outcome_unknown) == (code, True)


def test_transient_errors_are_retriable() -> None:
    assert ApiError(ErrorCode.BROKER_FENCED, "").retriable
    assert not ApiError(ErrorCode.INVALID_CONFIG, "").retriable


@pytest.mark.parametrize("outcome_unknown", [False, True])
def test_errors_can_be_pickled_between_processes(outcome_unknown: bool) -> None:
    error = ApiError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        "no room",
        field="acks",
        outcome_unknown=outcome_unknown,
        throttle_time_ms=7,
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again), again.args) == (str(error), vars(error), error.args)


def test_refused_items_of_the_lower_layer_share_the_class_hierarchy() -> None:
    one, two = ApiError(ErrorCode.INVALID_CONFIG, "a"), ApiError(ErrorCode.INVALID_REQUEST, "b")
    several = RefusedItemsError([one, two], controller_pb2.ControllerResponse())
    assert isinstance(several, ItemsRefusedError)
    assert str(several) == "2 items were refused: INVALID_CONFIG: a; INVALID_REQUEST: b"
    alone = RefusedItemsError([one], controller_pb2.ControllerResponse())
    assert str(alone) == "INVALID_CONFIG: a"


def test_authorization_errors_are_caught_together() -> None:
    for code in ErrorCode:
        if code.name.endswith("_AUTHORIZATION_FAILED"):
            assert isinstance(ApiError(code, ""), errors.AuthorizationError)


def finder(*endpoints: str) -> EndpointSelector:
    return EndpointSelector(endpoints, random.Random(3))


def test_endpoints_are_tried_in_turn_from_the_first() -> None:
    it = finder("a", "b", "c")
    seen = [it.target]
    for _ in range(5):
        assert it.lost(0.0) > 0
        seen.append(it.target)
    assert seen == ["a", "b", "c", "a", "b", "c"]


def test_backoff_grows_to_a_bound_and_restarts_after_success() -> None:
    it = finder("a", "b")
    pauses = [it.lost(0.0) for _ in range(12)]
    assert pauses[0] <= 0.02
    assert 0.25 <= pauses[-1] <= 0.5
    it.reached()
    assert it.lost(0.0) <= 0.02


def test_hints_are_followed_at_once_but_not_in_circles() -> None:
    it = finder("a", "b")
    assert (it.redirected("x", 0.0), it.redirected("y", 0.0), it.target) == (0.0, 0.0, "y")
    assert it.redirected("x", 0.0) > 0
    assert it.target == "b"
    assert it.redirected("x", 0.0) == 0.0, "after a pause it may be asked again"


@pytest.mark.parametrize("hint", ["", "a"])
def test_empty_hint_and_hint_to_itself_are_ignored(hint: str) -> None:
    it = finder("a", "b")
    assert it.redirected(hint, 0.0) > 0
    assert it.target == "b"


def test_next_endpoint_is_tried_without_a_pause_after_a_served_call() -> None:
    it = finder("a", "b", "c")
    it.reached()
    assert (it.unreachable(10.0, served=True), it.target) == (0.0, "b")
    assert 0 < it.unreachable(10.0) <= 0.02, "the pauses begin with the shortest"
    assert it.target == "c"


def test_unreachable_endpoints_are_skipped_for_a_while() -> None:
    it = finder("a", "b", "c")
    it.unreachable(10.0)
    it.lost(10.0)
    it.lost(10.0)
    assert it.target == "b", "not a"
    assert it.redirected("a", 10.0 + UNREACHABLE_FOR_S / 2) > 0
    assert (it.target, it.redirected("a", 10.0 + UNREACHABLE_FOR_S)) == ("c", 0.0)


def test_all_endpoints_are_tried_on_if_none_is_reachable() -> None:
    it = finder("a", "b")
    seen = set()
    for _ in range(4):
        it.unreachable(0.0)
        seen.add(it.target)
    assert seen == {"a", "b"}


def test_discovered_servers_are_tried_after_the_configured_ones() -> None:
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


def test_discovered_servers_are_bounded_to_the_most_recent() -> None:
    known = KnownEndpoints(["a:1"])
    for number in range(2 * NAMED_MAX):
        known.learn([f"h{number}:1"])
    assert list(known) == ["a:1", *(f"h{2 * NAMED_MAX - 1 - n}:1" for n in range(NAMED_MAX))]


def test_repeated_endpoints_count_once_and_an_empty_list_is_an_error() -> None:
    assert finder("a", "a", "b").known == ("a", "b")
    with pytest.raises(ConfigError):
        finder()


def test_each_reason_is_reported_once() -> None:
    refused, silent = "UNAVAILABLE: Connection refused (111)", "does not answer"
    assert with_reasons({"a:1": refused, "b:1": silent, "c:1": refused, "d:1": ""}) == (
        f"a:1 and c:1 ({refused}), b:1 ({silent}), d:1"
    )
    assert with_reasons({"a:1": refused}) == f"a:1 ({refused})"
