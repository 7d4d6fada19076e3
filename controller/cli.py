"""``raftlog controller``: run a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import ConfigFile, SetFlags

if TYPE_CHECKING:
    from raftlog.cli.nodes import Main

app = typer.Typer(
    help="Run a controller: a voter of the quorum.", epilog=EPILOG, no_args_is_help=True
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="controller")


@app.callback()
def _group() -> None:
    """Run a controller: a voter of the quorum."""


@app.command(epilog=EPILOG)
def run(config: ConfigFile = None, flags: SetFlags = None) -> None:
    """Run a controller until SIGTERM or SIGINT. Its data directory must have been formatted.

    \b
    Examples:
      raftlog controller run -c node1.toml
      raftlog controller run -c node1.toml --set log.level=debug
    """
    from raftlog.cli.nodes import run_node

    def find_main() -> Main:
        from controller.run import run_controller

        return run_controller

    run_node("controller", config, flags, find_main)
