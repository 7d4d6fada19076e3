"""``raftlog cluster hostnames``: which broker runs on which host, for brokers that are started
without an id (KIP-426).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import known, print_json, print_line, print_table
from raftlog.cli.writes import ValidateOnly, alter, expected_offset, print_altered
from raftlog.errors import ConfigError
from raftlog.metadata.causes import HostnameCause, cause_name
from raftlog.wire.controller.v1 import controller_pb2

app = typer.Typer(
    help="Which broker runs on which host, without node.id (KIP-426).",
    epilog=EPILOG,
    no_args_is_help=True,
)

Expected = Annotated[int | None, expected_offset("mapping", "OFFSET")]


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="hostnames")


@app.callback()
def _group() -> None:
    """Which broker runs on which host, without node.id (KIP-426)."""


@app.command("list", epilog=EPILOG)
def list_(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
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
    answer = _ask(bootstrap_controller, timeout)
    document = _document(answer)
    if as_json:
        print_json(document)
    else:
        _show(document)


def _document(answer: Any) -> dict[str, Any]:
    """What --json prints."""
    return {
        "offset": answer.offset,
        "hostnames": [
            {
                "hostname": one.hostname,
                "mapping": {"version": one.version, "broker.id": one.broker_id},
                "offset": one.offset,
                "reason": one.reason,
                "cause": cause_name(HostnameCause, one.cause),
                "endpoint": one.endpoint or None,
            }
            for one in answer.hostnames
        ],
        "absent_ids": [
            {
                "broker_id": one.broker_id,
                "absent_for_ms": one.absent_for_ms,
                "missing": one.missing,
                "missing_in_ms": one.missing_in_ms,
                "replica_count": one.replica_count,
                "endpoint": one.endpoint or None,
            }
            for one in answer.absent_ids
        ],
        "waiting_brokers": [
            {
                "endpoint": one.endpoint,
                "waiting_for_ms": one.waiting_for_ms,
                "awaited_broker_id": one.awaited_id.broker_id,
                "remaining_ms": one.awaited_id.remaining_ms,
            }
            for one in answer.waiting_brokers
        ],
    }


def _show(document: dict[str, Any]) -> None:
    rows = [
        (
            host["hostname"],
            host["mapping"]["broker.id"],
            *(host[name] for name in ("offset", "reason", "endpoint")),
        )
        for host in document["hostnames"]
    ]
    print_table(
        ("HOST", "BROKER", "OFFSET", "REASON", "REGISTERED AT"),
        rows,
        right=("BROKER", "OFFSET"),
        least=("OFFSET",),
    )
    for one in document["absent_ids"]:
        state = "missing" if one["missing"] else "absent"
        where, seconds = one["endpoint"] or "unregistered", one["absent_for_ms"] / 1000
        later = "" if one["missing"] else f", missing in {one['missing_in_ms'] / 1000:.0f} s"
        print_line(
            f"broker {one['broker_id']} ({where}) is {state} for {seconds:.0f} s; it has"
            f" {one['replica_count']} replicas{later}"
        )
    for one in document["waiting_brokers"]:
        print_line(
            f"a broker without an id at {one['endpoint']} waits for broker"
            f" {one['awaited_broker_id']}, {one['remaining_ms'] / 1000:.0f} s more at the most"
        )


@app.command("set", epilog=EPILOG)
def set_(
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="The name that the broker advertises.")
    ],
    broker_id: Annotated[
        int,
        typer.Argument(
            metavar="ID",
            min=0,
            help="The broker that is to run there.",
            autocompletion=completion.broker_ids,
        ),
    ],
    expected_offset: Expected = None,
    validate_only: ValidateOnly = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Map a host to a broker id.

    A broker that starts there without an id gets this one, unless it is taken by then. Use it for a
    machine that replaces another one under a new name. The id is reserved for this host.

    \b
    Examples:
      raftlog cluster hostnames set kafka-7b.example 7 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster hostnames set kafka-7b.example 7 --expected-offset -1
    """
    change = controller_pb2.HostnameAlteration(
        hostname=host, broker_id=broker_id, expected_offset=expected_offset
    )
    response = _alter([change], validate_only, bootstrap_server, bootstrap_controller, timeout)
    _say(
        response,
        [host],
        f"mapped to broker {broker_id}",
        validate_only=validate_only,
        as_json=as_json,
    )


@app.command(epilog=EPILOG)
def delete(
    hosts: Annotated[list[str] | None, typer.Argument(metavar="HOST...", help="The names.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Delete all mappings.")] = False,
    expected_offset: Expected = None,
    validate_only: ValidateOnly = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete mappings. The brokers are not affected, and are mapped again when they register.

    \b
    Examples:
      raftlog cluster hostnames delete kafka-7.example --expected-offset 1204
      raftlog cluster hostnames delete --all --validate-only
    """
    if all_ == bool(hosts):
        raise ConfigError("give the names of hosts, or --all")
    if expected_offset is not None and len(hosts or []) != 1:
        raise ConfigError("--expected-offset is about one host")
    changes = [
        controller_pb2.HostnameAlteration(hostname=host, expected_offset=expected_offset)
        for host in hosts or []
    ]
    if all_:
        listed = _ask(bootstrap_controller, timeout).hostnames
        # What was mapped anew meanwhile is not what was asked for.
        changes = [
            controller_pb2.HostnameAlteration(hostname=one.hostname, expected_offset=one.offset)
            for one in listed
        ]
    names = [change.hostname for change in changes]
    response = _alter(changes, validate_only, bootstrap_server, bootstrap_controller, timeout)
    _say(response, names, "not mapped any more", validate_only=validate_only, as_json=as_json)


def _ask(bootstrap_controller: str, timeout: float) -> Any:
    from raftlog.cli.session import ask_controller

    body = controller_pb2.ListHostnamesRequest()
    return ask_controller(body, bootstrap_controller, timeout).list_hostnames


def _alter(
    changes: list[controller_pb2.HostnameAlteration],
    validate_only: bool,
    bootstrap_server: str,
    bootstrap_controller: str,
    timeout: float,
) -> Any:
    body = controller_pb2.AlterHostnamesRequest(alterations=changes, validate_only=validate_only)
    return alter(body, "alter_hostnames", bootstrap_server, bootstrap_controller, timeout)


def _say(response: Any, hosts: list[str], what: str, *, validate_only: bool, as_json: bool) -> None:
    results = response.alter_hostnames.results
    offsets = {host: known(result.offset) for host, result in zip(hosts, results, strict=True)}
    print_altered(
        "hostnames", offsets, what, response, validate_only=validate_only, as_json=as_json
    )
