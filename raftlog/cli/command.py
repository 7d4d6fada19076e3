"""Commands that are functions of a client.

Such a command is a coroutine that takes a client and its own arguments, and returns an
:class:`Answer`. :func:`command` adds the options that commands of its kind share, connects the
client, prints the answer as JSON or for people, and ends with the exit code of the error.

The client and its values are imported when a command runs: its help needs neither.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.interrupts import run_cancellable
from raftlog.cli.options import (
    BROKERS,
    CONTROLLERS,
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
    brokers,
    controllers,
    opt,
    variable,
)
from raftlog.cli.output import print_error, print_json, print_line, to_json
from raftlog.errors import AcksNotReachedError, ApiError, ConfigError, RaftlogError
from raftlog.outcome import Acks, WriteResult

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import ItemResult

Body = Callable[..., Coroutine[Any, Any, "Answer[Any] | None"]]
B = TypeVar("B", bound=Body)
ItemT = TypeVar("ItemT", bound="ItemResult")
T = TypeVar("T")
AcksOption = Annotated[
    Acks,
    opt(
        "--acks",
        "When it is done: committed (a majority has it), acknowledged (every broker has"
        " applied it), visible (every repeatable read shows it).",
    ),
]
ReadOption = Annotated[
    Literal["repeatable", "latest", "strict"],
    opt(
        "--read",
        "repeatable: what every broker can show; latest: the newest that the broker asked"
        " has applied; strict: linearizable.",
    ),
]
ValidateOnly = Annotated[bool, opt("--validate-only", "Only say whether it would be accepted.")]
All = Annotated[bool, opt("--all", "Delete all that are listed.")]
_SHARED: dict[str, tuple[Any, Any]] = {
    "read": (ReadOption, "repeatable"),
    "acks": (AcksOption, Acks.COMMITTED),
    "bootstrap_server": (BootstrapServer, ""),
    "bootstrap_controller": (BootstrapController, ""),
    "timeout": (Timeout, DEFAULT_TIMEOUT_S),
    "as_json": (Json, False),
}
READ = ("read", "bootstrap_server", "timeout", "as_json")
"""A read, which brokers answer."""
SERVER = ("bootstrap_server", "timeout", "as_json")
"""A question to brokers."""
ASK = ("bootstrap_controller", "timeout", "as_json")
"""A question to the active controller."""
EITHER = ("bootstrap_server", "bootstrap_controller", "timeout", "as_json")
"""A question to the active controller, through a broker if one is given."""
WRITE = ("acks", *EITHER)
"""A write, through a broker if one is given."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a command has to say."""

    document: T
    """What --json prints."""
    show: Callable[[], None]
    """Prints the same for people."""
    errors: Sequence[Exception] = ()
    """What went wrong; the command ends with the last error."""


def group() -> typer.Typer:
    """A group of commands; ``built_in`` has its name and help."""
    return typer.Typer(epilog=EPILOG, no_args_is_help=True)


def command(
    app: typer.Typer, name: str | None = None, *, shared: Sequence[str], acks: Acks | None = None
) -> Callable[[B], B]:
    """Add a coroutine to a group as a command.

    ``shared``: the options that it takes besides its own. ``acks``: the default of --acks. A
    parameter of a dataclass stands for the options that are the fields of that class.
    """

    def add(body: B) -> B:
        defaults = {one: _SHARED[one][1] for one in shared} | (
            {} if acks is None else {"acks": acks}
        )
        parameters: list[inspect.Parameter] = []
        sets: dict[str, Any] = {}
        for one in [*inspect.signature(body).parameters.values()][1:]:
            annotation = eval(one.annotation, body.__globals__)
            if is_dataclass(annotation):
                sets[one.name] = annotation
                hints = get_type_hints(annotation, include_extras=True)
                parameters += [
                    _option(each.name, hints[each.name], each.default)
                    for each in fields(annotation)
                ]
            else:
                parameters.append(one.replace(annotation=annotation))
        parameters += [_option(one, _SHARED[one][0], defaults[one]) for one in shared]

        @functools.wraps(body)
        def run(**given: Any) -> None:
            common = {one: given.pop(one) for one in shared}
            for name_, kind in sets.items():
                given[name_] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
            answer = call(lambda client: body(client, **given), common)
            if answer is not None:
                finish(answer, as_json=common["as_json"])

        ordered = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name, epilog=EPILOG)(run)
        return body

    return add


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def call(use: Callable[[AsyncClient], Coroutine[Any, Any, T]], options: dict[str, Any]) -> T:
    """Run a coroutine that needs a client on an event loop, and close the client."""

    async def work() -> T:
        client = open_client(**options)
        try:
            return await use(client)
        except UnicodeError:
            raise
        except ValueError as error:
            # What no cluster has to see to refuse it.
            raise FailedError(str(error), Exit.USAGE) from error
        finally:
            await client.close()

    return run_cancellable(work())


