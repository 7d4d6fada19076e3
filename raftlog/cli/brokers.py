"""``raftlog brokers``: who follows, how far, and who holds the others back."""

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
from raftlog.cli.writes import Acks, AcksLevel, print_written, require, write, written
from raftlog.metadata.causes import Cause, cause_name
from raftlog.plural import counted

app = typer.Typer(
    help="The brokers, as the active controller sees them.", epilog=EPILOG, no_args_is_help=True
)

_COLUMNS = (
    ("BROKER", "broker_id"),
    ("STATE", "state"),
    ("EPOCH", "broker_epoch"),
    ("ENDPOINT", "endpoint"),
    ("RACK", "rack"),
    ("APPLIED", "applied_offset"),
    ("LAO", "told_lowest_acknowledged_offset"),
    ("LAG", "lag"),
    ("HEARD MS", "last_contact_age_ms"),
    ("LEADS", "leader_count"),
    ("REPLICAS", "replica_count"),
    ("FOR", "state_age_ms"),
    ("REASON", "reason"),
)
"""Of the table: the heading, and the key of the JSON output."""


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="brokers")


@app.callback()
def _group() -> None:
    """The brokers, as the active controller sees them."""


@app.command("list", epilog=EPILOG)
def list_(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
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
    from raftlog.cli.session import ask_controller
    from raftlog.wire.controller.v1 import controller_pb2 as pb

    body = pb.DescribeBrokersRequest()
    answer = ask_controller(body, bootstrap_controller, timeout).describe_brokers
    rows = [
        _row(broker, answer, pb.BrokerLifecycleState.Name(broker.state).lower())
        for broker in answer.brokers
    ]
    if as_json:
        print_json(_document(answer, rows))
        return
    print_table(
        [heading for heading, _ in _COLUMNS],
        map(_cells, rows),
        right=("EPOCH", "APPLIED", "LAO", "LAG", "HEARD MS", "LEADS", "REPLICAS", "FOR"),
        least=("RACK", "REPLICAS", "LAO", "EPOCH", "HEARD MS", "LEADS", "APPLIED"),
    )
    print_line(f"high watermark {answer.high_watermark}; lowest acknowledged offset {_lao(answer)}")
    print_line(_partitions(answer.partitions))


def _document(answer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What ``list --json`` prints."""
    return {
        "offset": answer.high_watermark - 1,
        "high_watermark": answer.high_watermark,
        "lowest_acknowledged_offset": known(answer.lowest_acknowledged_offset),
        "lao_unknown_reason": answer.lao_unknown_reason or None,
        "held_back_by": list(answer.held_back_by),
        "held_back_ms": answer.held_back_ms,
        "partitions": {
            "total": answer.partitions.total,
            "offline": answer.partitions.offline,
            "not_led_by_preferred": answer.partitions.not_led_by_preferred,
            "reassigning": answer.partitions.reassigning,
            "recovering": answer.partitions.recovering,
        },
        "brokers": rows,
    }


@app.command(epilog=EPILOG)
def unregister(
    broker_id: Annotated[
        int,
        typer.Argument(
            metavar="BROKER", help="The broker's id.", autocompletion=completion.broker_ids
        ),
    ],
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Remove the registration of a broker that will not come back.

    It then no longer blocks feature upgrades. The broker leaves every ISR and leadership, but stays
    in the replica sets: move its replicas away first (`raftlog partitions reassign`). If its
    process still runs, it exits.

    \b
    Examples:
      raftlog brokers unregister 7 --bootstrap-controller 127.0.0.1:9093
    """
    from raftlog.wire.controller.v1 import controller_pb2 as pb

    response = write(
        pb.UnregisterBrokerRequest(broker_id=broker_id),
        acks,
        bootstrap_server,
        bootstrap_controller,
        timeout,
    )
    if as_json:
        print_json({"broker_id": broker_id, "write": written(response)})
    else:
        print_line(f"broker {broker_id}: unregistered")
        print_written(response)
    require(response, acks)


def _row(broker: Any, answer: Any, state: str) -> dict[str, Any]:
    applied = known(broker.applied_offset)
    return {
        "broker_id": broker.broker_id,
        "state": state,
        "broker_epoch": broker.broker_epoch,
        "endpoint": broker.endpoint,
        "rack": broker.rack or None,
        "applied_offset": applied,
        "told_lowest_acknowledged_offset": known(broker.told_lowest_acknowledged_offset),
        "lag": None if applied is None else max(0, answer.high_watermark - 1 - applied),
        "last_contact_age_ms": known(broker.last_contact_age_ms),
        "leader_count": broker.leader_count,
        "replica_count": broker.replica_count,
        "state_age_ms": broker.state_age_ms,
        "reason": broker.reason or None,
        "cause": cause_name(Cause, broker.cause),
        "state_age_is_at_least": broker.state_age_is_at_least,
        "registration_version": broker.registration_version,
        "holds_lao_back": broker.broker_id in answer.held_back_by,
    }


def _cells(row: dict[str, Any]) -> list[object]:
    mark = " *" if row["holds_lao_back"] else ""
    longer = ">" if row["state_age_is_at_least"] else ""
    shown = {
        **row,
        "broker_id": f"{row['broker_id']}{mark}",
        "state_age_ms": f"{longer}{span(row['state_age_ms'])}",
    }
    return [shown[key] for _, key in _COLUMNS]


def span(ms: int) -> str:
    """A time for people: the largest unit that it has two of."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def _partitions(counts: Any) -> str:
    """What there is, and what wants attention."""
    wanting = (
        (counts.offline, "without a leader"),
        (counts.not_led_by_preferred, "not led by their preferred leader"),
        (counts.reassigning, "moving"),
        (counts.recovering, "recovering under an unclean leader"),
    )
    return ", ".join(
        [
            counted(counts.total, "partition"),
            *(f"{number} {what}" for number, what in wanting if number),
        ]
    )


def _lao(answer: Any) -> str:
    if answer.lowest_acknowledged_offset < 0:
        return f"unknown ({answer.lao_unknown_reason})"
    if answer.held_back_by:
        who = ", ".join(map(str, answer.held_back_by))
        return (
            f"{answer.lowest_acknowledged_offset}, held back by {who} for"
            f" {answer.held_back_ms / 1000:.1f} s"
        )
    return str(answer.lowest_acknowledged_offset)


@app.command("api-versions", epilog=EPILOG)
def api_versions(
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show which versions of requests a broker offers.

    By the feature levels that every broker has applied (ApiVersions). SUPPORTED is the range of
    levels that the broker's build knows of a feature. FINALIZED is the level that the cluster uses,
    as far as all unfenced brokers have acknowledged it; 0: none, or unknown.

    \b
    Examples:
      raftlog brokers api-versions --bootstrap-server 127.0.0.1:9092
      raftlog brokers api-versions --json
    """
    from raftlog.cli.session import Session, run

    async def ask(session: Session) -> Any:
        return await session.brokers(bootstrap_server).api_versions(timeout)

    document = _offered(run(ask, timeout))
    if as_json:
        print_json(document)
        return
    print_table(
        ("KEY", "API", "MIN", "MAX"),
        (list(one.values()) for one in document["api_keys"]),
        right=("KEY", "MIN", "MAX"),
    )
    rows = (
        [one[0], f"{one[1]} to {one[2]}", one[3]]
        for one in (list(feature.values()) for feature in document["features"])
    )
    print_table(("FEATURE", "SUPPORTED", "FINALIZED"), rows, right=("FINALIZED",))


def _offered(offered: Any) -> dict[str, Any]:
    """What ``api-versions --json`` prints."""
    apis = [
        {
            "api_key": one.api_key,
            "name": one.name,
            "min_version": one.min_version,
            "max_version": one.max_version,
        }
        for one in offered.api_keys
    ]
    levels = {one.name: one.level for one in offered.finalized_features}
    features = [
        {
            "feature": one.name,
            "min_supported_version": one.min_version,
            "max_supported_version": one.max_version,
            "finalized_level": levels.get(one.name, 0),
        }
        for one in offered.supported_features
    ]
    return {
        "api_keys": apis,
        "features": features,
        "finalized_features_epoch": known(offered.finalized_features_epoch),
    }
