"""Mutants of watches: what is told, to whom, and from where on."""

from __future__ import annotations

from simulation.mutants.configs import OUTLIVED, WATCHES
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

_RESUMED = "watchers that go on behind their tokens, at other brokers"

MUTANTS = (
    Mutant(
        "watch-shows-the-tip",
        "a watch at LAO shows what is applied on the broker that is asked",
        (
            Edit(
                "broker.service.watches:Watches._image_of",
                "self._view.tip if mode == pb.LATEST else self._view.repeatable",
                "self._view.tip",
            ),
        ),
        WATCHES,
        "brokers that lag",
        known=1,
    ),
    Mutant(
        "watch-resumes-one-early",
        "a watch that goes on is told the change of its token again",
        (
            Edit(
                "broker.watch.history:History.after",
                "if kept.change.position > position:",
                "if kept.change.position >= position:",
            ),
        ),
        WATCHES,
        _RESUMED,
        known=4,
    ),
    Mutant(
        "watch-of-compacted",
        "a watch goes on from a token whose changes are not kept any more",
        (
            Edit(
                "broker.watch.hub:WatchHub._step",
                "known < Position(start)",
                "known < Position(-1)",
            ),
        ),
        WATCHES,
        "brokers that begin with a snapshot, or keep little",
        known=1,
    ),
    Mutant(
        "watch-told-its-neighbours",
        "watches of one stream are told at the end of a turn what the first of them was given",
        (
            Edit(
                "broker.service.watch_handles:WatchStream.give",
                "if data is not self._data:",
                "if not self._data:",
            ),
        ),
        WATCHES,
        "watches that share a stream",
    ),
    Mutant(
        "watch-of-another-generation",
        "a watch whose log is over ends with its place in it, named as one in the log that goes on",
        (
            Edit(
                "broker.service.watches:Watches.log_replaced",
                "resumable=False",
                "resumable=True",
            ),
        ),
        OUTLIVED,
        "a majority's disks lost, and watches that were open",
        known=1,
    ),
)
