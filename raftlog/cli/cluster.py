"""``raftlog cluster``: brokers and features of the cluster, its hostnames and export cursors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.command import (
    ASK,
    READ,
    WRITE,
    All,
    Answer,
    ValidateOnly,
    command,
    condition,
    conditions,
    expected_offset,
    group,
    show_written,
    written,
)
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    Timeout,
    arg,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_line, print_table
from raftlog.errors import ConfigError

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.cluster import CursorListing, HostnameListing
    from raftlog.client.values import FeatureUpdate, OffsetResult
    from raftlog.outcome import WriteResult

app, features, hostnames, cursors = group(), group(), group(), group()


@dataclass
class ClusterBroker:
    """A broker as a broker shows it."""

    id: int
    address: str
    rack: str | None
    epoch: int
    version: str | None
    """The broker's build, or None if it did not answer in time."""
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
    """Show the cluster id, the controller and the brokers.

    For the controller's view, see `raftlog brokers list`.

    \b
    Examples:
      raftlog cluster describe --bootstrap-server 127.0.0.1:9092
      raftlog cluster describe --include-fenced-brokers --json
    """
    from raftlog.client.security import security_of_environment
    from raftlog.client.wire import reader
    from raftlog.ops.collector import Collector

    cluster = await client.cluster.describe()
    offset = client.token.offset if client.token is not None else -1
    brokers = [one for one in cluster.brokers if include_fenced_brokers or not one.fenced]
    versions = await Collector(security_of_environment()).versions(
        [one.address for one in brokers if not one.fenced], client.options.timeout_s
    )
    read = reader(ClusterBroker, version=lambda one: versions.get(one.address))
    rows = [read(one) for one in brokers]

    def show() -> None:
        columns = ("BROKER", "ENDPOINT", "RACK", "EPOCH", "VERSION", "FENCED")
        cells = [(*[*vars(row).values()][:-1], "yes" if row.fenced else "no") for row in rows]
        print_table(columns, cells, right=("BROKER", "EPOCH"), least=("EPOCH", "RACK", "VERSION"))
        controller = "-" if cluster.controller_id is None else cluster.controller_id
        print_line(f"cluster {cluster.id}, controller {controller}")
        print_line(f"at offset {offset}")

    return Answer(ClusterDescription(offset, cluster.id, cluster.controller_id, rows), show)


Levels = Annotated[
    list[str],
    arg(
        "NAME=LEVEL...",
        "A feature and its new level, such as metadata.version=2.",
        autocompletion=completion.feature_levels,
    ),
]
_WRITE = ("acks", "bootstrap_controller", "timeout", "as_json")


@dataclass
class NodeFeature:
    """A feature as one controller reports it."""

    feature: str
    node_id: int
    finalized_level: int
    min_supported_version: int
    max_supported_version: int


@dataclass
class FeatureDescriptions:
    """Each feature at each controller that answered."""

    features: Sequence[NodeFeature]
    silent: Sequence[str]
    """Addresses that did not answer."""


