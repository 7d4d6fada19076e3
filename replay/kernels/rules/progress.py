"""Rules about LowestAcknowledgedOffset in progress records: it is below the high watermark, never
decreases, and all LAO members have applied it. Also rules about its sources: high watermark and
applied offsets are within the log and never decrease under one controller.

A progress record lists the brokers whose applied offset changed since the previous one in its
controller epoch. So a broker's applied offset at a record is the last one listed in that epoch,
under that registration; this is exact, as the record was decided from the offsets that it lists.
The LAO members are the brokers that are unfenced at the record. (LAO also counts brokers whose
fencing is not committed yet, which the log does not show.)
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.arrays import MISSING, Ints, distinct, ints, order_of, spread, whole
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding, Place, offence, place_in

COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "lowest_acknowledged_offset",
    "high_watermark",
    "applied",
)
TYPES = (RecordType.PROGRESS,)
_Key = tuple[int, int, int]


class Progress:
    """Judges each record on its own, against earlier ones, and against the brokers' reports."""

    def __init__(self, facts: Facts) -> None:
        spans = [span for span in facts.brokers if span.fenced is False]
        self._spans = sorted(spans, key=lambda span: span.begins)
        self._begins = np.array([span.begins for span in self._spans], np.int64)
        self._ends = np.array([span.ends for span in self._spans], np.int64)
        self._levels = _Levels()
        self._numbers: dict[_Key, int] = {}
        """(broker, broker epoch, controller epoch) -> number under which its reports are stored."""
        self._applied = np.zeros(64, np.int64)
        self._reported = np.full(64, MISSING, np.int64)

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice."""
        if not table.num_rows:
            return
        offset, lao, mark = (
            ints(table[name]) for name in ("offset", "lowest_acknowledged_offset", "high_watermark")
        )
        yield from self._levels.check(table, offset, lao, mark)
        yield from self._acknowledged(table, offset, lao)

    def _acknowledged(self, table: pa.Table, offset: Ints, lao: Ints) -> Iterator[Finding]:
        """Compare each known LAO with the last report of each unfenced broker."""
        epoch = ints(table["epoch"])
        reports, report_rows, applied = self._reports(table, epoch)
        # A record's own reports count for its LAO.
        count = len(offset)
        keys = reports * count + report_rows
        order = order_of(keys)
        keys = keys[order]
        yield from self._applying(table, offset, (reports, report_rows, applied), order)
        known = np.flatnonzero(lao >= 0)
        spans, rows = self._counting(offset, known)
        asked = self._asked(spans, epoch[rows])
        at = np.searchsorted(keys, asked * count + rows, side="right") - 1
        inside = np.maximum(at, 0)
        if len(keys):
            here = (at >= 0) & (reports[order][inside] == asked)
            said = np.where(here, applied[order][inside], self._applied[asked])
            said_at = np.where(here, offset[report_rows[order][inside]], self._reported[asked])
        else:
            said, said_at = self._applied[asked], self._reported[asked]
        for index in np.flatnonzero((said_at == MISSING) | (said < lao[rows])).tolist():
            yield self._judge(
                table,
                int(rows[index]),
                int(spans[index]),
                None if said_at[index] == MISSING else (int(said[index]), int(said_at[index])),
            )
        self._remember(reports[order], applied[order], offset[report_rows[order]], int(epoch[-1]))

    def _applying(
        self, table: pa.Table, offset: Ints, said: tuple[Ints, Ints, Ints], order: Ints
    ) -> Iterator[Finding]:
        """Compare each report with the log before it and with the broker's previous report.

        ``order``: sort order by number, then by row.
        """
        reports, rows, applied = said
        column = whole(table["applied"]).flatten()
        for index in np.flatnonzero(applied >= offset[rows]).tolist():
            row = int(rows[index])
            yield _applied(
                rules.APPLIED_BEYOND_LOG,
                place_in(table, row, ""),
                column[index].as_py(),
                f"less than {offset[row]}, the log end",
            )
        number, reached, at = reports[order], applied[order], offset[rows[order]]
        again = np.zeros(len(order), np.bool_)
        again[1:] = number[1:] == number[:-1]
        before, said_at = self._applied[number], self._reported[number]
        before[1:] = np.where(again[1:], reached[:-1], before[1:])
        said_at[1:] = np.where(again[1:], at[:-1], said_at[1:])
        for index in np.flatnonzero((said_at != MISSING) & (reached < before)).tolist():
            which = int(order[index])
            yield _applied(
                rules.APPLIED_WENT_BACK,
                place_in(table, int(rows[which]), ""),
                column[which].as_py(),
                f"{before[index]} or more",
                int(said_at[index]),
            )

    def _reports(self, table: pa.Table, epoch: Ints) -> tuple[Ints, Ints, Ints]:
        """Return all reports: number, the record's row, and applied offset."""
        column = whole(table["applied"])
        counts = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        flat = column.flatten()
        rows = np.repeat(np.arange(len(column)), counts)
        brokers, broker_epochs, applied = (ints(flat.field(index)) for index in range(3))
        return self._number(brokers, broker_epochs, epoch[rows]), rows, applied

    def _number(self, brokers: Ints, broker_epochs: Ints, epochs: Ints) -> Ints:
        """Return a number for each distinct triple."""
        if not len(brokers):
            return np.zeros(0, np.int64)
        # Only for distinct triples: within a slice these are few.
        first, one = distinct(brokers)
        second, two = distinct(broker_epochs)
        third, three = distinct(epochs)
        packed = (one * len(second) + two) * len(third) + three
        different, where = distinct(packed)
        numbers = []
        for each in different.tolist():
            rest, last = divmod(each, len(third))
            broker, middle = divmod(rest, len(second))
            key = int(first[broker]), int(second[middle]), int(third[last])
            numbers.append(self._key(key))
        return np.array(numbers, np.int64)[where]

    def _key(self, key: _Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            if number == len(self._applied):
                self._applied = np.concatenate([self._applied, np.zeros_like(self._applied)])
                more = np.full_like(self._reported, MISSING)
                self._reported = np.concatenate([self._reported, more])
        return number

    def _counting(self, offset: Ints, known: Ints) -> tuple[Ints, Ints]:
        """Return, for each record with a known LAO, the brokers unfenced at it: span and row."""
        near = np.flatnonzero((self._ends > offset[0]) & (self._begins <= offset[-1]))
        first = np.searchsorted(offset[known], self._begins[near])
        last = np.searchsorted(offset[known], self._ends[near])
        owner, place = spread(first, last - first)
        return near[owner], known[place]

    def _asked(self, spans: Ints, epochs: Ints) -> Ints:
        brokers = np.array([span.broker_id for span in self._spans], np.int64)
        broker_epochs = np.array([span.broker_epoch for span in self._spans], np.int64)
        if not len(brokers):
            return np.zeros(0, np.int64)
        return self._number(brokers[spans], broker_epochs[spans], epochs)

    def _remember(self, reports: Ints, applied: Ints, at: Ints, epoch: int) -> None:
        last = np.ones(len(reports), np.bool_)
        last[:-1] = reports[1:] != reports[:-1]
        self._applied[reports[last]] = applied[last]
        self._reported[reports[last]] = at[last]
        # Reports to earlier controllers no longer count: keep those of the last two epochs.
        if len(self._numbers) > 4 * len(self._spans) + 1024:
            kept = [key for key in self._numbers if key[2] >= epoch - 1]
            old = np.array([self._numbers[key] for key in kept], np.int64)
            size = max(64, len(kept))
            applied, reported = np.zeros(size, np.int64), np.full(size, MISSING, np.int64)
            applied[: len(old)], reported[: len(old)] = self._applied[old], self._reported[old]
            self._numbers = {key: number for number, key in enumerate(kept)}
            self._applied, self._reported = applied, reported

    def _judge(
        self, table: pa.Table, row: int, span_number: int, said: tuple[int, int] | None
    ) -> Finding:
        span = self._spans[span_number]
        broker = span.broker_id
        place = place_in(table, row, f"LAO, broker {broker}")
        found = f"LAO {table['lowest_acknowledged_offset'][row].as_py()}"
        if said is None:
            return offence(
                rules.LAO_WITHOUT_REPORT,
                place,
                broker_id=broker,
                also=span.begins,
                found=found,
                expected=f"unknown, as broker {broker} has not reported in epoch {place.epoch}",
            )
        applied, said_at = said
        return offence(
            rules.LAO_ABOVE_APPLIED,
            place,
            broker_id=broker,
            also=None if said_at == place.offset else said_at,
            found=found,
            expected=f"at most {applied}, the applied offset of broker {broker}",
        )


def _applied(
    rule: rules.Rule,
    place: Place,
    report: dict[str, int],
    expected: str,
    also: int | None = None,
) -> Finding:
    broker, epoch, applied = list(report.values())[:3]
    return offence(
        rule,
        msgspec.structs.replace(place, subject=f"broker {broker}"),
        broker_id=broker,
        also=also,
        found=f"applied {applied}, under epoch {epoch}",
        expected=expected,
    )


class _Levels:
    """Rules about LAO and the high watermark: LAO is below the high watermark, both are within the
    log, and neither decreases. Each record is judged on its own and against earlier ones.
    """

    def __init__(self) -> None:
        self._highest = (MISSING, MISSING)
        """The highest LAO so far, and the offset of the latest record that contains it."""
        self._mark = (MISSING, MISSING, MISSING)
        """The newest controller epoch, its highest high watermark, and the offset of the latest
        record that contains it.
        """

    def check(self, table: pa.Table, offset: Ints, lao: Ints, mark: Ints) -> Iterator[Finding]:
        """Yield the findings in a slice of progress records."""
        for row in np.flatnonzero((lao >= 0) & (lao >= mark)).tolist():
            yield offence(
                rules.LAO_NOT_BELOW_HIGH_WATERMARK,
                place_in(table, row, "LAO"),
                found=f"LAO {lao[row]}",
                expected=f"less than {mark[row]}",
            )
        for row in np.flatnonzero(mark > offset).tolist():
            yield offence(
                rules.HIGH_WATERMARK_BEYOND_LOG,
                place_in(table, row, "LAO"),
                found=f"high watermark {mark[row]}",
                expected=f"at most {offset[row]}, the log end",
            )
        yield from self._marks(table, offset, mark)
        yield from self._levels(table, offset, lao)

    def _marks(self, table: pa.Table, offset: Ints, mark: Ints) -> Iterator[Finding]:
        """Check high watermarks within each epoch only, as a new controller may know a lower one at
        first.
        """
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
                    place_in(table, start + index, "LAO"),
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
                place_in(table, int(known[index]), "LAO"),
                also=int(said_at[index]),
                found=f"LAO {levels[index + 1]}",
                expected=f"{highest[index]} or more",
            )
        self._highest = int(highest[-1]), int(said_at[-1])


def _highest(levels: Ints, said_at: Ints) -> tuple[Ints, Ints]:
    """Return the highest level up to each one, and the offset of the latest record that contains
    it.
    """
    highest = np.maximum.accumulate(levels)
    at = np.maximum.accumulate(np.where(levels == highest, np.arange(len(levels)), 0))
    return highest, said_at[at]
