"""Logs of a command that is no node: errors alone, on stderr."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from raftlog.cli import built_in
from raftlog.text import printable

_OF_NODES = {"server", "simulation"}
"""Extras of commands that run parts of a node."""


class _Formatter(logging.Formatter):
    """Nothing that a stranger says repaints the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")


def set_up_quiet_logs(command: Sequence[str]) -> None:
    """Commands of clients and of analyses log with the standard library alone, and so does what is
    no command: ``--help``. Those that run parts of a node are given structlog, which these need.
    """
    is_command = bool(command) and not command[0].startswith("-")
    names = (" ".join(command[:words]) for words in (1, 2))
    known = [built_in.BY_NAME[name] for name in names if name in built_in.BY_NAME]
    if (is_command and not known) or any(_OF_NODES & {*one.extras} for one in known):
        from raftlog.node.observability.logs import setup_logging

        setup_logging("error", "console")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
