"""``raftlog broker``: run a broker."""

from __future__ import annotations

from raftlog.cli.command import command, group
from raftlog.cli.nodes import run_node
from raftlog.cli.options import ConfigFile, SetFlags

app = group()


@command(app)
def run(config: ConfigFile = None, flags: SetFlags = None) -> None:
    """Run a broker until SIGTERM or SIGINT. Its data directory must have been formatted.

    \b
    Examples:
      raftlog broker run -c broker4.toml
      raftlog broker run -c broker4.toml --set broker.rack=b
    """
    run_node("broker", config, flags)
