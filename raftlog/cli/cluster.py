"""``raftlog cluster``: what it consists of, as clients are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from raftlog.cli.command import READ, Answer, command, group
from raftlog.cli.options import opt
from raftlog.cli.output import print_line, print_table

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

app = group()


@dataclass
class ClusterBroker:
    """A broker as a broker shows it."""

    id: int
    address: str
    rack: str | None
    epoch: int
    version: str | None
    """The build; null: it did not answer in time."""
    fenced: bool


@dataclass
class ClusterDescription:
    """The cluster as a broker shows it."""

    offset: int
    id: str
    controller_id: int | None
    brokers: Sequence[ClusterBroker]


@command(app, shared=READ)
async def describe(
    client: AsyncClient,
    include_fenced_brokers: Annotated[
        bool, opt("--include-fenced-brokers", "Show fenced brokers, too (KIP-1073).")
    ] = False,
) -> Answer[ClusterDescription]:
    """Show the cluster's id, its controller and its brokers.

    For what the controller knows: `raftlog brokers list`.

    \b
    Examples:
      raftlog cluster describe --bootstrap-server 127.0.0.1:9092
      raftlog cluster describe --include-fenced-brokers --json
    """
    from raftlog.client.options import security_of_environment
    from raftlog.ops.collector import Collector

    cluster = await client.cluster.describe()
    offset = client.token.offset if client.token is not None else -1
    brokers = [one for one in cluster.brokers if include_fenced_brokers or not one.fenced]
    versions = await Collector(security_of_environment()).versions(
        [one.address for one in brokers if not one.fenced], client.options.timeout_s
    )
    rows = [
        ClusterBroker(
            one.id, one.address, one.rack, one.epoch, versions.get(one.address), one.fenced
        )
        for one in brokers
    ]

    def show() -> None:
        columns = ("BROKER", "ENDPOINT", "RACK", "EPOCH", "VERSION", "FENCED")
        cells = [(*[*vars(row).values()][:-1], "yes" if row.fenced else "no") for row in rows]
        print_table(columns, cells, right=("BROKER", "EPOCH"), least=("EPOCH", "RACK", "VERSION"))
        controller = "-" if cluster.controller_id is None else cluster.controller_id
        print_line(f"cluster {cluster.id}, controller {controller}")
        print_line(f"at offset {offset}")

    return Answer(ClusterDescription(offset, cluster.id, cluster.controller_id, rows), show)