@command(features, "describe")
def describe_features(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> Answer[FeatureDescriptions]:
    """Show the finalized levels, and those that each controller supports.

    Needs no leader.

    \b
    Examples:
      raftlog cluster features describe --bootstrap-controller 127.0.0.1:9093
    """
    from raftlog.client.quorum_queries import ask_quorum
    from raftlog.client.security import security_of_environment
    from raftlog.client.wire import reader

    addresses = controllers(bootstrap_controller)
    quorum = asyncio.run(ask_quorum(addresses, timeout, security_of_environment()))
    if not quorum.descriptions:
        reasons = "; ".join(f"{answer.endpoint}: {answer.failure}" for answer in quorum.answers)
        raise FailedError(f"no node of the quorum answers ({reasons})", Exit.UNREACHABLE)

    def of_node(node_id: int) -> Callable[[Any], NodeFeature]:
        return reader(NodeFeature, feature="name", node_id=lambda _: node_id)

    rows = sorted(
        (row for node in quorum.descriptions for row in map(of_node(node.node_id), node.features)),
        key=lambda row: (row.feature, row.node_id),
    )
    silent = [one for one in quorum.answers if one.description is None]

    def show() -> None:
        columns = ("FEATURE", "NODE", "FINALIZED", "SUPPORTS FROM", "TO")
        print_table(columns, [tuple(vars(row).values()) for row in rows], right=columns[1:])
        for one in silent:
            print_line(one.said)

    # An address in another cluster is a failure: the output covers only one of the clusters.
    others = [typer.Exit(Exit.FOUND) for one in quorum.answers if one.other_cluster]
    document = FeatureDescriptions(rows, [one.endpoint for one in silent])
    return Answer(document, show, others[:1])


@command(features, shared=_WRITE)
async def upgrade(
    client: AsyncClient, levels: Levels, validate_only: ValidateOnly = False
) -> Answer[FeatureUpdate]:
    """Raise levels, all or none.

    Every voter and every registered broker must support the new levels. Afterwards the cluster
    refuses programs that do not support them.

    \b
    Examples:
      raftlog cluster features upgrade metadata.version=2 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster features upgrade metadata.version=2 --validate-only
    """
    return await _update(client, levels, validate_only=validate_only)


@command(features, shared=_WRITE)
async def downgrade(
    client: AsyncClient,
    levels: Levels,
    unsafe: Annotated[
        bool,
        opt("--unsafe", "Request an unsafe downgrade (KIP-584), refused for the same reasons."),
    ] = False,
    validate_only: ValidateOnly = False,
) -> Answer[FeatureUpdate]:
    """Lower levels, all or none.

    Refused while a voter or a broker does not support the lower level. Warns on stderr of what the
    downgrade gives up, even with --validate-only.

    \b
    Examples:
      raftlog cluster features downgrade metadata.version=1 --validate-only
    """
    return await _update(client, levels, downgrade=True, unsafe=unsafe, validate_only=validate_only)


async def _update(
    client: AsyncClient,
    levels: list[str],
    *,
    downgrade: bool = False,
    unsafe: bool = False,
    validate_only: bool,
) -> Answer[Any]:
    updated = client.features.update(
        dict(map(_level, levels)), downgrade=downgrade, unsafe=unsafe, validate_only=validate_only
    )
    answer = await written(updated, "would be accepted" if validate_only else "finalized")
    result: FeatureUpdate = answer.document  # type: ignore[assignment]
    if result.token is None and not validate_only and not answer.errors:
        answer = replace(answer, show=lambda: show_written(result, "was already finalized"))
    show = answer.show

    def warn() -> None:
        for warning in result.warnings:
            print_error(f"warning: {warning}")
        show()

    return replace(answer, show=warn)


def _level(text: str) -> tuple[str, int]:
    name, separator, level = text.partition("=")
    if not separator or not (level.isascii() and level.isdigit() and len(level) < 6):
        raise ConfigError(f"{text!r}: write it as NAME=LEVEL, such as metadata.version=2")
    return name, int(level)


ExpectedHost = Annotated[int | None, expected_offset("mapping", "OFFSET")]


@command(hostnames, "list", shared=ASK)
async def list_hostnames(client: AsyncClient) -> Answer[HostnameListing]:
    """List hosts with their broker ids, and broker ids without a host.

    An id has no host if its broker is absent but still has replicas assigned. A broker that starts
    without an id gets the id mapped to its HOST if that is free, else an id that is missing: absent
    for longer than the controllers' broker.id.adopt.after.ms. Until then the broker waits, and is
    listed. To give it a new id instead, map its HOST to an unused id, or start it with
    broker.id.generation.force. --expected-offset is compared with OFFSET.

    \b
    Examples:
      raftlog cluster hostnames list --bootstrap-controller 127.0.0.1:9093
    """
    hosts = await client.hostnames.list()
    return Answer(hosts, lambda: _show_hostnames(hosts))


def _show_hostnames(hosts: HostnameListing) -> None:
    print_table(
        ("HOST", "BROKER", "OFFSET", "REASON", "REGISTERED AT"),
        ((one.hostname, one.broker_id, one.offset, one.reason, one.address) for one in hosts),
        right=("BROKER", "OFFSET"),
        least=("OFFSET",),
    )
    for absent in hosts.absent_ids:
        state = "missing" if absent.missing else "absent"
        later = "" if absent.missing else f", missing in {absent.missing_in_ms / 1000:.0f} s"
        print_line(
            f"broker {absent.broker_id} ({absent.address or 'unregistered'}) has been {state} for"
            f" {absent.absent_for_ms / 1000:.0f} s; it has {absent.replica_count} replicas{later}"
        )
    for waiting in hosts.waiting_brokers:
        print_line(
            f"a broker without an id at {waiting.address} waits for broker"
            f" {waiting.awaited_broker_id}, for at most {waiting.remaining_ms / 1000:.0f} s more"
        )


@command(hostnames, "set", shared=WRITE)
async def set_hostname(
    client: AsyncClient,
    host: Annotated[str, arg("HOST", "The name that the broker advertises.")],
    broker_id: Annotated[
        int,
        arg(
            "ID",
            "The id of the broker that will run there.",
            min=0,
            autocompletion=completion.broker_ids,
        ),
    ],
    expected: ExpectedHost = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Map a host to a broker id.

    A broker that starts on that host without an id gets this one, unless it is taken by then. Use
    this for a machine that replaces another under a new name. The id is reserved for the host.

    \b
    Examples:
      raftlog cluster hostnames set kafka-7b.example 7 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster hostnames set kafka-7b.example 7 --expected-offset -1
    """
    return await written(
        client.hostnames.set(
            host, broker_id, expected_offset=condition(expected), validate_only=validate_only
        ),
        "would be accepted" if validate_only else f"mapped to broker {broker_id}",
    )


@command(hostnames, "delete", shared=WRITE)
async def delete_hostnames(
    client: AsyncClient,
    hosts: Annotated[list[str] | None, arg("HOST...", "The names.")] = None,
    everything: All = False,
    expected: ExpectedHost = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Delete mappings.

    Running brokers are not affected, and are mapped again when they register.

    \b
    Examples:
      raftlog cluster hostnames delete kafka-7.example --expected-offset 1204
      raftlog cluster hostnames delete --all --validate-only
    """
    chosen = await conditions("host", hosts, expected, client.hostnames.list, everything)
    return await written(
        client.hostnames.delete_all(chosen, validate_only=validate_only),
        "would be accepted" if validate_only else "no longer mapped",
    )


ExpectedCursor = Annotated[int | None, expected_offset("cursor", "SET AT")]


@command(cursors, "list", shared=ASK)
async def list_cursors(client: AsyncClient) -> Answer[CursorListing]:
    """List the export cursors.

    Each node keeps its log from END onwards, unless the log exceeds
    metadata.export.cursor.max.bytes. END is the first offset that the export does not have yet, LAG
    the number of committed records from END onwards, MOVED the time at which the cursor was last
    set. A cursor is "passed" if the active controller's log begins above END: records that the
    export lacks are already deleted. --expected-offset is compared with SET AT.

    \b
    Examples:
      raftlog cluster cursors list --bootstrap-controller 127.0.0.1:9093
    """
    found = await client.export_cursors.list()

    def show() -> None:
        from raftlog.metadata.record_text import time_text

        rows = (
            (one.name, one.end_offset, one.lag, "passed" if one.passed else "kept",
             time_text(one.timestamp_ms), one.offset, one.target or None)
            for one in found
        )  # fmt: skip
        columns = ("CURSOR", "END", "LAG", "STATE", "MOVED", "SET AT", "EXPORT")
        print_table(columns, rows, right=("END", "LAG", "SET AT"), least=("SET AT", "MOVED"))
        print_line(f"the log of the active controller begins at offset {found.log_start_offset}")

    return Answer(found, show)


@command(cursors, "set", shared=WRITE)
async def set_cursor(
    client: AsyncClient,
    name: Annotated[
        str, arg("NAME", "The name of the cursor.", autocompletion=completion.cursor_names)
    ],
    end_offset: Annotated[int, arg("OFFSET", "Keep the log from this offset onwards.", min=0)],
    target: Annotated[
        str,
        opt(
            "--target WHERE",
            "The export that the cursor belongs to; shown in lists, and used to tell exports "
            "apart.",
        ),
    ] = "",
    expected: ExpectedCursor = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Set an export cursor by hand.

    Use this for a custom exporter, or to keep the log before the first export. `raftlog export
    --cursor NAME` sets its own cursor. To move another export's cursor (--target), give
    --expected-offset.

    \b
    Examples:
      raftlog cluster cursors set nightly 120400 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster cursors set nightly 120400 --expected-offset -1
    """
    return await written(
        client.export_cursors.set(
            name,
            end_offset,
            target=target,
            expected_offset=condition(expected),
            validate_only=validate_only,
        ),
        "would be accepted"
        if validate_only
        else f"the log is kept from offset {end_offset} onwards",
    )


@command(cursors, "delete", shared=WRITE)
async def delete_cursors(
    client: AsyncClient,
    names: Annotated[
        list[str] | None,
        arg("NAME...", "The names of the cursors.", autocompletion=completion.cursor_names),
    ] = None,
    everything: All = False,
    expected: ExpectedCursor = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Remove export cursors, for which nodes then no longer keep their log.

    Does not touch the exports themselves.

    \b
    Examples:
      raftlog cluster cursors delete nightly --bootstrap-controller 127.0.0.1:9093
      raftlog cluster cursors delete --all --validate-only
    """
    chosen = await conditions("cursor", names, expected, client.export_cursors.list, everything)
    return await written(
        client.export_cursors.delete_all(chosen, validate_only=validate_only),
        "would be accepted" if validate_only else "removed",
    )
