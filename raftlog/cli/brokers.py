"""``raftlog brokers``: who follows, how far, and who holds the others back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from raftlog.cli import completion
from raftlog.cli.command import ASK, SERVER, WRITE, Answer, command, group, written
from raftlog.cli.options import arg
from raftlog.cli.output import print_line, print_table
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import (
        ApiVersions,
        BrokerStatus,
        ItemResult,
        PartitionCounts,
        Visibility,
    )
    from raftlog.outcome import WriteResult

app = group()


@command(app, "list", shared=ASK)
async def list_(client: AsyncClient) -> Answer[Visibility]:
    """List the registered brokers: state, epoch, applied offset, lag.

    Also the LAO that each knows, and which of them hold LAO back. APPLIED is the offset a broker
    shows to readers of "latest", LAO the lowest acknowledged offset (LAO) it has heard of, LAG the
    committed records it has not applied. A * marks the brokers that hold LAO back. EPOCH is the
    broker epoch (KIP-343's incarnation id), FOR how long it has been in its STATE (>: longer than
    this controller leads), REASON what brought it there.

    \b
    Examples:
      raftlog brokers list --bootstrap-controller 127.0.0.1:9093
      raftlog brokers list --json
    """
    seen = await client.brokers.visibility()

    def show() -> None:
        print_table(
            ("BROKER", "STATE", "EPOCH", "ENDPOINT", "RACK", "APPLIED", "LAO", "LAG", "HEARD MS",
             "LEADS", "REPLICAS", "FOR", "REASON"),
            map(_cells, seen.brokers),
            right=("EPOCH", "APPLIED", "LAO", "LAG", "HEARD MS", "LEADS", "REPLICAS", "FOR"),
            least=("RACK", "REPLICAS", "LAO", "EPOCH", "HEARD MS", "LEADS", "APPLIED"),
        )  # fmt: skip
        print_line(f"high watermark {seen.high_watermark}; lowest acknowledged offset {_lao(seen)}")
        print_line(_partitions(seen.partitions))

    return Answer(seen, show)


@command(app, shared=WRITE)
async def unregister(
    client: AsyncClient,
    broker_id: Annotated[
        int, arg("BROKER", "The broker's id.", autocompletion=completion.broker_ids)
    ],
) -> Answer[WriteResult[ItemResult]]:
    """Remove the registration of a broker that will not come back.

    It then no longer blocks feature upgrades. The broker leaves every ISR and leadership, but stays
    in the replica sets: move its replicas away first (`raftlog partitions reassign`). If its
    process still runs, it exits.

    \b
    Examples:
      raftlog brokers unregister 7 --bootstrap-controller 127.0.0.1:9093
    """
    return await written(client.brokers.unregister(broker_id), "unregistered")


def _cells(one: BrokerStatus) -> list[object]:
    longer = ">" if one.state_age_is_at_least else ""
    return [
        f"{one.id}{' *' if one.holds_lao_back else ''}", one.state.name.lower(), one.epoch,
        one.address, one.rack, one.applied_offset, one.told_lowest_acknowledged_offset, one.lag,
        one.last_contact_age_ms, one.leader_count, one.replica_count,
        f"{longer}{span(one.state_age_ms)}", one.reason or None,
    ]  # fmt: skip


def span(ms: int) -> str:
    """A time for people: the largest unit that it has two of."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def _partitions(counts: PartitionCounts) -> str:
    """Return the number of partitions, and of those that need attention."""
    wanting = (
        (counts.offline, "without a leader"),
        (counts.not_led_by_preferred, "not led by their preferred leader"),
        (counts.reassigning, "moving"),
        (counts.recovering, "recovering under an unclean leader"),
    )
    said = [f"{number} {what}" for number, what in wanting if number]
    return ", ".join([counted(counts.total, "partition"), *said])


def _lao(seen: Visibility) -> str:
    if seen.lowest_acknowledged_offset is None:
        return f"unknown ({seen.unknown_reason})"
    if seen.held_back_by:
        who = ", ".join(map(str, seen.held_back_by))
        held = f"held back by {who} for {seen.held_back_ms / 1000:.1f} s"
        return f"{seen.lowest_acknowledged_offset}, {held}"
    return str(seen.lowest_acknowledged_offset)


@command(app, "api-versions", shared=SERVER)
async def api_versions(client: AsyncClient) -> Answer[ApiVersions]:
    """Show which versions of requests a broker offers.

    By the feature levels that every broker has applied (ApiVersions). SUPPORTED is the range of
    levels that the broker's build knows of a feature. FINALIZED is the level that the cluster uses,
    as far as all unfenced brokers have acknowledged it; 0: none, or unknown.

    \b
    Examples:
      raftlog brokers api-versions --bootstrap-server 127.0.0.1:9092
      raftlog brokers api-versions --json
    """
    offered = await client.brokers.api_versions()

    def show() -> None:
        apis = ((one.key, one.name, one.min_version, one.max_version) for one in offered.apis)
        print_table(("KEY", "API", "MIN", "MAX"), apis, right=("KEY", "MIN", "MAX"))
        features = (
            (one.name, f"{one.min_supported} to {one.max_supported}", one.finalized_level)
            for one in offered.features
        )
        print_table(("FEATURE", "SUPPORTED", "FINALIZED"), features, right=("FINALIZED",))

    return Answer(offered, show)
