"""``raftlog config``: the configuration keys, and their values in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from raftlog.cli.command import Answer, command, group
from raftlog.cli.options import SetFlags, arg, opt
from raftlog.cli.output import print_line, print_table, print_text
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.node.config.reference import KeyReference

app = group()


@dataclass
class ConfigKeys:
    """Every key."""

    keys: Sequence[KeyReference]


@dataclass
class ConfigChecked:
    """A valid configuration."""

    file: str
    role: Literal["controller", "broker"]
    values: Mapping[str, Any]
    """The effective value of each key."""


@command(app)
def keys() -> Answer[ConfigKeys]:
    """List every configuration key: roles, default, unit, purpose.

    A key can be set in the file, by an environment variable (RAFTLOG_ and the key in capitals, with
    underscores for dots), or with --set KEY=VALUE; later sources override earlier ones.
    """
    from raftlog.node.config.reference import reference

    rows = reference()

    def show() -> None:
        print_table(
            ("KEY", "ROLES", "DEFAULT", "UNIT", "MEANING"),
            [
                (one.key, ",".join(one.roles), one.default or None, one.unit or None, one.doc)
                for one in rows
            ],
            least=("ROLES", "UNIT", "DEFAULT"),
        )

    return Answer(ConfigKeys(rows), show)


@command(app)
def check(
    file: Annotated[Path, arg("FILE", "The configuration to check.")],
    flags: SetFlags = None,
    show_all: Annotated[bool, opt("--all -a", "Also show the defaults.")] = False,
) -> Answer[ConfigChecked]:
    """Check a file, and show the effective values or all errors.

    The environment and flags override the file. Certificate and key files are read, as the node
    would.

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
    values = dict(config.items())
    chosen = {key: value for key, value in values.items() if value != defaults[key]}

    def show() -> None:
        print_line(f"{file}: valid configuration of a {config.role}")
        print_line("")
        rows = [
            (key, "yes" if key in chosen else "", _text(value) or None)
            for key, value in (values if show_all else chosen).items()
        ]
        if show_all:
            print_table(("KEY", "SET", "VALUE"), rows)
        else:
            print_table(("KEY", "VALUE"), [(key, value) for key, _, value in rows])
            print_text(
                f"({counted(len(values) - len(chosen), 'key')} with default values not shown: "
                "--all)"
            )

    plain = {
        key: [_text(one) for one in value] if isinstance(value, tuple) else value
        for key, value in values.items()
    }
    return Answer(ConfigChecked(str(file), config.role, plain), show)


def _text(value: object) -> str:
    from raftlog.quorum.config import Voter

    if isinstance(value, tuple):
        return ", ".join(_text(one) for one in value)
    return f"{value.node_id}@{value.endpoint}" if isinstance(value, Voter) else str(value)
