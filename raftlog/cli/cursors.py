"""``raftlog cluster cursors``: how far exports have come, and what of the log is kept for them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.exits import EPILOG
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import known, print_json, print_line, print_table
from raftlog.cli.render import time_text
from raftlog.cli.writes import ValidateOnly, alter, expected_offset, print_altered
from raftlog.errors import ConfigError
from raftlog.wire.controller.v1 import controller_pb2

app = typer.Typer(
    help="Export cursors: the nodes keep the log from there on.",
    epilog=EPILOG,
    no_args_is_help=True,
)

Expected = Annotated[int | None, expected_offset("cursor", "SET AT")]


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="cursors")


@app.callback()
def _group() -> None:
    """Export cursors: the nodes keep the log from there on."""


@app.command("list", epilog=EPILOG)
def list_(
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the export cursors.

    Each node keeps its log from END on, unless that takes more than
    metadata.export.cursor.max.bytes.

    END is the first offset that the export does not have yet, LAG the number of committed records
    from there on, MOVED the time when the cursor was last set. A cursor is "passed" if the log of
    the active controller begins above it: some records are dropped already. --expected-offset is
    compared with SET AT.

    \b
    Examples:
      raftlog cluster cursors list --bootstrap-controller 127.0.0.1:9093
    """
    answer = _ask(bootstrap_controller, timeout)
    cursors = [
        {
            "name": one.name,
            "end_offset": one.end_offset,
            "lag": max(0, answer.high_watermark - one.end_offset),
            "state": "passed" if one.end_offset < answer.log_start_offset else "kept",
            "timestamp_ms": one.timestamp_ms,
            "offset": one.offset,
            "target": one.target or None,
        }
        for one in answer.cursors
    ]
    if as_json:
        print_json(
            {
                "offset": answer.high_watermark - 1,
                "log_start_offset": answer.log_start_offset,
                "high_watermark": answer.high_watermark,
                "cursors": cursors,
            }
        )
        return
    rows = [
        (*list(one.values())[:4], time_text(one["timestamp_ms"]), one["offset"], one["target"])
        for one in cursors
    ]
    columns = ("CURSOR", "END", "LAG", "STATE", "MOVED", "SET AT", "EXPORT")
    print_table(columns, rows, right=("END", "LAG", "SET AT"), least=("SET AT", "MOVED"))
    print_line(f"the log of the active controller begins at offset {answer.log_start_offset}")


@app.command("set", epilog=EPILOG)
def set_(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The name of the cursor.", autocompletion=completion.cursor_names
        ),
    ],
    end_offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="Keep the log from here on.")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="WHERE",
            help="The export that it belongs to: for people, and to tell exports apart.",
        ),
    ] = "",
    expected_offset: Expected = None,
    validate_only: ValidateOnly = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Set an export cursor by hand.

    For a custom exporter, or to keep the log from an offset on before the first export. `raftlog
    export --cursor NAME` sets its cursor by itself. To move the cursor of another export
    (--target), give --expected-offset.

    \b
    Examples:
      raftlog cluster cursors set nightly 120400 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster cursors set nightly 120400 --expected-offset -1
    """
    change = controller_pb2.ExportCursorAlteration(
        name=name, end_offset=end_offset, target=target, expected_offset=expected_offset
    )
    response = _alter([change], validate_only, bootstrap_server, bootstrap_controller, timeout)
    _say(
        response,
        f"the log is kept from offset {end_offset} on",
        validate_only=validate_only,
        as_json=as_json,
    )


@app.command(epilog=EPILOG)
def delete(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="The names of the cursors.",
            autocompletion=completion.cursor_names,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Delete all cursors.")] = False,
    expected_offset: Expected = None,
    validate_only: ValidateOnly = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Remove export cursors: nodes may then drop that part of the log.

    The exports themselves are not touched.

    \b
    Examples:
      raftlog cluster cursors delete nightly --bootstrap-controller 127.0.0.1:9093
      raftlog cluster cursors delete --all --validate-only
    """
    if all_ == bool(names):
        raise ConfigError("give the names of cursors, or --all")
    if expected_offset is not None and len(names or []) != 1:
        raise ConfigError("--expected-offset is about one cursor")
    changes = [
        controller_pb2.ExportCursorAlteration(name=name, expected_offset=expected_offset)
        for name in names or []
    ]
    if all_:
        listed = _ask(bootstrap_controller, timeout).cursors
        # What was set anew meanwhile is not what was asked for.
        changes = [
            controller_pb2.ExportCursorAlteration(name=one.name, expected_offset=one.offset)
            for one in listed
        ]
    response = _alter(changes, validate_only, bootstrap_server, bootstrap_controller, timeout)
    _say(response, "removed", validate_only=validate_only, as_json=as_json)


def _ask(bootstrap_controller: str, timeout: float) -> Any:
    from raftlog.cli.session import ask_controller

    body = controller_pb2.ListExportCursorsRequest()
    return ask_controller(body, bootstrap_controller, timeout).list_export_cursors


def _alter(
    changes: list[controller_pb2.ExportCursorAlteration],
    validate_only: bool,
    bootstrap_server: str,
    bootstrap_controller: str,
    timeout: float,
) -> Any:
    body = controller_pb2.AlterExportCursorsRequest(
        alterations=changes, validate_only=validate_only
    )
    return alter(body, "alter_export_cursors", bootstrap_server, bootstrap_controller, timeout)


def _say(response: Any, what: str, *, validate_only: bool, as_json: bool) -> None:
    offsets = {one.name: known(one.offset) for one in response.alter_export_cursors.results}
    print_altered("cursors", offsets, what, response, validate_only=validate_only, as_json=as_json)
