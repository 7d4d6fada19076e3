"""``raftlog broker``: run a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import ConfigFile, SetFlags

if TYPE_CHECKING:
    from raftlog.cli.nodes import Main

app = typer.Typer(
    help="Run a broker: it serves reads and forwards writes.",
    epilog=EPILOG,
    no_args_is_help=True,
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="broker")


@app.callback()
def _group() -> None:
    """Run a broker: it serves reads and forwards writes."""


@app.command(epilog=EPILOG)
def run(config: ConfigFile = None, flags: SetFlags = None) -> None:
    """Run a broker until SIGTERM or SIGINT. Its data directory must have been formatted.

    \b
    Examples:
      raftlog broker run -c broker4.toml
      raftlog broker run -c broker4.toml --set broker.rack=b
    """
    from raftlog.cli.nodes import run_node

    def find_main() -> Main:
        from broker.run import run_broker

        return run_broker

    run_node("broker", config, flags, find_main)
