"""The generated pages of the site: the overview, the command line, and those of other modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.main import build
from reference_pages import contracts, json_documents, metrics
from reference_pages.markdown import WIDTH, paragraph

_OVERVIEW = """# Reference

Everything here is made from the code when the site is built (`make docs`).

| Page | Made from |
|---|---|
| [Command line](cli.md) | the help of every command |
| [JSON of the commands](json.md), [its schema](json_schema.json) | `raftlog/cli/documents.py`, `replay/documents.py` |
| [Configuration keys](../configuration.md#all-keys) | `raftlog/config/settings.py` |
| [Metrics](metrics.md) | what a controller and a broker register for `/metrics` |
| [Error codes](../protocol.md#error-codes) | `raftlog/errors.py` |
| [Controller](controller.md), [broker](broker.md), [data](data.md), [quorum](quorum.md) and [node](node.md) RPCs | the contracts in `proto/` |
| [Common messages](common.md), [records of the log](records.md) | the contracts in `proto/` |

[Protocol](../protocol.md) says what the contracts cannot say. [SQL](../replay_sql.md) lists the
columns of an export.
"""  # noqa: E501


def pages() -> dict[str, str]:
    """Return all pages of the reference, and the JSON Schema, by file name."""
    return {
        "README.md": _OVERVIEW,
        "cli.md": _command_line(),
        "json.md": json_documents.page(),
        "json_schema.json": json_documents.schema(),
        "metrics.md": metrics.page(),
        **contracts.pages(),
    }


def _command_line() -> str:
    root = typer.main.get_command(build())
    head = "# Command line\n\nWhat `raftlog COMMAND --help` prints, for every command.\n\n"
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
