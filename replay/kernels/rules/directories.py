"""The rule about directories of replicas (KIP-858): each must have been registered by its broker.
Only Kafka's logs contain them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from raftlog.metadata.words import parse_topic_id
from replay import rules
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding, Judged, offence

_RESERVED = 100
"""Ids below this are not directories but stand for unassigned, lost, migrating, and future
meanings.
"""


class Directories:
    """The brokers' registered directories, with which partition assignments are compared."""

    def __init__(self, facts: Facts) -> None:
        self._state_from = facts.state_from
        self._begins: dict[int, list[int]] = defaultdict(list)
        self._known: dict[int, list[frozenset[str] | None]] = defaultdict(list)
        for span in sorted(facts.brokers, key=lambda each: each.begins):
            known = None if span.log_dirs is None else frozenset(span.log_dirs)
            self._begins[span.broker_id].append(span.begins)
            self._known[span.broker_id].append(known)

    def check(self, judged: Judged) -> Iterator[Finding]:
        """Check each record that names directories. Their registration may follow in the same
        batch.
        """
        steps = judged.steps
        said = np.asarray(steps.table["directories"].is_valid())
        rows = np.flatnonzero(steps.real & (steps.source >= 0) & (steps.replicas >= 0))
        for row in rows[said[steps.source[rows]]].tolist() if len(said) else ():
            if steps.begins[row] < self._state_from:
                continue
            replicas = judged.lists.members[int(steps.replicas[row])]
            directories = steps.text("directories", row)
            if len(directories) != len(replicas):
                yield offence(
                    rules.DIRECTORY_NOT_REGISTERED,
                    judged.place(row),
                    found=f"{len(directories)} directories for {len(replicas)} replicas",
                    expected="one for each replica",
                )
                continue
            for broker_id, directory in zip(replicas, directories, strict=True):
                known = self._at(broker_id, int(steps.last_offset[row]))
                if known is not None and directory not in known and not _is_reserved(directory):
                    yield offence(
                        rules.DIRECTORY_NOT_REGISTERED,
                        judged.place(row),
                        broker_id=broker_id,
                        found=f"directory {directory} of broker {broker_id}",
                        expected="a directory that the broker has registered",
                    )

    def _at(self, broker_id: int, offset: int) -> frozenset[str] | None:
        """Return all directories that the broker has registered up to an offset, or None if
        unknown.
        """
        at = bisect_right(self._begins.get(broker_id, ()), offset)
        return self._known[broker_id][at - 1] if at else None


def _is_reserved(directory: str) -> bool:
    digits = parse_topic_id(directory)
    return digits is not None and int(digits, 16) < _RESERVED
