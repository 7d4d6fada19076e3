"""The command line: the help of each command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.main import build
from reference_pages.markdown import GENERATED, WIDTH, paragraph


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(build())
    head = (
        f"{GENERATED}# Command line\n\nWhat `raftlog COMMAND --help` prints, for every command.\n\n"
    )
    return head + paragraph(EPILOG) + "\n" + "".join(_sections(root, ("raftlog",), None))


def _sections(command: Any, path: tuple[str, ...], parent: Any) -> Iterator[str]:
    context = type(command).context_class(
        command,
        info_name=path[-1],
        parent=parent,
        terminal_width=WIDTH,
        **command.context_settings,
    )
    command.epilog = None  # It is at the top of the page.
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines()).rstrip()
    yield f"\n{'#' * max(2, len(path))} {' '.join(path)}\n\n```text\n{text}\n```\n"
    if hasattr(command, "list_commands"):
        for name in sorted(command.list_commands(context)):
            yield from _sections(command.get_command(context, name), (*path, name), context)
