"""Each code that an application can meet has a class of its own, and an unknown outcome is told
apart by its type.
"""

from __future__ import annotations

import pickle
import re

import pytest

from raftlog import errors
from raftlog.client.requests import RefusedItemsError
from raftlog.errors import ApiError, ErrorCode, ItemsRefusedError, UnknownOutcomeError
from raftlog.wire.controller.v1 import controller_pb2

BETWEEN_NODES = {
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
def test_an_error_is_of_the_class_of_its_code(code: ErrorCode) -> None:
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
def test_error_of_no_request_has_the_attributes_of_one(error: errors.RaftlogError) -> None:
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
def test_an_unknown_outcome_is_no_refusal(code: ErrorCode) -> None:
    """[``except TopicAlreadyExistsError: pass`` behind a create that may never be executed.]"""
    error = ApiError(code, "why", outcome_unknown=True)
    assert type(error) is UnknownOutcomeError
    assert not error.retriable
    assert (error.code, error.outcome_unknown) == (code, True)


def test_what_is_about_the_moment_may_be_tried_again() -> None:
    assert ApiError(ErrorCode.BROKER_FENCED, "").retriable
    assert not ApiError(ErrorCode.INVALID_CONFIG, "").retriable


@pytest.mark.parametrize("outcome_unknown", [False, True])
def test_errors_travel_between_processes(outcome_unknown: bool) -> None:
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


def test_items_refused_by_the_lower_layer_are_of_the_same_hierarchy() -> None:
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
