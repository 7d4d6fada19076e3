"""Runs whose committed log is exported in increments, as by ``raftlog export``."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from raftlog.metadata.entities import format_hash
from raftlog.segments.export import export
from raftlog.segments.manifest import StateHash
from simulation.agreement.sightings import Sighting, Snapshot, Who, Witness
from simulation.checks.api import Checker
from simulation.checks.golden import GoldenLog
from simulation.checks.ledger import Ledger
from simulation.checks.suite import all_checkers
from simulation.hosts import CLUSTER_ID
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig

INCREMENTS = 3
"""Number of steps in which an export is made; fewer if there are fewer batches."""
CHECKPOINTS_EVERY = (0, 40, 400)
"""Minimum numbers of records between two checkpoints, of which an export draws one; 0: none."""


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """One run that was exported. ``end_offset`` (exclusive): of what was committed."""

    seed: int
    directory: Path
    end_offset: int
    sightings: dict[Sighting, Who]
    """States of nodes. Those of controllers and snapshots are in the manifest too."""
    snapshots: list[Snapshot]
    failure: str
    allow_everyone: bool = False
    """allow.everyone.if.no.acl.found, which the log does not say."""
    authorizer: bool = False
    """True if nodes asked an authorizer: only then are rights judged."""

    @property
    def empty(self) -> bool:
        return not self.end_offset


class CommittedLog:
    """The committed log as a source of an export. A lower ``high_watermark``: an increment."""

    cluster_id = CLUSTER_ID
    start_offset = connections = 0

    def __init__(self, golden: GoldenLog) -> None:
        self._batches = [logged.data for logged in golden.batches]
        self._bases = [logged.header.base_offset for logged in golden.batches]
        self.ends = [logged.end_offset for logged in golden.batches]
        self.high_watermark = golden.end
        self.generation = golden.generation

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return the batches from ``offset`` on below the high watermark, at least one."""
        index = bisect_left(self._bases, offset)
        chunk = b""
        while index < len(self._batches) and self.ends[index] <= self.high_watermark:
            if chunk and len(chunk) + len(self._batches[index]) > max_bytes:
                break
            chunk += self._batches[index]
            index += 1
        return chunk


def live(
    seed: int, directory: Path, config: SwarmConfig | None = None, *, checked: bool = True
) -> ExportedRun:
    """Run, and export into ``directory``, which must be empty or missing. ``checked`` False: only
    the ledger checks, which knows what is committed; the others would end the run at the first
    broken promise.
    """
    # Made alone: the others subscribe to their ledger as soon as they are made.
    checkers: list[Checker] = all_checkers() if checked else [Ledger()]
    witness = Witness()
    outcome = run_swarm(seed, config, [*checkers, witness])
    golden = next(one.golden for one in checkers if isinstance(one, Ledger))
    said = [_said(one, who) for one, who in witness.sightings.items() if who.is_controller]
    export_committed(golden, directory, random.Random(f"{seed} export"), said)
    failure = outcome.failure
    return ExportedRun(
        seed,
        directory,
        golden.end,
        witness.sightings,
        witness.snapshots,
        failure="" if failure is None else f"{type(failure).__name__}: {failure}",
        allow_everyone=outcome.config.allow_everyone,
        authorizer=outcome.config.authorizer,
    )


def _said(sighting: Sighting, who: Who) -> StateHash:
    return StateHash(
        offset=sighting.offset,
        epoch=sighting.epoch,
        state_hash=format_hash(sighting.state_hash),
        node_id=who.node_id,
        source=who.source,
    )


def export_committed(
    golden: GoldenLog, directory: Path, rng: random.Random, said: Sequence[StateHash]
) -> None:
    """Export a committed log in a few increments. ``said``: the states that nodes reported."""
    log = CommittedLog(golden)
    every = rng.choice(CHECKPOINTS_EVERY)
    for end in sorted({*rng.sample(log.ends, min(INCREMENTS - 1, len(log.ends))), golden.end}):
        log.high_watermark = end
        export(log, directory, state_hashes=partial(_below, said, end), checkpoint_records=every)


def _below(said: Sequence[StateHash], end: int) -> list[StateHash]:
    return [one for one in said if one.offset < end]
