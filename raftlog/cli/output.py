"""Output: lines, tables and JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from raftlog.cli.streams import NAME
from raftlog.text import ascii_json, columns_of, printable, printable_json, to_json

GAP = "  "
LAST_MIN = 24
"""Minimum width of the last column, which is wrapped at spaces."""
BELOW = "    "
"""Indentation of a last column that does not fit next to the others and is placed below them."""


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    least: Sequence[str] = (),
    width: int | None = None,
) -> tuple[list[str], list[str]]:
    """Return the lines of a table, headings first, and the names of the omitted columns.

    ``right``: columns to align right. ``least``: columns to omit if the table is wider than
    ``width``, the least important first. ``width``: None if unlimited. If the table is still too
    wide, the last column is wrapped in place, or below the others if one of its words would not fit
    in place.
    """
    cells = [list(columns), *(list(row) for row in rows)]
    assert all(len(row) == len(columns) for row in cells), columns
    left_out: list[str] = []
    shown = list(range(len(columns)))
    for name in least:
        if width is None or _total(cells, shown) <= width:
            break
        shown.remove(columns.index(name))
        left_out.append(name)
    aligned_right = {index for index in shown if columns[index] in right}
    lines, widths = [], _widths(cells, shown)
    for row in cells:
        lines += _lines(row, shown, widths, aligned_right, width)
    return lines, left_out


def _widths(cells: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    return [max(columns_of(row[index]) for row in cells) for index in shown]


def _total(cells: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    return sum(_widths(cells, shown)) + len(GAP) * (len(shown) - 1)


def _lines(
    row: Sequence[str],
    shown: Sequence[int],
    widths: Sequence[int],
    right: Collection[int],
    width: int | None,
) -> list[str]:
    parts = []
    for index, cell_width in zip(shown[:-1], widths, strict=False):
        padding = " " * (cell_width - columns_of(row[index]))
        parts.append(padding + row[index] if index in right else row[index] + padding)
    indent = sum(widths[:-1]) + len(GAP) * (len(shown) - 1)
    last = row[shown[-1]]
    if shown[-1] in right:
        return [GAP.join([*parts, " " * (widths[-1] - columns_of(last)) + last]).rstrip()]
    room = None if width is None else max(LAST_MIN, width - indent)
    first, *more = wrapped(last, room)
    needed = indent + max(map(columns_of, (first, *more)))
    if width is not None and needed > width and indent > len(BELOW):
        below = wrapped(last, max(LAST_MIN, width - len(BELOW)))
        return [GAP.join(parts).rstrip(), *(BELOW + line for line in below)]
    return [
        GAP.join([*parts, first]).rstrip(),
        *(" " * indent + line for line in more),
    ]


def wrapped(text: str, room: int | None) -> list[str]:
    """Return a text as lines of at most ``room`` columns, broken only between words; one line if
    None.
    """
    if room is None or columns_of(text) <= room:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def terminal_width() -> int | None:
    """Return the width of the terminal behind standard output.

    Return None for a pipe or a file, so that nothing is omitted: awk and grep need whole lines.
    COLUMNS in the environment sets the width, as with ps: a shell does not export it by default.
    """
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and int(columns) else None


def print_json(document: Any) -> None:
    """Print a value as one JSON document."""
    _write_json(json.dumps(to_json(document), indent=2, ensure_ascii=False))


def print_json_line(document: Any) -> None:
    """Print a value as JSON on one line, for streams of documents."""
    plain = document if isinstance(document, dict) else to_json(document)
    _write_json(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    least: Sequence[str] = (),
) -> None:
    """Print a table.

    A list is shown with commas between its items; None and an empty list as a dash. ``right``:
    columns to align right, such as numbers. ``least``: columns to omit on a narrow terminal, the
    least important first; a line below the table names them.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    headings, left_out = table_lines(
        columns, cells, right=right, least=least, width=terminal_width()
    )
    if any(columns):
        headings[0] = _bold(headings[0])
    else:
        del headings[0]
    _write("".join(f"{line}\n" for line in headings))
    if left_out:
        print_text(f"(omitted columns: {', '.join(left_out)}; see --json)")


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value)) or None
    return "-" if value is None else printable(str(value))


def print_line(text: str) -> None:
    """Print one line without breaking it, so that text copied from a terminal is complete."""
    _write(printable(text) + "\n")


def print_text(text: str) -> None:
    """Print a sentence, wrapped at spaces to the terminal's width."""
    width = terminal_width()
    _write("".join(f"{line}\n" for line in wrapped(printable(text), width)))


def print_note(text: str) -> None:
    """Print a sentence to stderr, separate from the result."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    print_error("\n".join(wrapped(printable(text), width)), keep="\n")


def print_error(text: str, keep: str = "") -> None:
    """Print a message, which may contain foreign text, to stderr. ``keep``: a line break if our own
    text has several lines.
    """
    sys.stderr.write(printable(text, keep) + "\n")
    sys.stderr.flush()


def known(value: int) -> int | None:
    """Return a number, or None for the wire's -1, which means unknown."""
    return None if value == -1 else value


def _bold(text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"{_BOLD}{text}{_PLAIN}"


def _write(text: str) -> None:
    """Write a text, escaping characters that the terminal's character set lacks."""
    encoding = _encoding()
    _put(text.encode(encoding, "backslashreplace").decode(encoding))


def _write_json(document: str) -> None:
    """Write a JSON document, with JSON escapes for characters that the terminal lacks."""
    shown = printable_json(document)
    try:
        shown.encode(_encoding())
    except UnicodeEncodeError:
        shown = ascii_json(shown)
    _put(shown + "\n")


def _put(text: str) -> None:
    """Write a text. An error names the stream."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        error.filename = NAME
        raise


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"
