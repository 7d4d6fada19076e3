"""``raftlog export``: its options, and its cursor while the controllers change."""

from pathlib import Path
from typing import Any, cast

import pytest
from command_lines import Raftlog

from raftlog.cli.export import _telling
from raftlog.errors import ApiError, ErrorCode
from raftlog.ops.export_cursor import MAX_ATTEMPTS, ClusterCursors
from raftlog.ops.logs import RunningLog
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Manifest
from raftlog.wire.controller.v1 import controller_pb2 as pb


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--publish-interval", 3), "need --follow"),
        (("--publish-records", 3), "need --follow"),
        (("--follow", "-d", "somewhere"), "does not grow"),
        (("--follow", "--publish-interval", 0), "--publish-interval"),
    ],
)
def test_conflicting_options_are_refused(
    raftlog: Raftlog, tmp_path: Path, options: tuple[object, ...], why: str
) -> None:
    raftlog("export", tmp_path / "export", *options).refused(2, why)
    assert not (tmp_path / "export").exists()


def test_unsupported_uri_is_refused(raftlog: Raftlog) -> None:
    ran = raftlog("export nonsense://bucket/export --bootstrap-controller 127.0.0.1:1")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "nonsense://bucket/export cannot be opened: Protocol not known: nonsense" in ran.err


def test_empty_publish_prints_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Following ends with a publish up to the offset that nodes have reported; each publish moves
    the cursor.
    """
    heard: list[int] = []
    tell = _telling(
        lambda manifest: heard.append(manifest.end_offset), open_place(tmp_path), as_json=False
    )
    for end in (5, 5, 9, 9):
        tell(
            Manifest(
                cluster_id="c", generation=0, history_begin=end, high_watermark=end, exported_at=""
            )
        )
    assert heard == [5, 5, 9, 9]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{tmp_path}: published up to offset {offset}" for offset in (4, 8)]


class Flaky:
    """A running log whose first responses are lost."""

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


def test_cursor_call_is_retried_while_its_outcome_is_unknown() -> None:
    log = Flaky(2)
    found = cursors(log).get("nightly")
    assert found is not None
    assert (found.end_offset, log.asked) == (7, 3)
    log = Flaky(2)
    cursors(log).put("nightly", 9, "here")
    assert log.asked == 3


def test_cursor_call_is_not_retried_forever_or_after_a_definite_error() -> None:
    for log, asked in ((Flaky(100), MAX_ATTEMPTS), (Flaky(100, unknown=False), 1)):
        with pytest.raises(ApiError):
            cursors(log).put("nightly", 9, "here")
        assert log.asked == asked
