"""The command line that starts a node, read without the rest of the command line.

A node may be started to be the one that a quorum lacks, and what reads options, explains them and
completes them takes a third of its start to import. So the plain form, as service managers have it,
is read here; every other form, mistakes and ``--help`` included, is left to ``raftlog.cli.main``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from raftlog.cli.nodes import Main

_MAIN_OF = {
    "controller": ("controller.run", "run_controller"),
    "broker": ("broker.run", "run_broker"),
}
"""By name: the packages of nodes stand above this one."""


class NodeStart(NamedTuple):
    """What ``raftlog ROLE run --config FILE [--set KEY=VALUE]...`` says."""

    role: str
    config: Path
    flags: list[str]


def read_start(arguments: Sequence[str]) -> NodeStart | None:
    """None: not in the plain form."""
    if len(arguments) < 2 or arguments[0] not in _MAIN_OF or arguments[1] != "run":
        return None
    options = arguments[2:]
    names, values = options[::2], options[1::2]
    if len(names) != len(values) or not all(values) or any(one[0] == "-" for one in values):
        return None
    if not names or names[0] not in ("-c", "--config") or any(one != "--set" for one in names[1:]):
        return None
    return NodeStart(arguments[0], Path(values[0]), list(values[1:]))


def run_start(start: NodeStart, load: Callable[[], Callable[[], object]]) -> None:
    """Run the node, and exit.

    ``load``: of the whole command line, which says what brings a module that is missing.
    """
    try:
        from raftlog.cli.nodes import run_node
        from raftlog.cli.reporting import reported
        from raftlog.node.observability.logs import setup_logging
    except ModuleNotFoundError:
        load()()
        return
    setup_logging("error", "console")
    try:
        with reported():
            run_node(start.role, start.config, start.flags, lambda: _main_of(start.role))
    except ModuleNotFoundError:
        load()()


def _main_of(role: str) -> Main:
    module, name = _MAIN_OF[role]
    found: Any = getattr(importlib.import_module(module), name)
    main: Main = found
    return main
