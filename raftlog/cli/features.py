"""``raftlog cluster features``: which levels the cluster uses, and what its nodes could."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import DEFAULT_TIMEOUT_S, BootstrapController, Json, Timeout, controllers
from raftlog.cli.output import print_error, print_json, print_line, print_table
from raftlog.cli.writes import AcksLevel, ValidateOnly, print_written, write, written
from raftlog.errors import ConfigError
from raftlog.wire.controller.v1 import controller_pb2

if TYPE_CHECKING:
    from raftlog.client.quorum_queries import Quorum

app = typer.Typer(
    help="The feature levels that the cluster uses (KIP-584).", epilog=EPILOG, no_args_is_help=True
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3

Levels = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME=LEVEL...",
        help="For instance metadata.version=7.",
        autocompletion=completion.feature_levels,
    ),
]


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="features")


@app.command(epilog=EPILOG)
def describe(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the finalized levels, and those that controllers know.

    Answers without a leader too.

    \b
    Examples:
      raftlog cluster features describe --bootstrap-controller 127.0.0.1:9093
    """
    from raftlog.client.quorum_queries import ask_quorum
    from raftlog.client.security import security_of_environment

    addresses = controllers(bootstrap_controller)
    quorum = asyncio.run(ask_quorum(addresses, timeout, security_of_environment()))
    if not quorum.descriptions:
        reasons = "; ".join(f"{answer.address}: {answer.failure}" for answer in quorum.answers)
        raise FailedError(f"no node of the quorum answers ({reasons})", Exit.UNREACHABLE)
    rows = [
        {
            "feature": feature.name,
            "node_id": node.node_id,
            "finalized_level": feature.finalized_level,
            "min_supported_version": feature.min_supported_version,
            "max_supported_version": feature.max_supported_version,
        }
        for node in sorted(quorum.descriptions, key=lambda node: node.node_id)
        for feature in node.features
    ]
    rows.sort(key=lambda row: (str(row["feature"]), row["node_id"]))
    if as_json:
        print_json(
            {
                "features": rows,
                "silent": [
                    answer.address for answer in quorum.answers if answer.description is None
                ],
            }
        )
        _exit(quorum)
        return
    columns = ("FEATURE", "NODE", "FINALIZED", "KNOWS FROM", "TO")
    print_table(columns, [tuple(row.values()) for row in rows], right=columns[1:])
    for answer in quorum.answers:
        if answer.description is None:
            print_line(answer.said)
    _exit(quorum)


def _exit(quorum: Quorum) -> None:
    """An address of another cluster is no success: what was shown is of one of them."""
    if any(answer.other_cluster for answer in quorum.answers):
        raise typer.Exit(Exit.FOUND)


@app.command(epilog=EPILOG)
def upgrade(
    levels: Levels,
    validate_only: ValidateOnly = False,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Raise levels, all or none.

    Every voter and every registered broker must know them. Older programs are refused from then on.

    \b
    Examples:
      raftlog cluster features upgrade metadata.version=2 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster features upgrade metadata.version=2 --validate-only
    """
    _update(levels, UPGRADE, validate_only, bootstrap_controller, timeout, as_json=as_json)


@app.command(epilog=EPILOG)
def downgrade(
    levels: Levels,
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe", help="Request an unsafe downgrade (KIP-584); refused likewise."),
    ] = False,
    validate_only: ValidateOnly = False,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Lower levels, all or none.

    Refused if the log has metadata that the lower level does not know, even with --unsafe.

    The error says which metadata. Whatever else a downgrade gives up is printed to stderr as a
    warning, also with --validate-only.

    \b
    Examples:
      raftlog cluster features downgrade metadata.version=1 --validate-only
    """
    upgrade_type = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    _update(levels, upgrade_type, validate_only, bootstrap_controller, timeout, as_json=as_json)


def _update(
    levels: list[str],
    upgrade_type: int,
    validate_only: bool,
    bootstrap_controller: str,
    timeout: float,
    *,
    as_json: bool,
) -> None:
    updates = [_level(text, upgrade_type) for text in levels]
    body = controller_pb2.UpdateFeaturesRequest(updates=updates, validate_only=validate_only)
    response = write(body, AcksLevel.COMMITTED, "", bootstrap_controller, timeout)
    if as_json:
        asked: dict[str, Any] = {update.name: update.max_version_level for update in updates}
        warnings = list(response.update_features.warnings)
        print_json(
            {
                "features": asked,
                "validate_only": validate_only,
                "warnings": warnings,
                "write": written(response),
            }
        )
        return
    changed = response.HasField("write")
    for warning in response.update_features.warnings:
        print_error(f"warning: {warning}")
    for update in updates:
        done = (
            "would be accepted"
            if validate_only
            else "finalized"
            if changed
            else "was finalized already"
        )
        print_line(f"{update.name}={update.max_version_level}: {done}")
    print_written(response)


def _level(text: str, upgrade_type: int) -> controller_pb2.FeatureUpdate:
    name, separator, level = text.partition("=")
    if not separator or not (level.isascii() and level.isdigit() and len(level) < 6):
        raise ConfigError(f"{text!r} is not NAME=LEVEL")
    return controller_pb2.FeatureUpdate(
        name=name, max_version_level=int(level), upgrade_type=upgrade_type
    )
