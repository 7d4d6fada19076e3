"""``raftlog``: one command line for this distribution's commands and those of other packages.

A package adds commands with an entry point in the group ``raftlog.commands`` that names a function
``register(app: typer.Typer) -> None``; ``built_in`` lists this distribution's own. A command that
cannot be imported does not break the others: its help names the extra to install. Command modules
import no more than clients need, so that every command line starts fast and a plain installation
can explain every command. A command imports anything else when it runs; the extras in its entry
install it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from raftlog.cli import built_in
from raftlog.cli.built_in import respelled, version_text
from raftlog.cli.completion import (
    INSTALL,
    SHOW,
    reported_installation,
    respell_line,
    words_to_complete,
)
from raftlog.cli.exits import EPILOG, Exit, FailedError, reported
from raftlog.cli.streams import INTERRUPTED, UNREAD, has_no_reader
from raftlog.text import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    Plugin = EntryPoint | built_in.Command | built_in.Listed

GROUP = "raftlog.commands"

_HELP = """A replicated log of cluster metadata: run its nodes, read and change it.

\b
First steps:
  raftlog dev                      a cluster of six processes, with a prompt
  raftlog topics create orders --acks visible
  raftlog history topic orders     who changed it, and when
  raftlog doctor                   what is wrong, and the remedy

Commands find a cluster by --bootstrap-controller and --bootstrap-server, or RAFTLOG_BOOTSTRAP_CONTROLLER and
RAFTLOG_BOOTSTRAP_SERVER. Mutual TLS: RAFTLOG_TLS_CERTIFICATE_FILE, RAFTLOG_TLS_KEY_FILE and RAFTLOG_TLS_CA_FILE; a token:
RAFTLOG_TOKEN_FILE and RAFTLOG_TLS_CA_FILE.
"""  # noqa: E501
_OTHERS = "Other packages"


def build(plugins: Sequence[Plugin] | None = None) -> typer.Typer:
    """Return the whole command line. ``plugins``: entry points to use instead of the installed
    ones.
    """
    found: Sequence[Plugin] = plugins or [*built_in.COMMANDS, *_installed()]
    app = typer.Typer(
        name="raftlog",
        cls=_top(found),
        help=_HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    # With a single command, Typer would make it the whole program.
    app.callback()(_version_callback())
    for plugin in found:
        group, _, _ = plugin.name.rpartition(" ")
        place = _copied_group(app, group) if group else app
        if place is None:
            continue  # The group cannot be loaded, which its help explains.
        try:
            register: Callable[[typer.Typer], object] = plugin.load()
        except ImportError as error:
            _register_missing(place, plugin, error)
        else:
            register(place)
    _list_whole(app, found)
    return app


def _copied_group(app: typer.Typer, name: str) -> typer.Typer | None:
    """Return a copy of a group, so that commands can be added without changing its module's own
    group; None if there is no such group.
    """
    info = next((one for one in app.registered_groups if one.name == name), None)
    if info is None:
        return None
    group = copy(info.typer_instance)
    assert group is not None, name
    group.registered_commands = [*group.registered_commands]
    group.registered_groups = [*group.registered_groups]
    info.typer_instance = group
    return group


def _list_whole(app: typer.Typer, plugins: Sequence[Plugin]) -> None:
    """Make every group in the app list its commands as the app does."""
    for info in app.registered_groups:
        within = [one.name for one in plugins if one.name.startswith(f"{info.name} ")]
        last = {"last": [name.rpartition(" ")[2] for name in within]}
        info.cls = type("Group", (PipedGroup,), last)
        if info.typer_instance is not None:
            _list_whole(info.typer_instance, ())


def build_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the part of the command line that these arguments need.

    Building the other commands would take most of the start-up time.
    """
    name = arguments[0] if arguments else ""
    if name in built_in.BY_NAME:
        both = f"{name} {arguments[1]}" if len(arguments) > 1 else ""
        inner = [built_in.BY_NAME[both]] if both in built_in.BY_NAME else _listed(name)
        return build([built_in.BY_NAME[name], *inner])
    if name[:1] == "-" and list(arguments) not in (["--help"], ["-h"]):
        return build()
    if named := [one for one in _installed() if one.name == name]:
        app = build(named)
        # An entry point may have a name other than its command's.
        groups, commands = app.registered_groups, app.registered_commands
        if name in [each.name for each in groups] + [each.name for each in commands]:
            return app
    return build_list()


def build_list() -> typer.Typer:
    """Return the command line for lists of commands, which loads none of this distribution's
    commands.
    """
    return build([*_listed(), *_installed()])


def build_names() -> typer.Typer:
    """Return the command line for completing its first word, which loads no command."""
    return build([*_listed(), *(built_in.Listed(one.name) for one in _installed())])


def _listed(group: str = "") -> list[built_in.Listed]:
    """Return the commands of the top level, or of a group, without loading them."""
    found = built_in.nested(group) if group else built_in.COMMANDS
    return [
        built_in.Listed(one.name, one.help, one.section)
        for one in found
        if group or " " not in one.name
    ]


