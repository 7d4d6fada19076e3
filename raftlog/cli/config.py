"""``raftlog config``: the keys there are, and what a file makes of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.exits import EPILOG
from raftlog.cli.options import Json, SetFlags, arg, opt
from raftlog.cli.output import print_json, print_line, print_table, print_text
from raftlog.text import counted

app = typer.Typer(
    help="Explain and check configuration files.", epilog=EPILOG, no_args_is_help=True
)


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="config")


@app.command(epilog=EPILOG)
def keys(as_json: Json = False) -> None:
    """List every configuration key: roles, default, unit, purpose.

    Each can be given in the file, as an environment variable (RAFTLOG_ and the key in capitals,
    underscores for dots), or with --set KEY=VALUE; the later of these wins.
    """
    from raftlog.node.config.reference import reference

    rows = reference()
    if as_json:
        print_json({"keys": [dataclasses.asdict(row) for row in rows]})
        return
    print_table(
        ("KEY", "ROLES", "DEFAULT", "UNIT", "WHAT AND WHY"),
        [
            (row.key, ",".join(row.roles), row.default or None, row.unit or None, row.doc)
            for row in rows
        ],
        least=("ROLES", "UNIT", "DEFAULT"),
    )


@app.command(epilog=EPILOG)
def check(
    file: Annotated[Path, arg("FILE", "The configuration to check.")],
    flags: SetFlags = None,
    show_all: Annotated[bool, opt("--all -a", "Show the defaults, too.")] = False,
    as_json: Json = False,
) -> None:
    """Check a file, and show the values in force or all mistakes.

    The environment and flags are on top of the file. The files of certificates and keys are read,
    as the node will.

    \b
    Examples:
      raftlog config check node1.toml
      raftlog config check node1.toml --set log.level=debug
    """
    from raftlog.node.config.load import load_config
    from raftlog.node.config.settings import FIELD_OF_KEY, Settings
    from raftlog.node.transport import check_tls_files

    config = load_config(file, flags=flags or [])
    check_tls_files(config)
    defaults = {key: getattr(Settings, name) for key, name in FIELD_OF_KEY.items()}
    if as_json:
        values = {key: _plain(value) for key, value in config.items()}
        print_json({"file": str(file), "role": config.role, "values": values})
        return
    values = dict(config.items())
    chosen = {key: value for key, value in values.items() if value != defaults[key]}
    print_line(f"{file}: a {config.role}'s configuration without mistakes")
    print_line("")
    rows = [
        (key, "yes" if key in chosen else "", _text(value) or None)
        for key, value in (values if show_all else chosen).items()
    ]
    if show_all:
        print_table(("KEY", "SET", "VALUE"), rows)
    else:
        print_table(("KEY", "VALUE"), [(key, value) for key, _, value in rows])
        print_text(f"({counted(len(values) - len(chosen), 'key')} with their defaults: --all)")


def _plain(value: object) -> object:
    """A value for JSON."""
    return [_text(one) for one in value] if isinstance(value, tuple) else value


def _text(value: object) -> str:
    from raftlog.quorum.config import Voter

    if isinstance(value, tuple):
        return ", ".join(_text(one) for one in value)
    return f"{value.node_id}@{value.endpoint}" if isinstance(value, Voter) else str(value)
