"""All rows of docs/proposals.md, with what makes each of them false, or why nothing does."""

from __future__ import annotations

import re

import rows_around
import rows_broker_ids
import rows_further
import rows_heartbeats
import rows_isr
import rows_lao
from row_data import NoEdit, RowEdit
from row_runs import ROOT

TABLE = ROOT / "docs" / "proposals.md"
ALL: tuple[RowEdit | NoEdit, ...] = (
    *rows_heartbeats.ROWS,
    *rows_lao.ROWS,
    *rows_broker_ids.ROWS,
    *rows_isr.ROWS,
    *rows_around.ROWS,
    *rows_further.ROWS,
)
EDITS = tuple(one for one in ALL if isinstance(one, RowEdit))
NO_EDITS = tuple(one for one in ALL if isinstance(one, NoEdit))


def named_rows() -> list[str]:
    """The names of all rows, in the document's order."""
    return re.findall(r"^\| ([A-Z]+-\d+) \|", TABLE.read_text(), re.MULTILINE)
