"""Commands as functions that return an :class:`Answer`.

Most are coroutines that take a client and their own arguments. :func:`command` adds the options
that commands of a kind share, connects the client, prints the answer as JSON or as text, and exits
with the error's code. The client and its values are imported only when a command runs, as its help
needs neither.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, get_type_hints

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
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
from raftlog.cli.output import print_error, print_json, print_line
from raftlog.cli.process import run_cancellable
from raftlog.errors import AcksNotReachedError, ApiError, ConfigError, RaftlogError
from raftlog.outcome import Acks, WriteResult

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import ItemResult

B = TypeVar("B", bound=Callable[..., Any])
ItemT = TypeVar("ItemT", bound="ItemResult")
T = TypeVar("T")
AcksOption = Annotated[
    Acks,
    opt(
        "--acks",
        "When the write counts as done: committed (a majority has it), acknowledged (every "
        "unfenced broker has"
        " applied it), visible (every repeatable read shows it).",
    ),
]
ReadOption = Annotated[
    Literal["repeatable", "latest", "strict"],
    opt(
        "--read",
        "repeatable: what every unfenced broker has applied; latest: the newest state of the broker"
        " asked; strict: linearizable.",
    ),
]
ValidateOnly = Annotated[bool, opt("--validate-only", "Validate the request without executing it.")]
All = Annotated[bool, opt("--all", "Delete all of them.")]
_SHARED: dict[str, tuple[Any, Any]] = {
    "read": (ReadOption, "repeatable"),
    "acks": (AcksOption, Acks.COMMITTED),
    "bootstrap_server": (BootstrapServer, ""),
    "bootstrap_controller": (BootstrapController, ""),
    "timeout": (Timeout, DEFAULT_TIMEOUT_S),
    "as_json": (Json, False),
}
READ = ("read", "bootstrap_server", "timeout", "as_json")
"""The options of a read, which brokers answer."""
SERVER = ("bootstrap_server", "timeout", "as_json")
"""The options of a request that any broker can answer."""
ASK = ("bootstrap_controller", "timeout", "as_json")
"""The options of a request to the active controller."""
EITHER = ("bootstrap_server", "bootstrap_controller", "timeout", "as_json")
"""The options of a request to the active controller, forwarded by a broker if one is given."""
WRITE = ("acks", *EITHER)
"""The options of a write, forwarded by a broker if one is given."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The result of a command."""

    document: T
    """The value that --json prints, through :func:`raftlog.text.to_json`."""
    show: Callable[[], object]
    """Function that prints the same as readable text."""
    errors: Sequence[Exception] = ()
    """Failures; the command raises the last one."""


def group() -> typer.Typer:
    """Return an empty group of commands; ``built_in`` has its name and help."""
    return typer.Typer(epilog=EPILOG, no_args_is_help=True)


