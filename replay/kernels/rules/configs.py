"""The rule about topic configs: the topic must exist.

Several topics may have had a name, one after the other. So each name has a timeline of topic lives,
and a record is judged from that alone, without other records.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.arrays import Bools, Ints, codes, ints
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding, offence, place_in

COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "batch_base_offset",
    "batch_last_offset",
    "resource_type",
    "resource_name",
    "config_name",
    "config_value",
)
TYPES = (RecordType.CONFIG,)


class Configs:
    """Compares each topic config with the lives of the topics of that name."""

    def __init__(self, facts: Facts) -> None:
        lives = sorted(
            (life.topic_name, life.begins, life.ends)
            for life in facts.topics
            if life.topic_name is not None
        )
        names = sorted({name for name, _, _ in lives})
        self._numbers = {name: number for number, name in enumerate(names)}
        self._keys = np.array(
            [(self._numbers[name] << 40) + begins for name, begins, _ in lives], np.int64
        )
        self._ends = np.array([ends for _, _, ends in lives], np.int64)

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice."""
        rows = table.filter(pc.equal(table["resource_type"], int(ResourceType.TOPIC)))
        if not rows.num_rows:
            return
        for row in np.flatnonzero(~self._there(rows)).tolist():
            yield _found(rows, row)

    def _there(self, rows: pa.Table) -> Bools:
        """Return whether each record's topic exists.

        A topic created in the same batch exists. In the batch that removes a topic, its configs may
        be removed before or after that record, but none may be set after it.
        """
        if not len(self._keys):
            return np.zeros(rows.num_rows, np.bool_)
        # As a dictionary, the column would keep the names of all other rows.
        of_row, names = codes(rows["resource_name"].cast(pa.string()))
        # Null stands for no name.
        numbers = np.array([self._numbers.get(each, -1) for each in [*names, None]], np.int64)
        number = numbers[np.where(of_row < 0, len(names), of_row)]
        offset, first, last = (
            ints(rows[name]) for name in ("offset", "batch_base_offset", "batch_last_offset")
        )
        at = np.searchsorted(self._keys, (number << 40) + last, side="right") - 1
        known = (number >= 0) & (at >= 0)
        known &= (self._keys[np.maximum(at, 0)] >> 40) == number
        goes = rows["config_value"].is_null().to_numpy()
        until: Ints = np.where(goes, first - 1, offset)
        there: Bools = known & (self._ends[np.maximum(at, 0)] > until)
        return there


def _found(rows: pa.Table, row: int) -> Finding:
    name, key, value = (
        rows[column][row].as_py() for column in ("resource_name", "config_name", "config_value")
    )
    return offence(
        rules.CONFIG_OF_UNKNOWN_TOPIC,
        place_in(rows, row, f"topic {name}", topic_name=name),
        found=f"{key} {'removed' if value is None else 'set'}",
        expected=f"an existing topic {name}",
    )
