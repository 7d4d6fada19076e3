"""``raftlog cluster hostnames``: which broker runs on which host, for brokers that are started
without an id (KIP-426).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from raftlog.cli import completion
from raftlog.cli.command import (
    ASK,
    WRITE,
    All,
    Answer,
    ValidateOnly,
    command,
    condition,
    conditions,
    expected_offset,
    group,
    written,
)
from raftlog.cli.options import arg
from raftlog.cli.output import print_line, print_table

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.cluster import HostnameListing
    from raftlog.client.values import OffsetResult
    from raftlog.outcome import WriteResult

app = group()
Expected = Annotated[int | None, expected_offset("mapping", "OFFSET")]


@command(app, "list", shared=ASK)
async def list_(client: AsyncClient) -> Answer[HostnameListing]:
    """List the hosts with their broker ids, and the ids without a host.

    Without a host: an id that holds replicas, and whose broker is absent. A broker without an id
    gets that of its HOST, if it is free, else the one that is missing: absent for longer than
    broker.id.adopt.after.ms of the controllers. Until then it waits, and is listed; to have a new
    id all the same, set its HOST to an id that is not in use, or start it with
    broker.id.generation.force. OFFSET is what --expected-offset compares.

    \b
    Examples:
      raftlog cluster hostnames list --bootstrap-controller 127.0.0.1:9093
    """
    hosts = await client.hostnames.list()
    return Answer(hosts, lambda: _show(hosts))


def _show(hosts: HostnameListing) -> None:
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
            f"broker {absent.broker_id} ({absent.address or 'unregistered'}) is {state} for"
            f" {absent.absent_for_ms / 1000:.0f} s; it has {absent.replica_count} replicas{later}"
        )
    for waiting in hosts.waiting_brokers:
        print_line(
            f"a broker without an id at {waiting.address} waits for broker"
            f" {waiting.awaited_broker_id}, {waiting.remaining_ms / 1000:.0f} s more at the most"
        )


@command(app, "set", shared=WRITE)
async def set_(
    client: AsyncClient,
    host: Annotated[str, arg("HOST", "The name that the broker advertises.")],
    broker_id: Annotated[
        int,
        arg("ID", "The broker that is to run there.", min=0, autocompletion=completion.broker_ids),
    ],
    expected: Expected = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Map a host to a broker id.

    A broker that starts there without an id gets this one, unless it is taken by then. Use it for a
    machine that replaces another one under a new name. The id is reserved for this host.

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


@command(app, shared=WRITE)
async def delete(
    client: AsyncClient,
    hosts: Annotated[list[str] | None, arg("HOST...", "The names.")] = None,
    everything: All = False,
    expected: Expected = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Delete mappings. The brokers are not affected, and are mapped again when they register.

    \b
    Examples:
      raftlog cluster hostnames delete kafka-7.example --expected-offset 1204
      raftlog cluster hostnames delete --all --validate-only
    """
    chosen = await conditions("host", hosts, expected, client.hostnames.list, everything)
    return await written(
        client.hostnames.delete_all(chosen, validate_only=validate_only),
        "would be accepted" if validate_only else "not mapped any more",
    )