def command(
    app: typer.Typer | None = None,
    name: str | None = None,
    *,
    shared: Sequence[str] | None = None,
    acks: Acks | None = None,
    lines: Any = None,
    also: str = "",
) -> Callable[[B], B]:
    """Register a function as a command: in a group, or without one, through ``built_in``.

    With ``shared``, names of options that commands of its kind have, the function is a coroutine
    whose first argument is a client made from those options. Without ``shared`` it is a plain
    function that takes only its own options. ``acks``: the default of --acks. A function that
    returns an :class:`Answer` gets --json, which prints the document; if a function prints its own
    documents, one per line, ``lines`` is their type. ``also``: an alias, which no help lists. A
    parameter whose type is a dataclass stands for one option per field.
    """

    def add(body: B) -> B:
        options = {one: _SHARED[one] for one in shared or ()}
        if acks is not None:
            options["acks"] = (AcksOption, acks)
        own = [*inspect.signature(body).parameters.values()][shared is not None :]
        answers = str(body.__annotations__.get("return")).startswith("Answer[")
        if shared is None and answers and "as_json" not in body.__annotations__:
            options["as_json"] = _SHARED["as_json"]
        parameters: list[inspect.Parameter] = []
        sets: dict[str, Any] = {}
        for one in own:
            annotation = eval(one.annotation, body.__globals__)
            if is_dataclass(annotation):
                sets[one.name] = annotation
                hints = get_type_hints(annotation, include_extras=True)
                parameters += [
                    _option(each.name, hints[each.name], each.default)
                    for each in fields(annotation)
                ]
            else:
                parameters.append(
                    one.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY)
                )
        parameters += [_option(one, *kind) for one, kind in options.items()]

        @functools.wraps(body)
        def run(**given: Any) -> None:
            as_json = given.get("as_json", False)
            common = {one: given.pop(one) for one in options}
            for each, kind in sets.items():
                given[each] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
            if shared is None:
                answer = body(**given)
            else:
                answer = call(lambda client: body(client, **given), common)
            if answer is not None:
                finish(answer, as_json=as_json)

        def add_to(place: typer.Typer, word: str | None) -> None:
            place.command(word, epilog=EPILOG)(run)
            if also:
                place.command(also, epilog=EPILOG, hidden=True)(run)

        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        body.__dict__.update(add_to=add_to, lines=lines)
        if app is not None:
            add_to(app, name)
        return body

    return add


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def call(use: Callable[[AsyncClient], Coroutine[Any, Any, T]], options: dict[str, Any]) -> T:
    """Run a coroutine that needs a client on an event loop, and close the client."""

    async def work() -> T:
        client = open_client(**options)
        try:
            return await use(client)
        except UnicodeError:
            raise
        except ValueError as error:
            # Arguments that are wrong whatever the cluster.
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
    """Return a client of the brokers, or of the controllers if no broker is given.

    An option is None if the command does not have it. Raises ConfigError. The client's first call
    raises NetworkError if nothing listens at the addresses, so that a mistyped port does not cost
    the whole timeout.
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
    """Print an answer, and raise its last error; earlier errors go to stderr unless the document
    contains all of them.
    """
    if as_json:
        print_json(answer.document)
    else:
        answer.show()
    for error in () if as_json else answer.errors[:-1]:
        print_error(f"raftlog: {error}")
    if answer.errors:
        raise answer.errors[-1]


async def written(
    write: Awaitable[WriteResult[ItemT]], done: str | Callable[[ItemT], str]
) -> Answer[WriteResult[ItemT]]:
    """Return the answer for a write. ``done``: text for an accepted item."""
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
    """Print the result of each item, and the offset of the write."""
    for one in result.items:
        if one.error is None:
            print_line(f"{one.name}: {done if isinstance(done, str) else done(one)}")
    if result.token is not None:
        print_line(
            f"{result.reached} at offset {result.token.offset} in epoch {result.token.epoch}"
        )


def expected_offset(what: str, column: str) -> Any:
    """Return the option --expected-offset for a command that changes a ``what``; lists show its
    offset in ``column``.
    """
    return opt(
        "--expected-offset OFFSET",
        f"Only if the {what} is still listed with this {column}; -1: only if the {what} does not "
        "exist.",
        min=-1,
    )


def condition(expected: int | None) -> Any:
    """Return the value of --expected-offset as the client takes it."""
    from raftlog.client.values import ABSENT, UNCONDITIONAL

    return UNCONDITIONAL if expected is None else ABSENT if expected < 0 else expected


async def conditions(
    what: str,
    names: Sequence[str] | None,
    expected: int | None,
    listed: Callable[[], Awaitable[Iterable[Any]]],
    everything: bool,
) -> dict[str, Any]:
    """Return the condition under which each name is deleted: --expected-offset, or with --all the
    listed offset. Raises ConfigError.
    """
    if everything == bool(names):
        raise ConfigError(f"name at least one {what}, or give --all")
    if expected is not None and len(names or ()) != 1:
        raise ConfigError(f"--expected-offset needs exactly one {what}")
    if everything:
        # A cursor or mapping that has been set again since the list must not be deleted.
        return {getattr(one, "name", "") or one.hostname: one.offset for one in await listed()}
    return dict.fromkeys(names or (), condition(expected))


def pair(text: str, option: str = "") -> tuple[str, str]:
    """Split KEY=VALUE. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{f'{option} {text}' if option else repr(text)}: write it as KEY=VALUE")
    return key, value


def would(done: str, validate_only: bool) -> str:
    """Return ``done``, as a conditional if the write was only validated."""
    return f"would be {done}" if validate_only else done
