"""``raftlog``: one command line, made of the commands that installed packages bring.

A package adds commands with an entry point of the group ``raftlog.commands`` that names a function
``register(app: typer.Typer) -> None``. One that cannot be imported does not break the others: its
name says what to install. Modules of ``register`` import no more than clients need, so that any
command line starts fast and a plain installation explains every command; what else a command needs
is imported when it runs, and the extras of its entry point bring it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer

from raftlog.cli import built_in, extras
from raftlog.cli.completion import (
    INSTALL,
    SHOW,
    reported_installation,
    respell_line,
    words_to_complete,
)
from raftlog.cli.endings import INTERRUPTED
from raftlog.cli.exits import EPILOG, Exit, FailedError
from raftlog.cli.groups import PipedGroup
from raftlog.cli.quiet_logs import set_up_quiet_logs
from raftlog.cli.reporting import reported
from raftlog.cli.spellings import respelled
from raftlog.cli.version import version_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    Plugin = EntryPoint | built_in.Command | built_in.Listed

GROUP = "raftlog.commands"

_HELP = """A replicated log of cluster metadata: run its nodes, query them, and read and change the metadata.

Give a controller's address by --bootstrap-controller or RAFTLOG_BOOTSTRAP_CONTROLLER, a broker's by --bootstrap-server or
RAFTLOG_BOOTSTRAP_SERVER. For mutual TLS set RAFTLOG_TLS_CERTIFICATE_FILE, RAFTLOG_TLS_KEY_FILE and RAFTLOG_TLS_CA_FILE; for a token
RAFTLOG_TOKEN_FILE and RAFTLOG_TLS_CA_FILE.

\b
First steps:
  raftlog storage random-uuid                  a cluster id for the configuration files
  raftlog config check node1.toml              every mistake in it, at once
  raftlog storage format -c node1.toml         give the data directory its identity
  raftlog controller run -c node1.toml         run the node
  raftlog quorum describe --bootstrap-controller 127.0.0.1:9093
"""  # noqa: E501


def build(plugins: Sequence[Plugin] | None = None) -> typer.Typer:
    """The whole command line. ``plugins``: instead of those installed."""
    found = sorted(_installed() if plugins is None else plugins, key=lambda one: one.name)
    app = typer.Typer(
        name="raftlog",
        cls=_group({one.name: tuple(one.extras) for one in found}),
        help=_HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    # With one command only, Typer would make it the whole program.
    app.callback()(_version_callback())
    for plugin in found:
        try:
            register: Callable[[typer.Typer], None] = plugin.load()
        except ImportError as error:
            _register_missing(app, plugin, error)
        else:
            register(app)
    return app


def build_for(arguments: Sequence[str]) -> typer.Typer:
    """As much of the command line as these arguments need.

    Most of a command line's start would be spent on building the other commands.
    """
    name = arguments[0] if arguments else ""
    if list(arguments) in ([], ["--help"]):
        return build_list()
    if name in built_in.BY_NAME:
        return build([built_in.BY_NAME[name]])
    if name[:1] in ("", "-"):
        return build()
    if named := [one for one in _installed() if one.name == name]:
        app = build(named)
        # A package may give an entry point another name than its command.
        groups, commands = app.registered_groups, app.registered_commands
        if name in [each.name for each in groups] + [each.name for each in commands]:
            return app
    return build()


def build_list() -> typer.Typer:
    """The command line without what the commands of this distribution do: enough for --help."""
    others = [one for one in _installed() if one.name not in built_in.BY_NAME]
    return build([*_listed(), *others])


def build_names() -> typer.Typer:
    """The command line without what any command does: enough to complete the first word."""
    names = {one.name for one in _installed()} - built_in.BY_NAME.keys()
    return build([*_listed(), *map(built_in.Listed, names)])


def _listed() -> list[built_in.Listed]:
    return [built_in.Listed(one.name, one.help) for one in built_in.COMMANDS]


def _installed() -> Collection[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _group(extras_of: Mapping[str, Collection[str]]) -> type[PipedGroup]:
    class Commands(PipedGroup):
        """Lists commands by name, also those that are groups. Says of a command that finds a module
        missing which extra brings it.
        """

        def list_commands(self, ctx: Any) -> list[str]:
            return sorted(super().list_commands(ctx))

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name = args[0]
            if not name.startswith("-") and self.get_command(ctx, name) is None:
                from difflib import get_close_matches

                if near := get_close_matches(name, self.list_commands(ctx), n=1):
                    ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
            return super().resolve_command(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                command = ctx.invoked_subcommand or ""
                message = extras.missing(command, error, extras_of.get(command, ()))
                if message is None:
                    raise
                raise FailedError(message, Exit.USAGE) from error

    return Commands


def _version_callback() -> Callable[..., None]:
    def show_version(ctx: typer.Context, asked: bool) -> None:
        if asked:
            typer.echo(version_text(as_json=bool(ctx.params.get("as_json"))))
            raise typer.Exit

    def callback(
        version: bool = typer.Option(
            False,
            "--version",
            callback=show_version,
            help="Show the version and the build.",
        ),
        as_json: bool = typer.Option(
            False, "--json", is_eager=True, help="With --version: JSON for programs."
        ),
    ) -> None:
        pass

    callback.__doc__ = _HELP
    return callback


def _register_missing(app: typer.Typer, plugin: Plugin, error: ImportError) -> None:
    remedy = extras.pip_install(sorted(plugin.extras)) if plugin.extras else "reinstall it"
    message = f"`raftlog {plugin.name}` cannot be loaded: {error}. To have it: {remedy}"

    def missing() -> None:
        typer.echo(message, err=True)
        raise typer.Exit(Exit.USAGE)

    app.command(
        plugin.name,
        help=f"Not available: {error}. To have it: {remedy}",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(missing)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit.

    An operator's error is a message and a code, never a stack trace.
    """
    given = respelled(list(sys.argv[1:] if arguments is None else arguments))
    respell_line()
    words = words_to_complete()
    # What a command cannot do it says itself; a node sets up logs of its own.
    set_up_quiet_logs(given[:1] if words is None else ())
    try:
        with reported():
            if words == []:
                build_names()(given)
            command_line = build_for(given if words is None else words)
            # A shell completes words after a program's name, not after `python -m`.
            program = "raftlog" if {INSTALL, SHOW} & {*given} else None
            with reported_installation() if INSTALL in given else nullcontext():
                command_line(given, prog_name=program)
    except typer.Abort:
        sys.exit(INTERRUPTED)
