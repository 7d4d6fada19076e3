"""Running a node of either role as this process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from raftlog.cli.exits import DAMAGE_REMEDY, Exit, exit_code, remedy_of
from raftlog.errors import ConfigError, CorruptLogError
from raftlog.node.config.load import load_config
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.sources import PARENT_VARIABLE
from raftlog.node.storage.files import UMASK
from raftlog.process import die_with, tune_memory

Main = Callable[[NodeConfig], Awaitable[int]]


def run_node(
    role: str, path: Path | None, flags: list[str] | None, find_main: Callable[[], Main]
) -> None:
    """Load the configuration, set up logs, and run ``find_main()`` on an event loop until it
    returns the exit code.

    ``find_main`` imports the node: only now, so that a mistake in the configuration is told at
    once. Raises ConfigError.
    """
    config = load_config(path, flags=flags or [])
    if config.role != role:
        raise ConfigError(
            f'process.roles is ["{config.role}"]: run it with `raftlog {config.role} run`'
        )
    from raftlog.node.observability.logs import exit_process, setup_logging

    bound: dict[str, Any] = {"node_id": config.node_id} if config.node_id >= 0 else {}
    settings = config.settings
    setup_logging(settings.log_level, settings.log_format, in_thread=True, **bound)
    os.umask(UMASK)
    if parent := os.environ.get(PARENT_VARIABLE):
        die_with(int(parent))
    main = find_main()
    tune_memory()

    async def run() -> int:
        return await main(config)

    try:
        exit_process(uvloop.run(run()))
    except CorruptLogError as error:
        told = f"{error}; {DAMAGE_REMEDY[role]}"
        raise CorruptLogError(told, offset=error.offset) from error


def remedy(error: BaseException, role: str) -> dict[str, str]:
    """Return what a person can do about the error of a node, for the last line of its log."""
    said = DAMAGE_REMEDY[role] if exit_code(error) is Exit.FOUND else remedy_of(error)
    return {"remedy": said} if said else {}
