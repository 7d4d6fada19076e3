"""Rules about the two levels that a progress record says, LAO and the high watermark: one below the
other, both within the log, and neither goes back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from replay import rules
from replay.kernels.arrays import MISSING, Ints, ints
from replay.kernels.findings import Finding, Place, offence

RULES = (
    rules.LAO_NOT_BELOW_HIGH_WATERMARK,
    rules.HIGH_WATERMARK_BEYOND_LOG,
    rules.HIGH_WATERMARK_WENT_BACK,
    rules.LAO_WENT_BACK,
)


class Levels:
    """Each record by itself, and beside those before it."""

    def __init__(self) -> None:
        self._highest = (MISSING, MISSING)
        """The highest LAO so far, and the newest record that said it."""
        self._mark = (MISSING, MISSING, MISSING)
        """The newest controller epoch, its highest high watermark, and the newest record that said
        it.
        """

    def check(self, table: pa.Table, offset: Ints, lao: Ints, mark: Ints) -> Iterator[Finding]:
        """Yield the findings in a slice of progress records."""
        for row in np.flatnonzero((lao >= 0) & (lao >= mark)).tolist():
            yield offence(
                rules.LAO_NOT_BELOW_HIGH_WATERMARK,
                place_of(table, row, "LAO"),
                found=f"LAO {lao[row]}",
                expected=f"less than {mark[row]}",
            )
        for row in np.flatnonzero(mark > offset).tolist():
            yield offence(
                rules.HIGH_WATERMARK_BEYOND_LOG,
                place_of(table, row, "LAO"),
                found=f"high watermark {mark[row]}",
                expected=f"{offset[row]}, the end of the log, or less",
            )
        yield from self._marks(table, offset, mark)
        yield from self._levels(table, offset, lao)

    def _marks(self, table: pa.Table, offset: Ints, mark: Ints) -> Iterator[Finding]:
        """A new controller may know less at first: each epoch has a high watermark of its own."""
        epoch = ints(table["epoch"])
        starts = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(epoch)], strict=True):
            of, known, said_at = self._mark
            if of != epoch[start]:
                known, said_at = MISSING, MISSING
            levels = np.concatenate([[known], mark[start:end]])
            highest, newest = _highest(levels, np.concatenate([[said_at], offset[start:end]]))
            for index in np.flatnonzero(levels[1:] < highest[:-1]).tolist():
                yield offence(
                    rules.HIGH_WATERMARK_WENT_BACK,
                    place_of(table, start + index, "LAO"),
                    also=int(newest[index]),
                    found=f"high watermark {levels[index + 1]}",
                    expected=f"{highest[index]} or more",
                )
            self._mark = int(epoch[start]), int(highest[-1]), int(newest[-1])

    def _levels(self, table: pa.Table, offset: Ints, lao: Ints) -> Iterator[Finding]:
        known = np.flatnonzero(lao >= 0)
        levels = np.concatenate([[self._highest[0]], lao[known]])
        highest, said_at = _highest(levels, np.concatenate([[self._highest[1]], offset[known]]))
        for index in np.flatnonzero(levels[1:] < highest[:-1]).tolist():
            yield offence(
                rules.LAO_WENT_BACK,
                place_of(table, int(known[index]), "LAO"),
                also=int(said_at[index]),
                found=f"LAO {levels[index + 1]}",
                expected=f"{highest[index]} or more",
            )
        self._highest = int(highest[-1]), int(said_at[-1])


def _highest(levels: Ints, said_at: Ints) -> tuple[Ints, Ints]:
    """Return the highest level up to each one, and where the newest of those that say it stands."""
    highest = np.maximum.accumulate(levels)
    at = np.maximum.accumulate(np.where(levels == highest, np.arange(len(levels)), 0))
    return highest, said_at[at]


def place_of(table: pa.Table, row: int, subject: str) -> Place:
    """Return the place of an offence in a row."""
    offset, epoch, timestamp_ms, principal = (
        table[name][row].as_py() for name in ("offset", "epoch", "timestamp_ms", "principal")
    )
    return Place(offset, epoch, timestamp_ms, principal, subject)
