"""Tables of a result: one description, which a terminal and the page of the report show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Column, Table

from replay.text import more

TEXT, FIXED, NUMBER = "text", "fixed", "number"
"""Kinds of a column: text that may be wrapped, text that is not, and figures."""


class Listing(NamedTuple):
    """A table. ``columns``: the name of each, and its kind; ``total``: the number of rows that
    there are, of which ``rows`` are the first; ``note`` explains a column.
    """

    title: str
    columns: dict[str, str]
    rows: Sequence[tuple[str, ...]]
    total: int = 0
    note: str = ""

    @property
    def rest(self) -> str:
        """How to see the rows that are left out; empty if there are none."""
        return more(len(self.rows), self.total).strip(" ()")

    def table(self) -> Table:
        """Return the table for a terminal."""
        columns = (
            Column(name, no_wrap=kind == FIXED, overflow="fold")
            for name, kind in self.columns.items()
        )
        caption = "\n".join(line for line in (self.note, self.rest) if line)
        found = Table(*columns, title=self.title, caption=caption or None)
        for row in self.rows:
            found.add_row(*row)
        return found


def print_listings(listings: Iterable[Listing], console: Console) -> None:
    """Print the tables that have a row."""
    for each in listings:
        if each.rows:
            console.print(each.table())
