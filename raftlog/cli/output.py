"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raftlog.printable import printable, printable_json
from raftlog.safe_console import SafeConsole


def console() -> Console:
    """Where people read.

    Not cut to a narrow width when it is a pipe: awk and grep want whole lines.
    """
    return SafeConsole(
        highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 500
    )


def print_json(document: Any) -> None:
    """One JSON document."""
    sys.stdout.write(printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")


def print_json_line(document: Any) -> None:
    """One JSON document in one line, for streams of them."""
    sys.stdout.write(
        printable_json(json.dumps(document, ensure_ascii=False, separators=(",", ":"))) + "\n"
    )


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table; numbers belong into ``right``-aligned columns. None shows as a dash."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if value is None else printable(str(value))) for value in row))
    console().print(table)


def print_line(text: str) -> None:
    """One line for people.

    A terminal may break it, we do not: what is copied from it has to be whole.
    """
    console().print(Text(printable(text)), soft_wrap=True)


def print_error(text: str, keep: str = "") -> None:
    """Something on stderr, which may hold a stranger's words.

    ``keep``: "\\n" for text of ours that has several lines.
    """
    sys.stderr.write(printable(text, keep) + "\n")
    sys.stderr.flush()


def known(value: int) -> int | None:
    """None for the wire's -1, "unknown"."""
    return None if value == -1 else value