def _installed() -> list[EntryPoint]:
    """Return the commands of other packages."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    return sorted(
        (one for one in found if one.name not in built_in.BY_NAME), key=lambda one: one.name
    )


def _top(plugins: Sequence[Plugin]) -> type[PipedGroup]:
    sections = {one.name: getattr(one, "section", "") or _OTHERS for one in plugins}

    class Commands(PipedGroup):
        """The top-level group, which lists commands by section.

        A command that lacks a module names the extra that installs it; a command's former name
        leads to the current one.
        """

        last = tuple(one.name for one in plugins)

        def sections(self, names: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
            for section in (*built_in.SECTIONS, _OTHERS):
                yield section, [one for one in names if sections.get(one, _OTHERS) == section]

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name = args[0]
            if name in built_in.MOVED and self.get_command(ctx, name) is None:
                ctx.fail(f"`raftlog {name}` is now `raftlog {built_in.MOVED[name]}`")
            return super().resolve_command(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                message = _missing(plugins, ctx.invoked_subcommand or "", error)
                if message is None:
                    raise
                raise FailedError(message, Exit.USAGE) from error

    return Commands


def _missing(plugins: Sequence[Plugin], command: str, error: ModuleNotFoundError) -> str | None:
    """Return the message for a command that lacks a module, or None: see ``built_in.missing``."""
    # The last part names the command itself if it was built alone.
    of = [
        one
        for one in plugins
        if one.name.partition(" ")[0] == command and not isinstance(one, built_in.Listed)
    ]
    return built_in.missing(of[-1].name, error, of[-1].extras) if of else None


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
    message = (
        built_in.missing(plugin.name, error, plugin.extras)
        if isinstance(error, ModuleNotFoundError)
        else None
    )
    if message is None:
        remedy = built_in.pip_install(sorted(plugin.extras)) if plugin.extras else "reinstall it"
        message = f"`raftlog {plugin.name}` cannot be loaded: {error}. To install it: {remedy}"

    def missing() -> None:
        typer.echo(f"raftlog: {message}", err=True)
        raise typer.Exit(Exit.USAGE)

    app.command(
        plugin.name.rpartition(" ")[2],
        help=f"Not available: {message}",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(missing)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit. An error that an operator can act on is a message and an exit
    code, never a stack trace.
    """
    given = respelled(list(sys.argv[1:] if arguments is None else arguments))
    respell_line()
    words = words_to_complete()
    # Commands report their failures themselves; nodes set up their own logs.
    set_up_quiet_logs(given if words is None else ())
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


_WHOLE = 1_000
"""Maximum length of a summary: longer than any sentence."""


class PipedGroup(TyperGroup):
    """A group that lists its commands with whole sentences.

    Exits with UNREAD if the reader of standard output has gone; Typer would exit with 1, which
    means that nothing was changed.
    """

    last: Sequence[str] = ()
    """Commands listed after the others, in this order."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in order; Typer would list groups last."""
        place = {name: number for number, name in enumerate(self.last)}
        return sorted(super().list_commands(ctx), key=lambda name: place.get(name, -1))

    def sections(self, names: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
        """Return the headings of the command list, each with its commands."""
        return [("Commands", names)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List each command with the whole first sentence of its help; Typer would truncate it."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        texts = {
            name: one.get_short_help_str(_WHOLE)
            for name, one in found.items()
            if one is not None and not one.hidden
        }
        width = max(map(len, texts), default=0)
        for heading, names in self.sections(list(texts)):
            if names:
                with formatter.section(heading):
                    formatter.write_dl([(one.ljust(width), texts[one]) for one in names])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help to stdout if no command is named, so that it can be piped to a pager."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            print(ctx.get_help())
            ctx.exit(Exit.USAGE)
        return super().parse_args(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Create the context. Raises SystemExit even if the help, which is printed here, has no
        reader.
        """
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError:
            _end_unread()
            raise

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command. Raises SystemExit if the output has no reader."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _end_unread()
            raise


def _end_unread() -> None:
    if has_no_reader():
        sys.exit(UNREAD)


_OF_NODES = {"server", "simulation"}
"""Extras of commands that run parts of a node."""


class _Formatter(logging.Formatter):
    """A formatter that escapes control characters in log lines."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")


def set_up_quiet_logs(command: Sequence[str]) -> None:
    """Log only errors, to stderr: through the standard library, or through structlog for commands
    that run parts of a node.
    """
    is_command = bool(command) and not command[0].startswith("-")
    names = (" ".join(command[:words]) for words in (1, 2))
    known = [built_in.BY_NAME[name] for name in names if name in built_in.BY_NAME]
    if (is_command and not known) or any(_OF_NODES & {*one.extras} for one in known):
        from raftlog.node.observability.logs import setup_logging

        setup_logging("error", "console")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
