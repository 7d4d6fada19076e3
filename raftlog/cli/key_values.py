"""``raftlog kv``: the key-value store."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    JsonLines,
    Timeout,
)
from raftlog.cli.output import known, print_json, print_line, print_table
from raftlog.cli.reads import ReadMode, ReadModeOption, read
from raftlog.cli.session import Session, run
from raftlog.cli.standard_input import standard_input
from raftlog.cli.writes import (
    Acks,
    AcksLevel,
    expected_offset,
    print_altered,
    require,
    write,
)
from raftlog.errors import ConfigError
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

app = typer.Typer(
    help="The key-value store: keys, leases and locks.",
    epilog=EPILOG,
    no_args_is_help=True,
)
Key = Annotated[str, typer.Argument(metavar="KEY", help="As locks/orders/1.")]
Expected = Annotated[int | None, expected_offset("key", "OFFSET")]
_SHOWN_CHARS = 60


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="kv")


@app.callback()
def _group() -> None:
    """The key-value store: keys, leases and locks."""


@app.command(epilog=EPILOG)
def get(
    key: Key,
    mode: ReadModeOption = ReadMode.REPEATABLE,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Print the value of a key: as it is, if not to a terminal. Exit code 1: it is not there.

    \b
    Examples:
      raftlog kv get settings/limit
      raftlog kv get settings/limit --read strict --json
    """
    body = broker_pb2.ListKeyValuesRequest(keys=[key])
    response = read(body, mode, bootstrap_server, timeout)
    found = response.list_key_values.key_values
    if as_json:
        one = _document(found[0]) if found else None
        print_json({"offset": response.token.offset, "key_value": one})
    if not found:
        raise FailedError(f"there is no key {key}", Exit.REFUSED)
    if as_json:
        return
    if sys.stdout.isatty():
        typer.echo(_text(found[0].value))
    else:
        sys.stdout.buffer.write(found[0].value)
        sys.stdout.buffer.flush()


@app.command("list", epilog=EPILOG)
def list_(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin with it.")
    ] = "",
    mode: ReadModeOption = ReadMode.REPEATABLE,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the keys by name.

    --expected-offset is compared with OFFSET, where the key was last put. CREATED is where it was
    made: among keys, who was there first. LEASE is the lease that it goes with.

    \b
    Examples:
      raftlog kv list
      raftlog kv list locks/ --json
    """
    found, offset = _list(prefix, mode, bootstrap_server, timeout)
    if as_json:
        print_json({"offset": offset, "key_values": [_document(one) for one in found]})
        return
    rows = [
        (one.key, one.offset, one.create_offset, one.lease_id or None, _short(one.value))
        for one in found
    ]
    columns = ("KEY", "OFFSET", "CREATED", "LEASE", "VALUE")
    print_table(
        columns, rows, right=("OFFSET", "CREATED", "LEASE"), least=("CREATED", "LEASE", "OFFSET")
    )


@app.command(epilog=EPILOG)
def watch(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin with it.")
    ] = "",
    initial: Annotated[bool, typer.Option("--initial", help="Begin with what there is.")] = False,
    bootstrap_server: BootstrapServer = "",
    as_json: JsonLines = False,
) -> None:
    """Print each change of the keys, until interrupted.

    As `raftlog watch kv/PREFIX*` does.

    \b
    Examples:
      raftlog kv watch locks/ --initial
    """
    from raftlog.cli.watch import watch as watch_all

    watch_all(
        [f"kv/{prefix}*"], initial=initial, bootstrap_server=bootstrap_server, as_json=as_json
    )


@app.command(epilog=EPILOG)
def put(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Text; -: standard input.")],
    lease: Annotated[
        int, typer.Option("--lease", metavar="ID", min=0, help="Delete it with this lease.")
    ] = 0,
    expected: Expected = None,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Put a key.

    \b
    Examples:
      raftlog kv put settings/limit 10
      raftlog kv put settings/limit 20 --expected-offset 1042
      raftlog kv put settings/limit 10 --expected-offset -1   # only if it is new
    """
    content = _input() if value == "-" else os.fsencode(value)
    change = controller_pb2.KeyValueAlteration(
        key=key, value=content, lease_id=lease, expected_offset=expected
    )
    _alter([change], "put", acks, bootstrap_server, bootstrap_controller, timeout, as_json)


