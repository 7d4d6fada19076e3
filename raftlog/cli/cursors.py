"""``raftlog cluster cursors``: how far exports have come, and what of the log is kept for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from raftlog.cli import completion
from raftlog.cli.command import (
    ASK,
    WRITE,
    All,
    Answer,
    ValidateOnly,
    command,
    condition,
    conditions,
    expected_offset,
    group,
    written,
)
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_line, print_table
from raftlog.cli.render import time_text

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.cluster import CursorListing
    from raftlog.client.values import OffsetResult
    from raftlog.outcome import WriteResult

app = group()
Expected = Annotated[int | None, expected_offset("cursor", "SET AT")]


@command(app, "list", shared=ASK)
async def list_(client: AsyncClient) -> Answer[CursorListing]:
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
    cursors = await client.export_cursors.list()

    def show() -> None:
        rows = (
            (one.name, one.end_offset, one.lag, "passed" if one.passed else "kept",
             time_text(one.timestamp_ms), one.offset, one.target or None)
            for one in cursors
        )  # fmt: skip
        columns = ("CURSOR", "END", "LAG", "STATE", "MOVED", "SET AT", "EXPORT")
        print_table(columns, rows, right=("END", "LAG", "SET AT"), least=("SET AT", "MOVED"))
        print_line(f"the log of the active controller begins at offset {cursors.log_start_offset}")

    return Answer(cursors, show)


@command(app, "set", shared=WRITE)
async def set_(
    client: AsyncClient,
    name: Annotated[
        str, arg("NAME", "The name of the cursor.", autocompletion=completion.cursor_names)
    ],
    end_offset: Annotated[int, arg("OFFSET", "Keep the log from here on.", min=0)],
    target: Annotated[
        str,
        opt(
            "--target WHERE",
            "The export that it belongs to: for people, and to tell exports apart.",
        ),
    ] = "",
    expected: Expected = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Set an export cursor by hand.

    For a custom exporter, or to keep the log from an offset on before the first export. `raftlog
    export --cursor NAME` sets its cursor by itself. To move the cursor of another export
    (--target), give --expected-offset.

    \b
    Examples:
      raftlog cluster cursors set nightly 120400 --bootstrap-controller 127.0.0.1:9093
      raftlog cluster cursors set nightly 120400 --expected-offset -1
    """
    return await written(
        client.export_cursors.set(
            name,
            end_offset,
            target=target,
            expected_offset=condition(expected),
            validate_only=validate_only,
        ),
        "would be accepted" if validate_only else f"the log is kept from offset {end_offset} on",
    )


@command(app, shared=WRITE)
async def delete(
    client: AsyncClient,
    names: Annotated[
        list[str] | None,
        arg("NAME...", "The names of the cursors.", autocompletion=completion.cursor_names),
    ] = None,
    everything: All = False,
    expected: Expected = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[OffsetResult]]:
    """Remove export cursors: nodes may then drop that part of the log.

    The exports themselves are not touched.

    \b
    Examples:
      raftlog cluster cursors delete nightly --bootstrap-controller 127.0.0.1:9093
      raftlog cluster cursors delete --all --validate-only
    """
    chosen = await conditions("cursor", names, expected, client.export_cursors.list, everything)
    return await written(
        client.export_cursors.delete_all(chosen, validate_only=validate_only),
        "would be accepted" if validate_only else "removed",
    )
