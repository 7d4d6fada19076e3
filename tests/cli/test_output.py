"""What commands print for people."""

from __future__ import annotations

import os

import pytest

from raftlog.cli import output
from raftlog.cli.output import table_lines
from raftlog.text import columns_of

COLUMNS = ("NODE", "ENDPOINT", "LAG", "REASON")
ROWS = [
    ("1", "127.0.0.1:20001", "12", "it follows"),
    ("22", "127.0.0.1:20002", "3", "its session has ended, and nothing was heard of it since"),
]


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_long_line_is_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line break inside an `export` makes what is copied export nothing."""
    narrow(monkeypatch, 40)
    line = "  export RAFTLOG_BOOTSTRAP_CONTROLLER=127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
    output.print_line(line)
    assert capsys.readouterr().out == line + "\n"


def test_a_word_that_does_not_fit_is_below_the_others_and_not_broken_by_the_terminal() -> None:
    word = "5ba4ba36c486f0e7ea900c0b59bd52f7"
    rows = [("1", "127.0.0.1:20001", "12", f"created: id {word}"), ROWS[0]]
    lines, _ = table_lines(COLUMNS, rows, least=("LAG",), width=50)
    assert lines == [
        "NODE  ENDPOINT         REASON",
        "1     127.0.0.1:20001",
        f"    created: id {word}",
        "1     127.0.0.1:20001  it follows",
    ]


def test_what_was_left_out_is_said_within_the_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow(monkeypatch, 36)
    output.print_table(COLUMNS, ROWS, right=("LAG",), least=("LAG", "ENDPOINT"))
    out = capsys.readouterr().out.splitlines()
    assert out[-2:] == ["(wider, or with --json: LAG,", "ENDPOINT)"]
    assert max(map(len, out)) <= 36


def test_a_note_is_wrapped_for_a_terminal_and_whole_for_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "note: cleanup.policy is kept and shown, but this build does not act on it"
    output.print_note(note)
    assert capsys.readouterr().err == note + "\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    output.print_note(note)
    assert capsys.readouterr().err.splitlines() == [
        "note: cleanup.policy is kept and shown,",
        "but this build does not act on it",
    ]


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (None, "NODE  ENDPOINT         LAG  REASON"),
        ("0", "NODE  ENDPOINT         LAG  REASON"),
        ("eighty", "NODE  ENDPOINT         LAG  REASON"),
        ("200", "NODE  ENDPOINT         LAG  REASON"),
        ("70", "NODE  REASON"),
    ],
)
def test_a_pipe_gets_all_columns_unless_somebody_exports_how_many(
    columns: str | None,
    headings: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    output.print_table(COLUMNS, ROWS, right=("LAG",), least=("LAG", "ENDPOINT"))
    assert capsys.readouterr().out.splitlines()[0] == headings


def test_a_table_is_as_wide_as_it_is_where_nothing_limits_it() -> None:
    lines, left_out = table_lines(COLUMNS, ROWS, right=("LAG",), least=("LAG", "ENDPOINT"))
    assert left_out == []
    assert lines == [
        "NODE  ENDPOINT         LAG  REASON",
        "1     127.0.0.1:20001   12  it follows",
        "22    127.0.0.1:20002    3  its session has ended, and nothing was heard of it since",
    ]


def test_the_least_important_columns_drop_out_until_the_rest_fits() -> None:
    lines, left_out = table_lines(COLUMNS, ROWS, least=("LAG", "ENDPOINT"), width=79)
    assert left_out == ["LAG"]
    assert max(map(len, lines)) <= 79
    lines, left_out = table_lines(COLUMNS, ROWS, least=("LAG", "ENDPOINT"), width=70)
    assert left_out == ["LAG", "ENDPOINT"]


def test_what_still_does_not_fit_is_the_last_column_which_goes_on_below_itself() -> None:
    lines, _ = table_lines(COLUMNS, ROWS, least=("LAG", "ENDPOINT"), width=40)
    assert lines == [
        "NODE  REASON",
        "1     it follows",
        "22    its session has ended, and nothing",
        "      was heard of it since",
    ]


def test_time_of_a_table_is_linear_in_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """[Each row measured all others: the list of 10,000 topics took 48 s.]"""
    measured = 0

    def counting(text: str) -> int:
        nonlocal measured
        measured += 1
        return columns_of(text)

    monkeypatch.setattr("raftlog.cli.output.columns_of", counting)
    counts = []
    for rows in (50, 100):
        measured = 0
        table_lines(COLUMNS, ROWS * rows, least=("LAG",), width=70)
        counts.append(measured)
    assert counts[1] < 2.1 * counts[0]


def test_a_long_word_is_never_broken() -> None:
    lines, _ = table_lines(("A", "B"), [("x", "y" * 60 + " z")], width=20)
    assert lines[1] == "x  " + "y" * 60


def test_wide_characters_keep_the_columns_straight() -> None:
    lines, _ = table_lines(("A", "B"), [("中文", "x"), ("e\u0301", "y")])
    assert [columns_of(line) for line in lines] == [7, 7, 7]


def test_a_terminal_is_told_what_it_lacks_and_a_pipe_gets_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output.print_table(COLUMNS, ROWS, least=("LAG", "ENDPOINT"))
    assert "ENDPOINT" in capsys.readouterr().out.splitlines()[0]
    narrow(monkeypatch, 60)
    output.print_table(COLUMNS, ROWS, least=("LAG", "ENDPOINT"))
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "NODE  REASON"
    assert out.splitlines()[-1] == "(wider, or with --json: LAG, ENDPOINT)"


def test_a_table_without_headings_has_no_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("", ""), [("cluster id", None)])
    assert capsys.readouterr().out == "cluster id  -\n"
