"""``raftlog cluster perf``: check that writes are fast enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raftlog.cli.command import ASK, Answer, command
from raftlog.cli.exits import Exit
from raftlog.cli.options import opt
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.ops.collector import Diagnosis
    from raftlog.ops.evidence import Survey

RESOURCE = "raftlog-check-perf"
CLIENT_METRICS: Literal["client-metrics"] = "client-metrics"
RATE_SHARE = 0.9
SLOWEST_MAX_S, P99_MAX_S = 1.0, 0.25
"""Upper limits on a write's latency, in seconds."""


class Load(StrEnum):
    """A rate of writes."""

    SMALL = "s"
    MEDIUM = "m"
    LARGE = "l"


RATES = {Load.SMALL: (5, 50), Load.MEDIUM: (20, 300), Load.LARGE: (50, 1_000)}
"""Number of writers, and writes per second, for each load."""


@dataclass
class Measured:
    """Latencies and errors of the writers."""

    took_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lasted_s: float = 0.0


@dataclass
class PerfReport:
    """The result of ``cluster perf``."""

    writers: int
    target_rate: int
    """Attempted writes per second."""
    seconds: int
    writes: int
    rate: float
    """Completed writes per second."""
    p50_ms: float | None
    p99_ms: float | None
    slowest_ms: float | None
    majority_sync_ms: float | None
    """Latency of a small sync on a majority of the disks, in milliseconds, or None if unknown."""
    failed: list[str]
    """A sentence for each exceeded limit."""


@command(shared=ASK)
async def perf(
    client: AsyncClient,
    load: Annotated[Load, opt("--load", "Writes per second: s 50, m 300, l 1000.")] = Load.SMALL,
    seconds: Annotated[int, opt("--seconds S", "Duration, in seconds.", min=1, max=60)] = 10,
) -> Answer[PerfReport]:
    """Write at a bounded rate, and check latencies and errors.

    Writes configs of the client-metrics resources raftlog-check-perf-N and removes them afterwards
    (after Ctrl-C, the next run removes them); the records stay in the log until a snapshot replaces
    it. Exit code 3 if a limit is exceeded.

    \b
    Examples:
      raftlog cluster perf
      raftlog cluster perf --load m --seconds 30 --json
    """
    from raftlog.cli.output import print_line

    writers, rate = RATES[load]
    measured = await _measure(client, writers, rate, seconds)
    sync_ms = await _majority_sync_ms(client.options.controllers, client.options.timeout_s)
    document = report(measured, rate, seconds, writers, sync_ms)

    def show() -> None:
        for line in lines(document):
            print_line(line)

    return Answer(document, show, [typer.Exit(Exit.FOUND)] if document.failed else [])


async def _measure(client: AsyncClient, writers: int, rate: int, seconds: int) -> Measured:
    from raftlog.errors import ApiError

    timeout_s = client.options.timeout_s
    measured = Measured()
    begun = time.perf_counter()

    async def write(number: int) -> None:
        pause_s = writers / rate
        due = begun + pause_s * number / writers
        for count in range(max(1, round(seconds * rate / writers))):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += pause_s
            at = time.perf_counter()
            if at - begun > seconds + timeout_s:
                return
            try:
                await client.configs.alter(
                    CLIENT_METRICS, f"{RESOURCE}-{number}", set={"match": str(count)}
                )
            except ApiError as error:
                measured.errors.append(str(error))
            else:
                measured.took_s.append(time.perf_counter() - at)

    await asyncio.gather(*(write(number) for number in range(writers)))
    measured.lasted_s = time.perf_counter() - begun
    try:
        for number in range(writers):
            await client.configs.alter(CLIENT_METRICS, f"{RESOURCE}-{number}", delete=["match"])
    except ApiError as error:
        measured.errors.append(f"could not remove all test configs: {error}")
    return measured


async def _majority_sync_ms(addresses: Sequence[str], timeout_s: float) -> float | None:
    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector, nodes_of

    collector = Collector(security_of_environment())
    survey = await collector.survey(addresses, min(timeout_s, 2.0))
    controllers = [one for one in nodes_of(survey) if one.role == "controller"]
    found = await collector.diagnoses(controllers, timeout_s, log_lines=1, disk=True)
    return majority_sync_ms(survey, found)


def majority_sync_ms(survey: Survey, found: Sequence[Diagnosis]) -> float | None:
    """Return the latency of a sync on the slowest disk of the fastest majority of the voters, in
    milliseconds: no commit can be faster. Return None if the nodes do not report it.
    """
    voters = {voter.replica_id for voter, _ in survey.voters()}
    syncs = sorted(
        median(one.diagnosed["sync_us"]) / 1000
        for one in found
        if one.node.node_id in voters and one.diagnosed and one.diagnosed["sync_us"]
    )
    needed = len(voters) // 2 + 1
    return syncs[needed - 1] if len(syncs) >= needed else None


def report(
    measured: Measured, rate: int, seconds: int, writers: int, sync_ms: float | None
) -> PerfReport:
    """Return the measurements, and the exceeded limits in words."""
    took = sorted(measured.took_s)
    achieved = len(took) / measured.lasted_s if measured.lasted_s else 0.0
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))] if took else 0.0
    failed = []
    if measured.errors:
        failed.append(f"{counted(len(measured.errors), 'error')}, the first: {measured.errors[0]}")
    if achieved < RATE_SHARE * rate:
        failed.append(f"{achieved:.0f} writes per second, less than {RATE_SHARE:.0%} of {rate}")
    if p99 > P99_MAX_S:
        failed.append(f"p99 is above {P99_MAX_S * 1000:.0f} ms")
    if took and took[-1] > SLOWEST_MAX_S:
        failed.append(f"the slowest write took more than {SLOWEST_MAX_S:g} s")
    return PerfReport(
        writers,
        rate,
        seconds,
        len(took),
        round(achieved, 1),
        round(median(took) * 1000, 2) if took else None,
        round(p99 * 1000, 2) if took else None,
        round(took[-1] * 1000, 2) if took else None,
        None if sync_ms is None else round(sync_ms, 2),
        failed,
    )


def lines(document: PerfReport) -> list[str]:
    """Return the report as lines of text."""
    said = [
        f"{document.writes} writes by {document.writers} writers:"
        f" {document.rate} of {document.target_rate} per second"
    ]
    if document.writes:
        said.append(
            f"committed after {document.p50_ms} ms (p50), {document.p99_ms} ms (p99),"
            f" {document.slowest_ms} ms at most"
        )
    sync_ms = document.majority_sync_ms
    if sync_ms:
        times = f"; p50 is {document.p50_ms / sync_ms:.1f} times that" if document.p50_ms else ""
        said.append(f"a small sync takes {sync_ms} ms on a majority of the disks{times}")
    said += [f"FAIL: {one}" for one in document.failed] or ["PASS"]
    said.append(f"wrote configs of the client-metrics resources {RESOURCE}-N, and removed them")
    return said
