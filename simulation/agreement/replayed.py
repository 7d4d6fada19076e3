"""Replay of an exported run by the code of ``raftlog replay``, compared with the nodes' states.

* The state hash at every offset at which some node was seen, from one fold.
* The job ``verify``, in another number of tasks.
* Each kept snapshot, loaded by the nodes' own code, plus the exported tail: the same end.
* The engine without Spark: the same states and findings.
* Differences between random pairs of offsets, by both engines, perhaps from a checkpoint.
* The audit, which must find nothing in an honest run.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from raftlog import batch
from raftlog.errors import RaftlogError
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import NamedTopic
from raftlog.metadata.snapshot import load
from raftlog.metadata.words import to_json
from raftlog.segments.manifest import RAW, read_manifest
from raftlog.segments.raw import read_batches
from replay.engine.fold import fold, state_hashes
from replay.export import open_export
from replay.kernels.findings import Finding
from replay.kernels.folding import entities
from replay.request import JobRequest
from replay.run import compute
from replay.spark.pool import SparkPool
from simulation.agreement.run_and_export import ExportedRun
from simulation.agreement.sightings import Sighting, Snapshot
from simulation.swarm.identities import OPERATOR, ROOT

SHUFFLED = 3
LOCAL_POINTS = 8
"""Number of offsets at which a node was seen and the engine without Spark is asked, too."""
DIFFS = 3
"""Number of pairs of offsets between which the differences are asked for."""
FINDINGS_SHOWN = 1000
SUPER_USERS = (OPERATOR, ROOT)
"""Super users of all simulated clusters: the log does not name them."""


@dataclass(slots=True)
class Answer:
    """The replay's answer about one run. ``findings``: audit rule -> offsets.

    ``counts`` has numbers of

    * "states" of nodes, "local" ones that the engine without Spark was asked for, and "verified"
      ones that the job ``verify`` compared;
    * "snapshots" that were loaded, and the tail folded after them;
    * "folded": 1 if by Spark, too; "audited": 1 if by both engines, to the end;
    * "diffs": pairs of offsets between which an engine was asked for the differences.
    """

    counts: Counter[str] = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)
    findings: dict[str, list[int]] = field(default_factory=dict)
    local_findings: dict[str, list[int]] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        return not self.disagreements and not self.findings


def ask(spark: SparkSession, run: ExportedRun, *, folded: bool = True) -> Answer:
    """Compare one run's replay with its nodes; a refusal counts as a disagreement. Not ``folded``:
    only run the audit.
    """
    answer = Answer()
    if run.empty:
        return answer
    try:
        at_end = None
        if folded:
            at_end = compare_states(spark, run, answer)[run.end_offset - 1]
            _compare_snapshots(run, at_end, answer)
            _verify(spark, run, answer)
            answer.counts["folded"] = 1
            compare_diffs(run, answer, spark)
        ask_local(run, at_end, answer)
        answer.findings = findings_of(spark, run)
        answer.counts["audited"] = 1
        if answer.findings != answer.local_findings:
            answer.disagreements.append(
                f"the audit in Spark finds {answer.findings}, without {answer.local_findings}"
            )
    except RaftlogError as error:
        answer.disagreements.append(f"the replay fails: {error}")
    return answer


def ask_local(run: ExportedRun, at_end: int | None, answer: Answer) -> None:
    """Compare the engine without Spark with the nodes and with Spark, and audit by it."""
    inside = sorted(one for one in run.sightings if one.offset < run.end_offset)
    picked = random.Random(f"{run.seed} local").sample(inside, min(LOCAL_POINTS, len(inside)))
    for sighting in picked:
        found = _local_state(run, sighting.offset)
        answer.counts["local"] += 1
        if found != sighting:
            answer.disagreements.append(
                f"at {sighting.offset} {run.sightings[sighting]} had {_words(sighting)}, the engine"
                f" without Spark has {_words(found)} at {found.offset}"
            )
    if at_end is not None:
        answer.counts["local"] += 1
        if (found := _local_state(run, run.end_offset - 1)).state_hash != at_end:
            answer.disagreements.append(
                f"Spark's fold ends in state {format_hash(at_end)}, the engine without Spark has"
                f" {_words(found)}"
            )
    answer.local_findings = _offsets(compute(_audit_of(run)).findings)
    compare_diffs(run, answer)


def compare_diffs(run: ExportedRun, answer: Answer, spark: SparkSession | None = None) -> None:
    """Compare an engine's differences between pairs of offsets with those of the nodes' fold."""
    ends = [offset for offset, _ in _ends(run.directory)]
    dice = random.Random(f"{run.seed} diffs")
    pairs = [sorted(dice.choices(ends, k=2)) for _ in range(DIFFS)]
    images = _images(run, {offset for pair in pairs for offset in pair})
    for begin, end in pairs:
        expected = _differences(images[begin], images[end])
        request = JobRequest(
            job="diff", export=str(run.directory), from_offset=begin, at_offset=end, limit=10**9
        )
        found = {
            (each.kind, each.key): (bytes(each.before).decode(), bytes(each.after).decode())
            for each in compute(request, spark).differences
        }
        answer.counts["diffs"] += 1
        if found != expected:
            engine = "without Spark" if spark is None else "in Spark"
            wrong = sorted(dict(found.items() ^ expected.items()))
            answer.disagreements.append(f"the diff {engine} from {begin} to {end}: {wrong}")


def _images(run: ExportedRun, offsets: set[int]) -> dict[int, Image]:
    found, builder = {}, ImageBuilder(Image())
    for data in _raw(run.directory):
        builder.apply_chunk(data)
        if builder.offset in offsets:
            found[builder.offset] = builder.snapshot()
    return found


def _differences(before: Image, after: Image) -> dict[tuple[str, str], tuple[str, str]]:
    one, other = (
        {
            # Not its number of partitions: these are entities of their own.
            (kind, key): to_json(NamedTopic(value.id, value.name) if kind == "topic" else value)
            for kind, key, value in entities(each)
        }
        for each in (before, after)
    )
    return {
        key: (one.get(key, "null"), other.get(key, "null"))
        for key in one.keys() | other.keys()
        if one.get(key) != other.get(key)
    }


def _local_state(run: ExportedRun, offset: int) -> Sighting:
    request = JobRequest(job="state", export=str(run.directory), at_offset=offset, limit=0)
    found = compute(request)
    return Sighting(found.point.offset, found.point.epoch, int(found.state_hash, 16))


def findings_of(spark: SparkSession, run: ExportedRun) -> dict[str, list[int]]:
    return _offsets(compute(_audit_of(run), spark).findings)


def _audit_of(run: ExportedRun) -> JobRequest:
    return JobRequest(
        job="audit",
        export=str(run.directory),
        limit=FINDINGS_SHOWN,
        super_users=SUPER_USERS if run.authorizer else (),
        allow_everyone_if_no_acl_found=run.allow_everyone,
    )


def _offsets(findings: list[Finding]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for finding in findings:
        found.setdefault(finding.rule, []).append(finding.offset)
    return found


def compare_states(spark: SparkSession, run: ExportedRun, answer: Answer) -> dict[int, int]:
    """Return the hashes at all offsets in question, from one fold."""
    export = open_export(JobRequest(job="state", export=str(run.directory)))
    pool = SparkPool(spark, export.record_count)
    # Also of a short run: cut into buckets, and brought together by Spark.
    pool.size = SHUFFLED
    inside = {
        sighting: who for sighting, who in run.sightings.items() if sighting.offset < run.end_offset
    }
    wanted = {sighting.offset for sighting in inside} | {run.end_offset - 1}
    hashes = state_hashes(export, pool, wanted)
    # The other fold, which hashes what is left at the end instead of each change.
    at_end = fold(export, pool).state_hash
    if at_end != hashes[run.end_offset - 1]:
        answer.disagreements.append(
            f"the fold ends in state {format_hash(at_end)}, its changes add up to"
            f" {format_hash(hashes[run.end_offset - 1])}"
        )
    epochs = dict(_ends(run.directory))
    for sighting, who in inside.items():
        answer.counts["states"] += 1
        if sighting.offset not in epochs:
            answer.disagreements.append(
                f"{who} had an image at {sighting.offset}, where no batch ends"
            )
            continue
        replayed = Sighting(sighting.offset, epochs[sighting.offset], hashes[sighting.offset])
        if replayed != sighting:
            answer.disagreements.append(
                f"at {sighting.offset} {who} had {_words(sighting)}, the replay has"
                f" {_words(replayed)}"
            )
    return hashes


def _words(sighting: Sighting) -> str:
    return f"state {format_hash(sighting.state_hash)} of epoch {sighting.epoch}"


def _ends(directory: Path) -> Iterator[tuple[int, int]]:
    """Return the epoch of each batch by its last offset, from the raw segments."""
    for data in _raw(directory):
        for header in batch.headers(data, verify=False):
            yield header.last_offset, header.epoch


def _raw(directory: Path) -> Iterator[bytes]:
    for segment in read_manifest(directory).of_kind(RAW):
        yield from read_batches(directory / segment.file, segment.file)


def is_disputed(run: ExportedRun) -> bool:
    """Return whether some node's state differs from a fold from 0 in this process."""
    states = {-1: (0, 0)}
    builder = ImageBuilder(Image())
    for data in _raw(run.directory):
        builder.apply_chunk(data)
        states[builder.offset] = builder.epoch, builder.state_hash & HASH_MASK
    inside = (one for one in run.sightings if one.offset < run.end_offset)
    return any(states.get(one.offset) != (one.epoch, one.state_hash) for one in inside)


def _compare_snapshots(run: ExportedRun, at_end: int, answer: Answer) -> None:
    for snapshot in run.snapshots:
        if snapshot.end_offset <= run.end_offset:
            answer.counts["snapshots"] += 1
            _compare_snapshot(run, snapshot, at_end, answer)


def _compare_snapshot(run: ExportedRun, snapshot: Snapshot, at_end: int, answer: Answer) -> None:
    _, image = load([snapshot.content])
    builder = ImageBuilder(image)
    for data in _raw(run.directory):
        builder.apply_chunk(data)
    state_hash = builder.snapshot().state_hash
    if state_hash != at_end:
        answer.disagreements.append(
            f"the snapshot before {snapshot.end_offset} and the log after it end in state"
            f" {format_hash(state_hash)}, the replay from the beginning in {format_hash(at_end)}"
        )


def _verify(spark: SparkSession, run: ExportedRun, answer: Answer) -> None:
    """Verify files, chain, both forms, and the states of controllers and snapshots."""
    request = JobRequest(job="verify", export=str(run.directory), limit=FINDINGS_SHOWN)
    said = compute(request, spark)
    answer.disagreements += [f"verify: {fault.check}: {fault.message}" for fault in said.faults]
    answer.counts["verified"] += said.states_total
