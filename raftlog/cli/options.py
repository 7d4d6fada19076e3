"""Options and arguments that several commands share, with their environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from raftlog.endpoint import parse_server
from raftlog.errors import ConfigError

CONTROLLERS, BROKERS = "--bootstrap-controller", "--bootstrap-server"


def opt(form: str, text: str, **more: Any) -> Any:
    """Return an option in the form that help shows, ``--limit -n N``, with its help text."""
    words = form.split()
    names = [one for one in words if one[0] == "-"]
    return typer.Option(*names, metavar=" ".join(words[len(names) :]) or None, help=text, **more)


def arg(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument in the form that help shows, with its help text."""
    return typer.Argument(metavar=metavar or None, help=text, **more)


def variable(option: str) -> str:
    """Return the environment variable for an option. CLI_VARIABLES in
    raftlog/node/config/sources.py lists it, too.
    """
    return "RAFTLOG_" + option.strip("-").upper().replace("-", "_")


def _addresses(whom: str, *names: str) -> Any:
    """Return the option with these names; the last one is its primary name."""
    return typer.Option(
        *names,
        envvar=variable(names[-1]),
        metavar="HOST:PORT,...",
        help=f"{whom} to contact; one that is running is enough.",
    )


Json = Annotated[bool, opt("--json", "Print JSON for programs instead of a table.")]
BundleFile = Annotated[
    Path | None, opt("--bundle FILE", "Read a file written by `raftlog debug bundle`.")
]
JsonLines = Annotated[bool, opt("--json", "Print one JSON document per line.")]
Timeout = Annotated[
    float,
    opt(
        "--timeout S", "Seconds until the command gives up.", envvar=variable("--timeout"), min=0.01
    ),
]
DEFAULT_TIMEOUT_S = 10.0
BootstrapController = Annotated[str, _addresses("Controllers", CONTROLLERS)]
BackupController = Annotated[str, _addresses("Controllers", "--controller", CONTROLLERS)]
BootstrapServer = Annotated[str, _addresses("Brokers", BROKERS)]
ConfigFile = Annotated[Path | None, opt("--config -c FILE", "The node's configuration, TOML.")]
SetFlags = Annotated[
    list[str] | None,
    opt(
        "--set KEY=VALUE",
        "Set one configuration key; may be repeated. Overrides file and environment.",
    ),
]
Directory = Annotated[Path | None, opt("--directory -d DIR", "The node's data directory.")]
DataDirectory = Annotated[
    Path | None, opt("--directory -d DIR", "Read a stopped node's data directory.")
]
ExportDirectory = Annotated[str | None, opt("--export -e DIR|URI", "Read an export.")]
ClusterId = Annotated[str, opt("--cluster-id ID", "The cluster's id.")]
NodeId = Annotated[int | None, opt("--node-id N", "The node's id.", min=0)]
AtOffset = Annotated[
    int | None,
    opt("--at-offset OFFSET", "With an export: the state at this offset, inclusive.", min=0),
]
AtTime = Annotated[
    str | None,
    opt(
        "--at-time TIME",
        "With an export: the state at this time (UTC): 2026-01-31T14:01, 14:01:59.",
    ),
]
Standalone = Annotated[
    bool, opt("--standalone -s", "Start a quorum with this controller as its only voter.")
]
InitialControllers = Annotated[
    str,
    opt(
        "--initial-controllers -I ID@HOST:PORT:DIRECTORY-ID,...",
        "Start a quorum with these voters, including this controller. Give the same list to each "
        "of them.",
    ),
]

Checkpoints = Annotated[
    int | None,
    opt(
        "--checkpoints N",
        "Write the state to a file every N records, so that replay need not start at the first "
        "record. Default: 50000; 0: never.",
        min=0,
    ),
]

Sign = Annotated[
    Path | None,
    opt(
        "--sign KEY",
        "Sign each publish with this Ed25519 private key in PEM, so that a holder of the public "
        "key can check the export (see `raftlog verify`).",
    ),
]


def controllers(value: str) -> list[str]:
    """Return the addresses in ``BootstrapController`` as host:port. Raises ConfigError, also if
    there are none.
    """
    return _endpoints(value, CONTROLLERS)


def brokers(value: str) -> list[str]:
    """Return the addresses in ``BootstrapServer`` as host:port. Raises ConfigError, also if there
    are none.
    """
    return _endpoints(value, BROKERS)


def _endpoints(value: str, option: str) -> list[str]:
    addresses = []
    for part in value.split(","):
        if part.strip():
            try:
                addresses.append(parse_server(part.strip()))
            except ValueError as error:
                raise ConfigError(f"{option}: {error}") from error
    if not addresses:
        raise ConfigError(f"no address is given: use {option} HOST:PORT, or set {variable(option)}")
    return addresses
