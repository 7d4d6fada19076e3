"""The events of a node's journal: ``raftlog/journal/event.py``."""

from __future__ import annotations

from raftlog.journal.event import KINDS
from reference_pages.markdown import cell
from reference_pages.markdown import table as markdown_table


def table() -> str:
    """All kinds."""
    rows = (
        (f"`{kind}`", ", ".join(f"`{name}`" for name in about.details), cell(about.meaning))
        for kind, about in KINDS.items()
    )
    return markdown_table(("Event", "Details", "Meaning"), rows)
