"""A generated history and its export: made in one process, written in another."""

from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.segments.manifest import MANIFEST_NAME, Manifest
from raftlog.segments.writer import ExportWriter
from replay.errors import ReplayError
from simulation.generate.cluster import Cluster
from simulation.generate.incidents import Incidents
from simulation.generate.log import GeneratedLog
from simulation.generate.schedule import DAY_MS, Incident, Profile, Rates, Schedule
from simulation.generate.workload import Workload

CLUSTER_ID = "generated"
_END = b""


class GeneratedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a generated history: offsets 0 to ``records`` - 1; ``state_hash``: at the last."""

    seed: int
    records: int
    epochs: int
    first_ms: int
    last_ms: int
    state_hash: str
    brokers: int
    topics: int
    partitions: int
    incidents: tuple[Incident, ...]

    @property
    def days(self) -> float:
        return (self.last_ms - self.first_ms) / DAY_MS

    def count_incidents(self) -> dict[str, int]:
        return dict(sorted(Counter(each.kind for each in self.incidents).items()))


def generate(
    profile: Profile, records: int, sink: Callable[[bytes], None], *, rates: Rates | None = None
) -> GeneratedHistory:
    """Make at least ``records`` records in whole batches; ``sink`` receives its chunks in order."""
    log = GeneratedLog(profile.seed, profile.begin_ms, sink)
    schedule = Schedule(log.rng)
    cluster = Cluster(log, profile)
    workload, incidents = Workload(cluster, schedule), Incidents(cluster, schedule)
    begin_ms = _begin(cluster, workload)
    for part in (workload, incidents):
        part.plan(rates or Rates(), begin_ms)
    while log.end_offset < records:
        at_ms, action = schedule.pop()
        cluster.observed.advance(at_ms)
        action(at_ms)
    log.flush()
    image = log.draft.snapshot()
    return GeneratedHistory(
        seed=profile.seed, records=image.offset + 1, epochs=image.epoch, first_ms=profile.begin_ms,
        last_ms=image.timestamp_ms, state_hash=format_hash(image.state_hash & HASH_MASK),
        brokers=len(image.brokers), topics=len(image.topics), partitions=len(image.partitions),
        incidents=tuple(incidents.happened),
    )  # fmt: skip


def _begin(cluster: Cluster, workload: Workload) -> int:
    """Generate the first minutes: a controller, the brokers, the topics that stay."""
    at_ms = cluster.profile.begin_ms
    cluster.elect(at_ms)
    cluster.set_features(at_ms + 20)
    for broker_id in cluster.broker_ids:
        at_ms += 150
        cluster.observed.advance(at_ms)
        cluster.register(broker_id, at_ms)
        cluster.unfence(broker_id, at_ms + 40)
    return workload.create_first(at_ms + 30_000)


def write_export(
    directory: Path,
    profile: Profile,
    records: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[GeneratedHistory, Manifest]:
    """Generate into an empty or new directory, with the memory of the cluster's state and one row
    group. ``progress``: (records written, to write). Raises ReplayError if an export exists or the
    generator dies; ExportError if the directory is unusable.
    """
    if (directory / MANIFEST_NAME).exists():
        raise ReplayError(f"{directory} holds an export already: name a new or an empty directory")
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with ExportWriter(directory, CLUSTER_ID, 0) as writer, receiver:
        process = context.Process(target=_generate, args=(sender, profile, records), daemon=True)
        process.start()
        sender.close()
        try:
            while chunk := _receive(receiver, process):
                writer.append_chunk(chunk)
                if progress is not None:
                    progress(writer.next_offset, max(records, writer.next_offset))
            history = msgspec.msgpack.decode(_receive(receiver, process), type=GeneratedHistory)
        finally:
            receiver.close()
            process.join()
        manifest = writer.commit(history.records)
    return history, manifest


def _receive(receiver: Connection, process: BaseProcess) -> bytes:
    try:
        return receiver.recv_bytes()
    except (EOFError, OSError):
        process.join()
        raise ReplayError(
            f"the process that generates the history exited with code {process.exitcode}"
        ) from None


def _generate(sender: Connection, profile: Profile, records: int) -> None:
    """Generate in the other process; its pipe is small, so it is never far ahead."""
    try:
        history = generate(profile, records, sender.send_bytes)
        sender.send_bytes(_END)
        sender.send_bytes(msgspec.msgpack.encode(history))
    except BrokenPipeError:
        # Whoever wrote has failed, and says why.
        pass
    finally:
        sender.close()
