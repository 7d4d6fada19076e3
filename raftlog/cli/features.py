"""``raftlog cluster features``: which levels the cluster uses, and what its nodes could."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.command import Answer, ValidateOnly, command, finish, group, show_written, written
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    Json,
    Timeout,
    arg,
    controllers,
    opt,
)
from raftlog.cli.output import print_error, print_line, print_table
from raftlog.errors import ConfigError

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import FeatureUpdate

app = group()
Levels = Annotated[
    list[str],
    arg(
        "NAME=LEVEL...",
        "For instance metadata.version=2.",
        autocompletion=completion.feature_levels,
    ),
]
_WRITE = ("acks", "bootstrap_controller", "timeout", "as_json")


@dataclass
class NodeFeature:
    """A feature, as one controller knows it."""

    feature: str
    node_id: int
    finalized_level: int
    min_supported_version: int
    max_supported_version: int


@dataclass
class FeatureDescriptions:
    """Each feature at each controller that answers."""

    features: Sequence[NodeFeature]
    silent: Sequence[str]
    """Addresses that did not answer."""


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
    from raftlog.client.options import security_of_environment
    from raftlog.client.quorum_queries import ask_quorum

    addresses = controllers(bootstrap_controller)
    quorum = asyncio.run(ask_quorum(addresses, timeout, security_of_environment()))
    if not quorum.descriptions:
        reasons = "; ".join(f"{answer.address}: {answer.failure}" for answer in quorum.answers)
        raise FailedError(f"no node of the quorum answers ({reasons})", Exit.UNREACHABLE)
    rows = sorted(
        (
            NodeFeature(
                one.name,
                node.node_id,
                one.finalized_level,
                one.min_supported_version,
                one.max_supported_version,
            )
            for node in quorum.descriptions
            for one in node.features
        ),
        key=lambda row: (row.feature, row.node_id),
    )
    silent = [one for one in quorum.answers if one.description is None]

    def show() -> None:
        columns = ("FEATURE", "NODE", "FINALIZED", "KNOWS FROM", "TO")
        print_table(columns, [tuple(vars(row).values()) for row in rows], right=columns[1:])
        for one in silent:
            print_line(one.said)

    # An address of another cluster is no success: what was shown is of one of them.
    others = [typer.Exit(Exit.FOUND) for one in quorum.answers if one.other_cluster]
    document = FeatureDescriptions(rows, [one.address for one in silent])
    finish(Answer(document, show, others[:1]), as_json=as_json)


@command(app, shared=_WRITE)
async def upgrade(
    client: AsyncClient, levels: Levels, validate_only: ValidateOnly = False
) -> Answer[FeatureUpdate]:
    """Raise levels, all or none.

    Every voter and every registered broker must know them. Older programs are refused from then on.

    \b
    Examples:
      raftlog cluster features upgrade metadata.version=2 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster features upgrade metadata.version=2 --validate-only
    """
    return await _update(client, levels, validate_only=validate_only)


@command(app, shared=_WRITE)
async def downgrade(
    client: AsyncClient,
    levels: Levels,
    unsafe: Annotated[
        bool, opt("--unsafe", "Request an unsafe downgrade (KIP-584); does no more.")
    ] = False,
    validate_only: ValidateOnly = False,
) -> Answer[FeatureUpdate]:
    """Lower levels, all or none.

    Refused while a voter or a broker does not know the lower level.

    What a downgrade gives up is printed to stderr as a warning, also with --validate-only.

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
        answer = replace(answer, show=lambda: show_written(result, "was finalized already"))
    show = answer.show

    def warn() -> None:
        for warning in result.warnings:
            print_error(f"warning: {warning}")
        show()

    return replace(answer, show=warn)


def _level(text: str) -> tuple[str, int]:
    name, separator, level = text.partition("=")
    if not separator or not (level.isascii() and level.isdigit() and len(level) < 6):
        raise ConfigError(f"{text!r} is not NAME=LEVEL")
    return name, int(level)
