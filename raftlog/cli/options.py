"""Options that many commands share, with their environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raftlog.endpoint import parse_endpoint
from raftlog.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", envvar="RAFTLOG_TIMEOUT", min=0.01, help="Seconds until the command gives up.", metavar="S"
    ),
]
BootstrapController = Annotated[
    str,
    typer.Option(
        "--bootstrap-controller",
        envvar="RAFTLOG_BOOTSTRAP_CONTROLLER",
        metavar="HOST:PORT,...",
        help="Controllers to ask; one that is up is enough.",
    ),
]
BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        envvar="RAFTLOG_BOOTSTRAP_SERVER",
        metavar="HOST:PORT,...",
        help="Brokers to ask; one that is up is enough.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The node's configuration, TOML."),
]
SetFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one configuration key; may be repeated. Overrides file and environment."
    ),
]
Directory = Annotated[Path, typer.Option("--directory", "-d", metavar="DIR", help="The node's data directory.")]
DEFAULT_TIMEOUT_S = 10.0


def endpoints(value: str, option: str) -> list[str]:
    """The addresses of a bootstrap option, as host:port. Raises ConfigError, also if there is none."""
    addresses = []
    for part in value.split(","):
        if part.strip():
            try:
                addresses.append(parse_endpoint(part.strip()).address)
            except ValueError as error:
                raise ConfigError(f"{option}: {error}") from error
    if not addresses:
        variable = "RAFTLOG_" + option.strip("-").upper().replace("-", "_")
        raise ConfigError(f"no address is given: use {option} HOST:PORT, or set {variable}")
    return addresses
