"""Export cursors: a node drops no part of its log that a cursor in its committed image protects, by
the committed records rather than the fold under test. A cursor below a node's log start protects
nothing there.
"""

from bisect import bisect_right
from collections.abc import Sequence

from raftlog.metadata.records import Record, RecordType
from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from simulation.checks.api import Checker, ControllerView, fail, present
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged


class ExportCursors(Checker):
    """Checker of export cursors, by the committed records."""

    def __init__(self, ledger: Ledger) -> None:
        self._offsets = [-1]
        self._cursors: list[dict[str, int]] = [{}]
        """Cursors (name -> end offset) from each of these offsets on."""
        self._starts: dict[str, int] = {}
        self.advances = 0
        """Number of times that a log start moved while cursors were set."""
        ledger.golden.listeners.append(self._committed)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        changes = [record.message for record in records if record.type == RecordType.EXPORT_CURSOR]
        if not changes:
            return
        cursors = dict(self._cursors[-1])
        for change in changes:
            cursors.pop(change.name, None)
            if change.HasField("end_offset"):
                cursors[change.name] = change.end_offset
        self._offsets.append(logged.end_offset - 1)
        self._cursors.append(cursors)

    def controller_started(self, host: ControllerView) -> None:
        self._look(host)

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        kind = type(event)
        if kind is ev.LogStartAdvanced:
            self._check(host, event.snapshot_id.end_offset)  # type: ignore[union-attr]
        if kind is ev.LogStartAdvanced or kind is ev.SnapshotStored:
            self._look(host)

    def _look(self, host: ControllerView) -> None:
        self._starts[host.name] = present(host.core).log_start_offset

    def _check(self, host: ControllerView, start: int) -> None:
        before, applied = self._starts[host.name], present(host.service).image.offset
        cursors = self._cursors[bisect_right(self._offsets, applied) - 1]
        self.advances += bool(cursors)
        for name, end_offset in sorted(cursors.items()):
            if before <= end_offset < start:
                fail(
                    f"{host.name} drops its log from {before} up to {start}, with the image at"
                    f" {applied}: the export {name} has read up to {end_offset} only"
                )
