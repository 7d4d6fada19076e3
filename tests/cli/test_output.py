"""What commands print for people."""

from __future__ import annotations

import pytest
from rich.console import Console

from raftlog.cli import output


def test_a_long_line_is_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line break inside an `export` makes what is copied export nothing."""
    monkeypatch.setattr(
        output, "console", lambda: Console(width=40, force_terminal=True, color_system=None)
    )
    line = "  export RAFTLOG_BOOTSTRAP_CONTROLLER=127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
    output.print_line(line)
    assert capsys.readouterr().out == line + "\n"
