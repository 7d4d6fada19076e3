"""The generated pages of the site: the overview, the command line, and the pages of other
modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

import raftlog
from raftlog import errors, recipes, testing
from raftlog.cli.exits import EPILOG
from raftlog.cli.main import build
from raftlog.client.async_client import NAMESPACES
from raftlog.client.consumer import AsyncRecords
from raftlog.client.leases import AsyncLease
from raftlog.client.watch import AsyncChanges
from reference_pages import contracts, json_documents, metrics
from reference_pages.markdown import WIDTH, paragraph

_OVERVIEW = """# Reference

Everything here is generated from the code when the site is built (`make docs`).

| Page | Generated from |
|---|---|
| [Command line](cli.md) | the help of every command |
| [Python library](python.md) | the docstrings of `raftlog` |
| [JSON of the commands](json.md), [its schema](json_schema.json) | the classes that commands return, `replay/documents.py` |
| [Configuration keys](../configuration.md#all-keys) | `raftlog/node/config/settings.py` |
| [Metrics](metrics.md) | what a controller and a broker register for `/metrics` |
| [Error codes](../protocol.md#error-codes) | `raftlog/errors.py` |
| [Controller](controller.md), [broker](broker.md), [data](data.md), [quorum](quorum.md) and [node](node.md) RPCs | the contracts in `proto/` |
| [Common messages](common.md), [records of the log](records.md) | the contracts in `proto/` |

[Protocol](../protocol.md) covers what the contracts cannot express. [SQL](../replay_sql.md) lists the
columns of an export.
"""  # noqa: E501

_PYTHON = """# Python library

The objects of `import raftlog`. `raftlog.Client` has the namespaces and calls of
`raftlog.AsyncClient` without `await`; where the one returns `AsyncRecords`, `AsyncChanges` or
`AsyncLease`, the other returns `Records`, `Changes` or `Lease` with the same blocking calls.
[Client library](../client.md) explains how to use them.
"""
_MODULES = ("errors", "recipes", "tracing")
STREAMS = (AsyncRecords, AsyncChanges, AsyncLease)
"""Types returned by calls, which users do not create themselves."""


def pages() -> dict[str, str]:
    """Return all pages of the reference, and the JSON Schema, by file name."""
    return {
        "README.md": _OVERVIEW,
        "cli.md": _command_line(),
        "python.md": _python_library(),
        "json.md": json_documents.page(),
        "json_schema.json": json_documents.schema(),
        "metrics.md": metrics.page(),
        **contracts.pages(),
    }


def _python_library() -> str:
    """Return the page of the library: its public objects, with placeholders that mkdocstrings
    replaces by their docstrings.
    """
    client = raftlog.AsyncClient("127.0.0.1:1")
    namespaces = {f"client.{name}": type(getattr(client, name)) for name in NAMESPACES}
    first = ["raftlog.connect", "raftlog.Client", "raftlog.AsyncClient"]
    others = [f"raftlog.{name}" for name in raftlog.__all__ if name not in _MODULES]
    found = [name for name, one in vars(errors).items() if _is_error(one)]
    text = _PYTHON
    for title, objects in {
        "Clients": {name: name for name in first},
        "Namespaces of a client": {name: _path(of) for name, of in namespaces.items()},
        "Streams and leases": {of.__name__: _path(of) for of in STREAMS},
        "Values": {name: name for name in others if name not in first},
        "Errors": {f"errors.{name}": f"raftlog.errors.{name}" for name in found},
        "raftlog.tracing": {one: f"raftlog.tracing.{one}" for one in ("enable", "disable")},
        **{
            title: {name: f"{of.__name__}.{name}" for name in of.__all__}
            for title, of in (("raftlog.recipes", recipes), ("raftlog.testing", testing))
        },
    }.items():
        text += f"\n## {title}\n"
        for heading, path in objects.items():
            text += f"\n::: {path}\n    options:\n      heading: {heading}\n"
            if title == "Values":  # the name of a field may suffice
                text += "      show_if_no_docstring: true\n"
            elif title == "Errors":
                text += "      show_bases: true\n"
            elif title in {"Namespaces of a client", "raftlog.recipes"}:
                text += "      inherited_members: true\n"
    return text


def _path(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, errors.RaftlogError)


def _command_line() -> str:
    root = typer.main.get_command(build())
    head = "# Command line\n\nThe output of `raftlog COMMAND --help`, for every command.\n\n"
    return head + paragraph(EPILOG) + "\n" + "".join(_sections(root, ("raftlog",), None))


def _sections(command: Any, path: tuple[str, ...], parent: Any) -> Iterator[str]:
    context = type(command).context_class(
        command,
        info_name=path[-1],
        parent=parent,
        terminal_width=WIDTH,
        **command.context_settings,
    )
    command.epilog = None  # The program's own help is at the top of the page.
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines()).rstrip()
    yield f"\n{'#' * max(2, len(path))} {' '.join(path)}\n\n```text\n{text}\n```\n"
    if hasattr(command, "list_commands"):
        for name in sorted(command.list_commands(context)):
            yield from _sections(command.get_command(context, name), (*path, name), context)
