"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from raftlog.cli.standard_output import NAME
from raftlog.cli.table import table_lines, wrapped
from raftlog.errors import ApiError
from raftlog.text import ascii_json, printable, printable_json

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def terminal_width() -> int | None:
    """Of the terminal that is written to.

    None: it is a pipe or a file, and nothing is left out: awk and grep want whole lines. Who
    exports COLUMNS wants so many, as with ps: a shell does not export it by itself.
    """
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and int(columns) else None


def print_json(document: Any) -> None:
    """One JSON document."""
    _write_json(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_line(document: Any) -> None:
    """One JSON document in one line, for streams of them."""
    _write_json(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    least: Sequence[str] = (),
) -> None:
    """A table; numbers belong into ``right``-aligned columns. A list shows its items with commas
    between; None and an empty list show as a dash.

    ``least``: what a narrow terminal does without, the least important first; a line below says
    what is missing.
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
        print_text(f"(wider, or with --json: {', '.join(left_out)})")


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value)) or None
    return "-" if value is None else printable(str(value))


def print_line(text: str) -> None:
    """One line for people.

    A terminal may break it, we do not: what is copied from it has to be whole.
    """
    _write(printable(text) + "\n")


def print_text(text: str) -> None:
    """A sentence for people, wrapped at its spaces where a terminal is too narrow."""
    width = terminal_width()
    _write("".join(f"{line}\n" for line in wrapped(printable(text), width)))


def print_note(text: str) -> None:
    """The same on stderr: what was done is not all there is to say."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    print_error("\n".join(wrapped(printable(text), width)), keep="\n")


def print_error(text: str, keep: str = "") -> None:
    """Something on stderr, which may hold a stranger's words.

    ``keep``: "\\n" for text of ours that has several lines.
    """
    sys.stderr.write(printable(text, keep) + "\n")
    sys.stderr.flush()


def to_json(value: Any) -> Any:
    """A value of the client library as plain containers.

    Fields of dataclasses and attributes of listings are keys; a member of an enum is its name as
    the command line spells it; bytes are in hex.
    """
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name.lower().replace("_", "-")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, ApiError):
        return {"code": value.code.name, "message": value.message, "field": value.field}
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    found = [to_json(one) for one in value]
    # A listing has attributes, a list has none.
    return {**to_json(vars(value)), "items": found} if hasattr(value, "__dict__") else found


def known(value: int) -> int | None:
    """None for the wire's -1, "unknown"."""
    return None if value == -1 else value


def _bold(text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"{_BOLD}{text}{_PLAIN}"


def _write(text: str) -> None:
    """What the terminal's character set lacks is shown as its escape."""
    encoding = _encoding()
    _put(text.encode(encoding, "backslashreplace").decode(encoding))


def _write_json(document: str) -> None:
    """The same with the escapes of JSON."""
    shown = printable_json(document)
    try:
        shown.encode(_encoding())
    except UnicodeEncodeError:
        shown = ascii_json(shown)
    _put(shown + "\n")


def _put(text: str) -> None:
    """Write it. An error names the stream, as that of a file names the file."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        error.filename = NAME
        raise


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"
