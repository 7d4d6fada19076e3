"""A generated history, from the first record to the requested number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from raftlog.metadata.entities import HASH_MASK, format_hash
from replay.generate.cluster import Cluster
from replay.generate.incidents import Incidents
from replay.generate.log import GeneratedLog
from replay.generate.profile import DAY_MS, Incident, Profile, Rates
from replay.generate.schedule import Schedule
from replay.generate.workload import Workload


class GeneratedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a generated history.

    ``records`` are the offsets 0 to ``records`` - 1; ``state_hash`` is that of every node at the
    last.
    """

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
        """Duration of the history in days."""
        return (self.last_ms - self.first_ms) / DAY_MS

    def count_incidents(self) -> dict[str, int]:
        """Return the number of incidents of each kind."""
        return dict(sorted(Counter(each.kind for each in self.incidents).items()))


def generate(
    profile: Profile, records: int, sink: Callable[[bytes], None], *, rates: Rates | None = None
) -> GeneratedHistory:
    """Make a history of ``records`` records, or as many more as the last batch has; ``sink`` is
    given its chunks in order.
    """
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
        seed=profile.seed,
        records=image.offset + 1,
        epochs=image.epoch,
        first_ms=profile.begin_ms,
        last_ms=image.timestamp_ms,
        state_hash=format_hash(image.state_hash & HASH_MASK),
        brokers=len(image.brokers),
        topics=len(image.topics),
        partitions=len(image.partitions),
        incidents=tuple(incidents.happened),
    )


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
