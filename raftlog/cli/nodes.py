"""Run a node of a role in this process: ``raftlog ROLE run``.

A quorum may be waiting for the node that starts here, and importing the code that reads, explains
and completes options takes a third of its start-up time. So :func:`read_start` parses the plain
form, which service managers use, without the rest of the command line; ``raftlog.cli.main`` handles
every other form, including mistakes and ``--help``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raftlog.cli.exits import DAMAGE_REMEDY, Exit, exit_code, remedy_of, reported
from raftlog.errors import ConfigError, CorruptLogError

if TYPE_CHECKING:
    from raftlog.node.config.node import NodeConfig

_MAIN_OF = {
    "controller": ("controller.run", "run_controller"),
    "broker": ("broker.run", "run_broker"),
}
"""Main function of each role, by name, as this layer must not import the nodes' packages."""


class NodeStart(NamedTuple):
    """The command line ``raftlog ROLE run --config FILE [--set KEY=VALUE]...``."""

    role: str
    config: Path
    flags: list[str]


def read_start(arguments: Sequence[str]) -> NodeStart | None:
    """Parse a command line in the plain form; return None if it has another form."""
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
    """Run the node, and exit. ``load``: loads the full command line, which names the extra to
    install if a module is missing.
    """
    try:
        from raftlog.node.observability.logs import setup_logging

        setup_logging("error", "console")
        with reported():
            run_node(*start)
    except ModuleNotFoundError:
        load()()


def run_node(role: str, path: Path | None, flags: list[str] | None) -> None:
    """Load the configuration, set up logs, and run the node on an event loop. Returns the node's
    exit code. Raises ConfigError.
    """
    import uvloop

    from raftlog.node.config.load import load_config
    from raftlog.node.config.sources import PARENT_VARIABLE
    from raftlog.node.observability.logs import exit_process, setup_logging
    from raftlog.node.storage.files import UMASK
    from raftlog.process import die_with, tune_memory

    config = load_config(path, flags=flags or [])
    if config.role != role:
        raise ConfigError(
            f'process.roles is ["{config.role}"]: run it with `raftlog {config.role} run`'
        )
    bound: dict[str, Any] = {"node_id": config.node_id} if config.node_id >= 0 else {}
    settings = config.settings
    setup_logging(settings.log_level, settings.log_format, in_thread=True, **bound)
    os.umask(UMASK)
    if parent := os.environ.get(PARENT_VARIABLE):
        die_with(int(parent))
    # The node is imported only now, so that configuration errors are reported at once.
    module, name = _MAIN_OF[role]
    main: Callable[[NodeConfig], Coroutine[Any, Any, int]]
    main = getattr(importlib.import_module(module), name)
    tune_memory()
    try:
        exit_process(uvloop.run(main(config)))
    except CorruptLogError as error:
        told = f"{error}; {DAMAGE_REMEDY[role]}"
        raise CorruptLogError(told, offset=error.offset) from error


def remedy(error: BaseException, role: str) -> dict[str, str]:
    """Return the remedy for a node's error as fields for its last log line."""
    said = DAMAGE_REMEDY[role] if exit_code(error) is Exit.FOUND else remedy_of(error)
    return {"remedy": said} if said else {}
