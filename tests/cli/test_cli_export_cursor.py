"""The cursor of an export while the controllers change."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftlog.errors import ApiError, ErrorCode
from raftlog.ops.export_cursor import MAX_ATTEMPTS, ClusterCursors
from raftlog.ops.logs import RunningLog
from raftlog.wire.controller.v1 import controller_pb2 as pb


class Flaky:
    """A running log whose first answers get lost."""

    def __init__(self, failures: int, *, unknown: bool = True) -> None:
        self.left, self.unknown, self.asked = failures, unknown, 0

    def call(self, body: Any, *, principal: str = "") -> pb.ControllerResponse:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ApiError(
                ErrorCode.NETWORK_EXCEPTION, "the link was cut", outcome_unknown=self.unknown
            )
        response = pb.ControllerResponse()
        if isinstance(body, pb.ListExportCursorsRequest):
            response.list_export_cursors.cursors.add(name="nightly", end_offset=7, target="here")
        else:
            response.alter_export_cursors.results.add(name="nightly")
        return response


def cursors(log: Flaky) -> ClusterCursors:
    return ClusterCursors(cast(RunningLog, log), sleep=lambda _: None)


def test_what_is_unknown_is_asked_again() -> None:
    log = Flaky(2)
    found = cursors(log).get("nightly")
    assert found is not None
    assert (found.end_offset, log.asked) == (7, 3)
    log = Flaky(2)
    cursors(log).put("nightly", 9, "here")
    assert log.asked == 3


def test_not_for_ever_and_not_what_is_known() -> None:
    for log, asked in ((Flaky(100), MAX_ATTEMPTS), (Flaky(100, unknown=False), 1)):
        with pytest.raises(ApiError):
            cursors(log).put("nightly", 9, "here")
        assert log.asked == asked
