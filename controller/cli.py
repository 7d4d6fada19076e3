"""``raftlog controller``: run a controller."""

from __future__ import annotations

from raftlog.cli.command import command, group
from raftlog.cli.nodes import run_node
from raftlog.cli.options import ConfigFile, SetFlags

app = group()


@command(app)
def run(config: ConfigFile = None, flags: SetFlags = None) -> None:
    """Run a controller until SIGTERM or SIGINT. Its data directory must have been formatted.

    \b
    Examples:
      raftlog controller run -c node1.toml
      raftlog controller run -c node1.toml --set log.level=debug
    """
    run_node("controller", config, flags)