@app.command(epilog=EPILOG)
def delete(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="The keys.")] = None,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="PREFIX", help="All keys that begin with it; '': all."),
    ] = None,
    expected: Expected = None,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete keys, all or none. One that is not there is no error.

    --prefix deletes what a list shows, and only as it is listed: if a key is put meanwhile, nothing
    is deleted. It asks a broker.

    \b
    Examples:
      raftlog kv delete settings/limit
      raftlog kv delete settings/limit --expected-offset 1042
      raftlog kv delete --prefix settings/
    """
    if bool(keys) == (prefix is not None):
        raise ConfigError("give keys, or --prefix")
    if expected is not None and len(keys or []) != 1:
        raise ConfigError("--expected-offset is about one key")
    changes = [_deletion(key, expected) for key in keys or []]
    if prefix is not None:
        found, _ = _list(prefix, ReadMode.LATEST, bootstrap_server, timeout, keys_only=True)
        changes = [_deletion(one.key, one.offset) for one in found]
        if not changes:
            print_json({"keys": {}, "write": None}) if as_json else print_line(
                "there are no such keys"
            )
            return
    _alter(changes, "deleted", acks, bootstrap_server, bootstrap_controller, timeout, as_json)


def _input() -> bytes:
    with standard_input() as stream:
        return stream.buffer.read()


def _deletion(key: str, expected: int | None) -> controller_pb2.KeyValueAlteration:
    return controller_pb2.KeyValueAlteration(
        key=key, operation=controller_pb2.KEY_VALUE_DELETE, expected_offset=expected
    )


def _alter(
    changes: list[controller_pb2.KeyValueAlteration],
    what: str,
    acks: AcksLevel,
    bootstrap_server: str,
    bootstrap_controller: str,
    timeout: float,
    as_json: bool,
) -> None:
    body = controller_pb2.AlterKeyValuesRequest(alterations=changes)
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    offsets = response.alter_key_values.offsets
    now = {one.key: known(offset) for one, offset in zip(changes, offsets, strict=True)}
    print_altered("keys", now, what, response, validate_only=False, as_json=as_json)
    require(response, acks)


def _list(
    prefix: str, mode: ReadMode, bootstrap_server: str, timeout: float, *, keys_only: bool = False
) -> tuple[list[Any], int]:
    """The keys, and the offset of the last part of the answer: none is newer."""

    async def ask(session: Session) -> tuple[list[Any], int]:
        # One client for all parts: none of them is older than the one before it.
        client = session.brokers(bootstrap_server)
        found: list[Any] = []
        after = ""
        while True:
            body = broker_pb2.ListKeyValuesRequest(prefix=prefix, after=after, keys_only=keys_only)
            response = await client.read(body, mode=mode.wire, timeout_s=timeout)
            answer = response.list_key_values
            found.extend(answer.key_values)
            if not answer.more or not answer.key_values:
                return found, response.token.offset
            after = answer.key_values[-1].key

    return run(ask, timeout)


def _document(one: broker_pb2.KeyValue) -> dict[str, Any]:
    """For JSON, as a watch has it."""
    from raftlog.metadata.entity_words import key_value

    return key_value(one.key, one.value, one.offset, one.create_offset, one.lease_id)


def _text(value: bytes) -> str:
    """For a terminal: nothing that it would obey."""
    from raftlog.printable import printable

    return "\n".join(map(printable, value.decode(errors="backslashreplace").split("\n")))


def _short(value: bytes) -> str:
    from raftlog.cli.render import shortened, value_text

    text = value_text(value)
    return text if len(text) <= _SHOWN_CHARS else shortened(text, value, _SHOWN_CHARS)
