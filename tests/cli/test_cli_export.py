"""What `raftlog export` refuses before it asks anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.cli.export import _telling
from raftlog.segments.files import open_place
from raftlog.segments.manifest import Manifest


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--publish-interval", 3), "go with --follow"),
        (("--publish-records", 3), "go with --follow"),
        (("--follow", "-d", "somewhere"), "does not grow"),
        (("--follow", "--publish-interval", 0), "--publish-interval"),
    ],
)
def test_options_that_do_not_go_together(
    raftlog: Raftlog, tmp_path: Path, options: tuple[object, ...], why: str
) -> None:
    ran = raftlog("export", tmp_path / "export", *options)
    assert (ran.code, why in ran.err) == (2, True)
    assert not (tmp_path / "export").exists()


def test_a_uri_that_nothing_can_open(raftlog: Raftlog) -> None:
    ran = raftlog("export", "nonsense://bucket/export", "--bootstrap-controller", "127.0.0.1:1")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "nonsense://bucket/export cannot be opened: Protocol not known: nonsense" in ran.err


def test_a_publish_of_nothing_new_is_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Following ends with a publish of what nodes have said; the cursor hears of each."""
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
