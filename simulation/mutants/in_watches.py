"""Mutants of watches: the changes sent, their receivers, and the first offset."""

from __future__ import annotations

from simulation.mutants.configs import OUTLIVED, WATCHED, WATCHES
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

_RIGHTS = "watchers whose rights change all the time"
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
        known=2,
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
        known=1,
    ),
    Mutant(
        "watch-lists-what-is-hidden",
        "an initial list shows what its watcher may not see",
        (
            Edit(
                "broker.watch.hub:WatchHub._list",
                """if entity is not None and (
                group.asker is None or self._permits(group.asker, entity.kind, entity.key)
            ):""",
                "if entity is not None:",
            ),
        ),
        WATCHED,
        _RIGHTS,
    ),
    Mutant(
        "watch-catches-up-with-what-is-hidden",
        "a watch that catches up is told what its watcher may not see",
        (
            Edit(
                "broker.watch.hub:WatchHub._scan",
                "if group.selection.matches(kept.path) and self._may_see(group, kept):",
                "if group.selection.matches(kept.path):",
            ),
        ),
        WATCHED,
        _RIGHTS,
    ),
    Mutant(
        "watch-tells-what-is-hidden",
        "a watch at the head is told what its watcher may not see",
        (
            Edit(
                "broker.watch.hub:WatchHub._advance_to",
                "if group.live and self._may_see(group, kept):",
                "if group.live:",
            ),
        ),
        WATCHED,
        _RIGHTS,
    ),
    Mutant(
        "watch-hides-what-everybody-sees",
        "a watch with rights is told of the cluster alone",
        (
            Edit(
                "broker.watch.hub:WatchHub._may_see",
                "return group.asker is None or self._permits(group.asker, change.kind, change.key)",
                "return group.asker is None",
            ),
        ),
        WATCHED,
        _RIGHTS,
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
