"""The notes of the partition replicas, as lines of the broker's log."""

from __future__ import annotations

from collections import Counter

import structlog

from broker.partition import events as ev

log = structlog.get_logger(__name__)

NOTES_MAX = 20
"""Largest number of lines of one kind that a step logs. A broker may become the leader of thousands
of partitions in one step, and the line of each takes longer than leading it: meanwhile nothing is
answered.
"""


class Notes:
    """The lines of the step under way."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """Number of notes by the event that they name."""

    def note(self, effect: ev.Note) -> None:
        """Log a note, unless the step has logged enough of its kind."""
        self._counts[effect.event] += 1
        if self._counts[effect.event] <= NOTES_MAX:
            log.info(effect.event, **effect.fields)

    def end_step(self) -> None:
        """Log, for each kind, how many notes were not logged."""
        if not self._counts:
            return
        for event, count in self._counts.items():
            if count > NOTES_MAX:
                log.info(event, further=count - NOTES_MAX)
        self._counts.clear()
