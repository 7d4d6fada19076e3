"""Pieces of Markdown that look the same on a forge and on the site."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100


def cell(text: str) -> str:
    """Return text for a table cell: on one line, without characters that end the cell or begin a
    tag.
    """
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are already Markdown."""
    lines = "".join(f"| {' | '.join(line)} |\n" for line in [heads, *rows]).replace("|  |", "| |")
    head, _, body = lines.partition("\n")
    return f"{head}\n{'|---' * len(heads)}|\n{body}"


def paragraph(text: str, *, indent: str = "") -> str:
    """Return text broken into lines, all but the first indented. Long words are not broken."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
