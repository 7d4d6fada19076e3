"""Pieces of Markdown that read the same on a forge and on the site."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100


def cell(text: str) -> str:
    """Text in a table: one line, with nothing that ends the cell or begins a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = "".join(f"| {' | '.join(line)} |\n" for line in [heads, *rows]).replace("|  |", "| |")
    head, _, body = lines.partition("\n")
    return f"{head}\n{'|---' * len(heads)}|\n{body}"


def paragraph(text: str, *, indent: str = "") -> str:
    """Text broken into lines, the later ones indented. A long word stays whole."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
