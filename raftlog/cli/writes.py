"""What the commands that write share: where they go, when they are done, and how they say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.output import print_error, print_json, print_line
from raftlog.cli.session import run
from raftlog.errors import ApiError, ErrorCode
from raftlog.principals import os_user
from raftlog.transport.wire_errors import error_from_wire
from raftlog.wire.common.v1 import common_pb2

_ACKS = {
    "committed": common_pb2.ACKS_COMMITTED,
    "acknowledged": common_pb2.ACKS_ACKNOWLEDGED,
    "visible": common_pb2.ACKS_VISIBLE,
}


class AcksLevel(StrEnum):
    """When a write counts as done."""

    COMMITTED = "committed"
    ACKNOWLEDGED = "acknowledged"
    VISIBLE = "visible"

    @property
    def wire(self) -> common_pb2.Acks:
        """The same on the wire."""
        return _ACKS[self.value]


Acks = Annotated[
    AcksLevel,
    typer.Option(
        "--acks",
        help=(
            "When it is done: committed (a majority has it), acknowledged (every broker has applied"
            " it), visible (every repeatable read shows it)."
        ),
    ),
]
ValidateOnly = Annotated[
    bool, typer.Option("--validate-only", help="Only say whether it would be accepted.")
]


def expected_offset(what: str, column: str) -> Any:
    """The option --expected-offset of a command that changes ``what``, of which a list shows the
    offset in ``column``.
    """
    return typer.Option(
        "--expected-offset",
        metavar="OFFSET",
        min=-1,
        help=(
            f"Only if the {what} is still the one listed with this {column}; -1: only if there is"
            " none."
        ),
    )


def write(
    body: Any, acks: AcksLevel, bootstrap_server: str, bootstrap_controller: str, timeout_s: float
) -> Any:
    """Send one write, through a broker if one is given, else straight to the controller.

    Raises ApiError.

    Of items that are refused the response tells: commands show the result of each.
    """
    options: Any = {
        "acks": acks.wire,
        "timeout_s": timeout_s,
        "principal": os_user(),
        "raise_refused": False,
    }

    async def send(session: Any) -> Any:
        if bootstrap_server:
            brokers = session.brokers(bootstrap_server)
            return await brokers.write(body, **options)
        client = session.controllers(bootstrap_controller)
        return await client.call(body, **options)

    return run(send, timeout_s)


def written(response: Any) -> dict[str, Any] | None:
    """Where a write is, for JSON; None if it wrote nothing."""
    if not response.HasField("write"):
        return None
    result = response.write
    return {
        "offset": result.token.offset,
        "epoch": result.token.epoch,
        "generation": result.token.generation,
        "reached": common_pb2.Acks.Name(result.reached).removeprefix("ACKS_").lower(),
        "waiting_for_brokers": list(result.waiting_for_brokers),
    }


def print_written(response: Any) -> None:
    """Where a write is, for people."""
    result = written(response)
    if result is not None:
        print_line(f"{result['reached']} at offset {result['offset']} in epoch {result['epoch']}")


def alter(
    body: Any, result: str, bootstrap_server: str, bootstrap_controller: str, timeout_s: float
) -> Any:
    """Send alterations of which each has a result, in the field ``result``.

    Raises the first error of theirs, as ApiError.
    """
    response = write(body, AcksLevel.COMMITTED, bootstrap_server, bootstrap_controller, timeout_s)
    error = first_error(getattr(response, result).results)
    if error is not None:
        raise error
    return response


def print_altered(
    kind: str,
    offsets: dict[str, int | None],
    what: str,
    response: Any,
    *,
    validate_only: bool,
    as_json: bool,
) -> None:
    """What became of alterations, as JSON under ``kind`` or for people: the offset of each by name,
    and where the write is.
    """
    if as_json:
        print_json({kind: offsets, "write": written(response)})
        return
    done = "would be accepted" if validate_only else what
    for name in offsets:
        print_line(f"{name}: {done}")
    print_written(response)


def require(response: Any, asked: AcksLevel) -> None:
    """Fail if the asked level was not reached in time. The write itself stands."""
    if response.HasField("write") and response.write.reached < asked.wire:
        result = written(response)
        assert result is not None
        brokers = ", ".join(map(str, result["waiting_for_brokers"]))
        # With none to name, LAO stands still or is unknown for another reason than a broker that
        # lags.
        whom = (
            f"brokers [{brokers}]"
            if brokers
            else "the lowest acknowledged offset (why: `raftlog brokers list`)"
        )
        raise FailedError(
            f"the write stands at offset {result['offset']} ({result['reached']}), but was not"
            f" {asked.value} in time; waiting for {whom}",
            Exit.UNREACHABLE,
        )


def raise_errors(errors: Sequence[ApiError], *, said: bool) -> None:
    """Raise the last of the errors, if there is any; those before it go to stderr, unless all were
    ``said`` in a document.
    """
    for error in () if said else errors[:-1]:
        print_error(f"raftlog: {error}")
    if errors:
        raise errors[-1]


def first_error(results: Iterable[Any]) -> ApiError | None:
    """The first error of results of which each may have one."""
    return next(
        (error_from_wire(one.error) for one in results if one.error.error_code != ErrorCode.NONE),
        None,
    )
