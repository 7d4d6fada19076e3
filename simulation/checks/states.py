"""States (I9, I10, I11).

I10: the same offset is the same state on every node. I11: a snapshot and the log behind it are the fold from 0. I9: where the offsets of
one node may lie.

The committed log is folded once here; every image of a controller or a broker must have the hash that this fold had at its
offset. A snapshot must claim that hash when it is frozen or stored, and who loads it is compared like everybody else.

Would catch: a record folded differently by a leader that had it pending, a snapshot of another offset than it says, a loader that forgets
an index, state that depends on the order of a map.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from raftlog.errors import FatalError
from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from raftlog.snapshot_file import SnapshotVerifier
from raftlog.storage.api import SnapshotId
from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView
from simulation.checks.ledger import Ledger

SNAPSHOT_BYTES = 1 << 20


class States(Checker):
    """I9, I10 and I11."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._golden = ledger.golden
        self.compared = 0
        self.snapshots = 0

    # --- I9 -----------------------------------------------------------------------------------------------------------

    @override
    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        node = host.core._node  # type: ignore[union-attr]
        log, high_watermark = node.log, node.high_watermark
        if (
            not (log.start <= log.flushed_end <= log.end and high_watermark <= log.end)
            or -1 < high_watermark < log.start
        ):
            raise CheckFailedError(
                f"I9: {host.name} has its log start at {log.start}, high watermark {high_watermark}, durable end {log.flushed_end},"
                f" end {log.end}"
            )
        kind = type(event)
        if kind is ev.SnapshotFrozen:
            self._check_snapshot(host, event.snapshot_id)  # type: ignore[union-attr]
        elif kind is ev.SnapshotStored:
            if not event.error:  # type: ignore[union-attr]
                self._check_snapshot(host, event.snapshot_id)  # type: ignore[union-attr]
        elif kind is ev.LogStartAdvanced and event.snapshot_id.end_offset > high_watermark:  # type: ignore[union-attr]
            raise CheckFailedError(
                f"I9: {host.name} drops its log up to {event}, its high watermark is {high_watermark}"
            )

    # --- I11 ----------------------------------------------------------------------------------------------------------

    def _check_snapshot(self, host: ControllerView, snapshot_id: SnapshotId) -> None:
        assert host.service is not None
        replica = host.service.replica
        verifier, position = SnapshotVerifier(), 0
        try:
            while piece := replica.read_snapshot(snapshot_id, position, SNAPSHOT_BYTES):
                verifier.feed(piece)
                position += len(piece)
            header = verifier.finish()
        except (FatalError, LookupError) as error:
            raise CheckFailedError(f"I11: {snapshot_id} of {host.name} is not sound: {error}") from error
        self.snapshots += 1
        claimed = (header.epoch, verifier.state_hash)
        committed = self._golden.hashes.get(snapshot_id.end_offset - 1)
        if claimed != committed or (header.end_offset, header.epoch) != (snapshot_id.end_offset, snapshot_id.epoch):
            raise CheckFailedError(
                f"I11: {snapshot_id} of {host.name} says end {header.end_offset} and (epoch, hash) {claimed};"
                f" the committed log up to there gives {committed}"
            )
        voters = self._golden.voters_at(snapshot_id.end_offset) or ()
        if header.voters != voters:
            raise CheckFailedError(f"I11: {snapshot_id} of {host.name} names the voters {header.voters}, not {voters}")

    # --- I10 ----------------------------------------------------------------------------------------------------------

    @override
    def broker_moved(self, host: BrokerView) -> None:
        assert host.service is not None
        tip = host.service._view._tip
        self._compare(host.name, tip.offset, tip.epoch, tip.state_hash)

    @override
    def sample(self) -> None:
        for host in self._ledger.world.controllers:
            service = host.service
            if service is None or host.core is None:
                continue
            # The offset is there for nothing; an image that nobody asked for is not made for this check.
            built = service._committed
            if built.offset >= max(host.core.high_watermark, 0):
                raise CheckFailedError(
                    f"I9: {host.name} has applied {built.offset}, its high watermark is {host.core.high_watermark}"
                )
            builder = built._builder
            self._compare(host.name, builder.offset, builder.epoch, builder.state_hash % (1 << 128))

    def _compare(self, who: str, offset: int, epoch: int, state_hash: int) -> None:
        self.compared += 1
        committed = self._golden.hashes.get(offset)
        if committed is None:
            raise CheckFailedError(f"I10: {who} shows offset {offset}, where no committed batch ends")
        if offset >= 0 and committed != (epoch, state_hash):
            raise CheckFailedError(
                f"I10: the state of {who} at {offset} is {state_hash:032x} of epoch {epoch},"
                f" it must be {committed[1]:032x} of {committed[0]}"
            )
