"""``raftlog configs``: dynamic configs of topics, brokers, groups and clients."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.config_hints import did_you_mean, without_effect
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import (
    print_error,
    print_json,
    print_line,
    print_note,
    print_table,
    print_text,
)
from raftlog.cli.reads import ReadMode, ReadModeOption, read
from raftlog.cli.writes import (
    Acks,
    AcksLevel,
    ValidateOnly,
    first_error,
    print_written,
    require,
    write,
    written,
)
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.config_keys import without_effect as effect_of
from raftlog.plural import counted
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

app = typer.Typer(
    help="Configs of topics and brokers: in the log, alike on every node.",
    epilog=EPILOG,
    no_args_is_help=True,
)

SOURCES = {
    1: "dynamic topic",
    2: "dynamic broker",
    3: "dynamic default",
    5: "default",
    7: "client metrics",
    8: "group",
}
"""Kafka's ConfigSource, for people."""
DEFAULT = 5


class ResourceKind(StrEnum):
    """What a config belongs to."""

    TOPIC = "topic"
    BROKER = "broker"
    CLIENT_METRICS = "client-metrics"
    GROUP = "group"

    @property
    def wire(self) -> int:
        """Kafka's number."""
        return {"topic": 2, "broker": 4, "client-metrics": 16, "group": 32}[self.value]


Kind = Annotated[
    ResourceKind, typer.Argument(metavar="KIND", help="topic, broker, client-metrics or group.")
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help='The topic, broker id, ... For all brokers: "".',
        autocompletion=completion.config_names,
    ),
]


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="configs")


@app.command(epilog=EPILOG)
def alter(
    kind: Kind,
    name: Name,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key; may be repeated.",
            autocompletion=completion.config_assignments,
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            metavar="KEY",
            help="Reset a key to its default; may be repeated.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option(
            "--append", metavar="KEY=ITEM,...", help="Add items to a list; may be repeated."
        ),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option(
            "--subtract", metavar="KEY=ITEM,...", help="Take items out of a list; may be repeated."
        ),
    ] = None,
    validate_only: ValidateOnly = False,
    acks: Acks = AcksLevel.COMMITTED,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Change configs of one resource: all changes are made, or none.

    \b
    Examples:
      raftlog configs alter topic orders --set max.message.bytes=2000000
      raftlog configs alter topic orders --delete min.insync.replicas --acks visible
      raftlog configs alter broker "" --set min.insync.replicas=2
    """
    changes = [_set(text) for text in set_ or []]
    changes += [_set(text, "--append", controller_pb2.APPEND) for text in append or []]
    changes += [_set(text, "--subtract", controller_pb2.SUBTRACT) for text in subtract or []]
    changes += [
        controller_pb2.AlterableConfig(name=key, config_operation=controller_pb2.DELETE)
        for key in delete or []
    ]
    if not changes:
        raise ConfigError(
            "nothing to change: give --set, --append or --subtract KEY=VALUE, or --delete KEY"
        )
    resource = controller_pb2.AlterConfigsResource(
        resource_type=kind.wire, resource_name=name, configs=changes
    )
    body = controller_pb2.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    names = [one.name for one in changes]
    error = first_error(response.incremental_alter_configs.results)
    if error is not None:
        if hint := did_you_mean(kind.wire, names):
            print_error(hint)
        raise error
    set_now = {
        one.name: one.value
        for one in changes
        if one.config_operation not in (controller_pb2.DELETE, controller_pb2.SUBTRACT)
    }
    if note := without_effect(kind.wire, set_now):
        print_note(note)
    if as_json:
        print_json({"resource_type": kind.value, "resource_name": name, "write": written(response)})
    else:
        print_line(
            f"{kind.value} {name or '(default)'}:"
            f" {'would be accepted' if validate_only else 'altered'}"
        )
        print_written(response)
    require(response, acks)


@app.command(epilog=EPILOG)
def describe(
    kind: Kind,
    name: Name,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Only this key; may be repeated.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Show defaults that nothing acts on, too.")
    ] = False,
    mode: ReadModeOption = ReadMode.REPEATABLE,
    bootstrap_server: BootstrapServer = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the configs of one resource, and where each value comes from.

    Those that are set, and those that this build acts on; --all and --json show all that there are.

    \b
    Examples:
      raftlog configs describe topic orders --bootstrap-server 127.0.0.1:9092
      raftlog configs describe broker 4 --key message.max.bytes --json
    """
    resource = broker_pb2.DescribeConfigsResource(
        resource_type=kind.wire, resource_name=name, configuration_keys=keys or []
    )
    response = read(
        broker_pb2.DescribeConfigsRequest(resources=[resource]), mode, bootstrap_server, timeout
    )
    (result,) = response.describe_configs.results
    if result.error_code != ErrorCode.NONE:
        raise ApiError(ErrorCode(result.error_code), result.error_message, field=result.field)
    rows = [
        (one.name, one.value, SOURCES.get(one.config_source, str(one.config_source)))
        for one in result.configs
    ]
    marks = {key: effect_of(kind.wire, key, value) for key, value, _ in rows}
    if as_json:
        configs: list[dict[str, Any]] = [
            {"name": key, "value": value, "source": source, "without_effect": marks[key] or None}
            for key, value, source in rows
        ]
        print_json({"offset": response.token.offset, "configs": configs})
    else:
        shown = [
            (key, value, marked(source, marks[key]))
            for key, value, source in rows
            if show_all or keys or source != SOURCES[DEFAULT] or not marks[key]
        ]
        print_table(("KEY", "VALUE", "SOURCE"), shown)
        if idle := len(rows) - len(shown):
            print_text(f"({counted(idle, 'default')} that nothing acts on: --all)")
        print_line(f"at offset {response.token.offset}")
    meant = {one.name: one.value for one in result.configs if keys or one.config_source != DEFAULT}
    if note := without_effect(kind.wire, meant):
        print_note(note)
    # Every key there is has a value, if only its default.
    unknown = sorted(set(keys or ()) - {key for key, _, _ in rows})
    if unknown:
        hint = did_you_mean(kind.wire, unknown)
        raise FailedError(
            f"INVALID_CONFIG: there is no {kind.value} config {', '.join(unknown)}"
            f"{f'; {hint}' if hint else ''}",
            Exit.REFUSED,
        )


def marked(source: str, mark: str) -> str:
    """Where a value comes from, and why it changes nothing."""
    return f"{source} ({mark})" if mark else source


def _set(
    text: str, option: str = "--set", operation: controller_pb2.ConfigOperation = controller_pb2.SET
) -> controller_pb2.AlterableConfig:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option} {text}: write it as KEY=VALUE")
    return controller_pb2.AlterableConfig(name=key, config_operation=operation, value=value)