def open_client(
    bootstrap_server: str | None = None,
    bootstrap_controller: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    read: str = "repeatable",
    acks: Acks = Acks.COMMITTED,
    exactly_once: bool | None = False,
    **_others: Any,
) -> AsyncClient:
    """A client of the brokers, or of the controllers if no broker is given.

    None: the command has no such option.

    Raises ConfigError. Its first call raises NetworkError if nobody listens there: a person who has
    mistyped a port does not want to wait for the timeout.
    """
    from raftlog.client.admission import require_listener
    from raftlog.client.async_client import AsyncClient
    from raftlog.transport.grpc_transport import GrpcTransport

    def connect() -> GrpcTransport:
        tls, token = client.options.tls, client.options.token
        files = None if tls is None else tls.files
        require_listener(client.options.servers, plaintext=tls is None, files=files)
        return GrpcTransport(tls=tls, token=token)

    options: Any = {"timeout_s": timeout, "read": read, "acks": acks}
    options["exactly_once"] = exactly_once
    if bootstrap_server == bootstrap_controller == "":
        raise ConfigError(
            f"no address is given: use {BROKERS} or {CONTROLLERS} HOST:PORT, or set"
            f" {variable(BROKERS)} or {variable(CONTROLLERS)}"
        )
    if bootstrap_server and bootstrap_controller:
        options["controllers"] = controllers(bootstrap_controller)
    if bootstrap_server or bootstrap_controller is None:
        client = AsyncClient.over(connect, brokers(bootstrap_server or ""), **options)
    else:
        client = AsyncClient.over(connect, controllers=controllers(bootstrap_controller), **options)
    return client


def finish(answer: Answer[Any], *, as_json: bool) -> None:
    """Print an answer, and raise the last of its errors; those before go to stderr, unless the
    document has all.
    """
    if as_json:
        print_json(to_json(answer.document))
    else:
        answer.show()
    for error in () if as_json else answer.errors[:-1]:
        print_error(f"raftlog: {error}")
    if answer.errors:
        raise answer.errors[-1]


async def written(
    write: Awaitable[WriteResult[ItemT]], done: str | Callable[[ItemT], str]
) -> Answer[WriteResult[ItemT]]:
    """The answer of a write: ``done`` is what became of each item that was not refused."""
    errors: Sequence[RaftlogError] = ()
    try:
        result: WriteResult[Any] = await write
    except AcksNotReachedError as error:
        result, errors = error.result, (error,)
    except ApiError as error:
        if error.write is None:
            raise
        result = error.write
        # Those of the items name them.
        errors = [one.error for one in result.items if one.error] or [error]
    return Answer(result, lambda: show_written(result, done), errors)


def show_written(result: WriteResult[Any], done: str | Callable[[Any], str]) -> None:
    """Print what became of each item, and where the write is."""
    for one in result.items:
        if one.error is None:
            print_line(f"{one.name}: {done if isinstance(done, str) else done(one)}")
    if result.token is not None:
        print_line(
            f"{result.reached} at offset {result.token.offset} in epoch {result.token.epoch}"
        )


def expected_offset(what: str, column: str) -> Any:
    """The option --expected-offset of a command that changes ``what``, of which a list shows the
    offset in ``column``.
    """
    return opt(
        "--expected-offset OFFSET",
        f"Only if the {what} is still the one listed with this {column}; -1: only if there is"
        " none.",
        min=-1,
    )


def condition(expected: int | None) -> Any:
    """The value of --expected-offset as the client takes it."""
    from raftlog.client.values import ABSENT, UNCONDITIONAL

    return UNCONDITIONAL if expected is None else ABSENT if expected < 0 else expected


async def conditions(
    what: str,
    names: Sequence[str] | None,
    expected: int | None,
    listed: Callable[[], Awaitable[Iterable[Any]]],
    everything: bool,
) -> dict[str, Any]:
    """What each name is expected to be before it is deleted: as --expected-offset says, or with
    --all as it is listed. Raises ConfigError.
    """
    if everything == bool(names):
        raise ConfigError(f"give the names of {what}s, or --all")
    if expected is not None and len(names or ()) != 1:
        raise ConfigError(f"--expected-offset is about one {what}")
    if everything:
        # What was set anew meanwhile is not what was asked for.
        return {getattr(one, "name", "") or one.hostname: one.offset for one in await listed()}
    return dict.fromkeys(names or (), condition(expected))


def pair(text: str, option: str = "") -> tuple[str, str]:
    """KEY=VALUE. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{f'{option} {text}' if option else repr(text)}: write it as KEY=VALUE")
    return key, value


def would(done: str, validate_only: bool) -> str:
    """Say what was done, or would be."""
    return f"would be {done}" if validate_only else done
