"""The jobs' figures, compared with a naive reference, for any slices and shares."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import structlog
from asking import ask_shared
from figures_reference import Key, Reference
from test_timelines import Eventful

from raftlog.segments.export import export
from raftlog.segments.manifest import RAW, read_manifest
from raftlog.segments.raw import read_batches
from replay.engine import reading
from simulation.agreement.run_and_export import live
from simulation.cli import silence

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 5, 7)))
LIVES = (0, 2, 7)
"""Seeds of simulated clusters."""


class Asker:
    """Runs jobs on an export, shared among this many workers."""

    def __init__(self, directory: Path, buckets: int) -> None:
        self.directory, self.buckets = directory, buckets

    def __call__(self, job: str, **options: Any) -> Any:
        return ask_shared(self.buckets, job, self.directory, limit=10_000, **options)


@pytest.fixture(scope="module", params=SEEDS)
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Reference]:
    log, directory = Eventful(request.param), tmp_path_factory.mktemp("reference")
    for end in range(50, 300, 50):
        log.run(end)
        log.progress()
    export(log, directory)
    return directory, Reference(log.batches)


@pytest.fixture(params=[(1, 131_072), (3, 13)], ids=["whole", "in pieces"])
def ask(
    request: pytest.FixtureRequest, known: tuple[Path, Reference], monkeypatch: pytest.MonkeyPatch
) -> Asker:
    buckets, rows = request.param
    monkeypatch.setattr(reading, "SLICE_ROWS", rows)
    return Asker(known[0], buckets)


def by_key(rows: Iterable[Any], name: str) -> dict[Key, int]:
    found = {(row.topic_id, row.partition_id): getattr(row, name) for row in rows}
    return {key: value for key, value in found.items() if value}


def some(counted: Counter[Any]) -> dict[Any, int]:
    return {key: value for key, value in counted.items() if value}


def test_availability_equals_the_reference(ask: Asker, known: tuple[Path, Reference]) -> None:
    _, reference = known
    found = ask("availability")
    led, synced, *_ = found.objectives
    assert (led.total_ms, synced.total_ms) == (reference.life_ms,) * 2
    assert (led.lost_ms, synced.lost_ms) == (
        reference.leaderless_ms.total(), reference.short_ms.total()
    )  # fmt: skip
    assert by_key(found.partitions, "leaderless_ms") == some(reference.leaderless_ms)
    assert by_key(found.partitions, "short_ms") == some(reference.short_ms)
    assert by_key(found.partitions, "outages") == some(reference.outages)


def test_lao_equals_the_reference(ask: Asker, known: tuple[Path, Reference]) -> None:
    _, reference = known
    found, waited = ask("lao"), sorted(reference.waited_ms)
    assert (found.records, found.waiting) == (
        len(waited) + reference.waiting, reference.waiting
    )  # fmt: skip
    assert found.max_ms == waited[-1]
    for share, value in ((50, found.p50_ms), (99, found.p99_ms)):
        exact = waited[-(-len(waited) * share // 100) - 1]
        assert exact <= value <= exact * 1.002


def test_report_curves_equal_the_reference(
    ask: Asker, known: tuple[Path, Reference], tmp_path: Path
) -> None:
    _, reference = known
    found = ask("report", output=str(tmp_path / "report.html")).timeline
    axis, level, at = found.axis, (0, 0), iter(sorted(reference.levels.items()))
    next_ = next(at, None)
    for each in found.levels:
        highest = level
        while next_ is not None and next_[0] < each.at_ms + axis.bucket_ms:
            level = next_[1]
            highest = max(highest[0], level[0]), max(highest[1], level[1])
            next_ = next(at, None)
        assert (each.leaderless, each.short) == highest
    assert sum(each.records for each in found.waits) == len(reference.waited_ms) + reference.waiting


@pytest.mark.nightly
@pytest.mark.parametrize("seed", LIVES)
def test_figures_of_simulated_lives_equal_the_reference(seed: int, tmp_path: Path) -> None:
    silence()
    run = live(seed, tmp_path / "life")
    structlog.reset_defaults()
    assert not run.failure
    raw = [each for each in read_manifest(str(run.directory)).segments if each.kind == RAW]
    batches = [chunk for segment in raw for chunk in read_batches(run.directory / segment.file)]
    known = run.directory, Reference(batches)
    ask = Asker(run.directory, 3)
    test_availability_equals_the_reference(ask, known)
    test_lao_equals_the_reference(ask, known)
