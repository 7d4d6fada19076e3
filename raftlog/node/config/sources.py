"""Sources of configuration values: a TOML file, overridden by the environment, overridden by flags,
all flattened to dotted keys.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from raftlog.errors import ConfigError
from raftlog.node.config.listeners import PER_LISTENER
from raftlog.node.config.settings import FIELD_OF_KEY, key_of

ENV_PREFIX = "RAFTLOG_"
ENV_OF_KEY: dict[str, str] = {key: ENV_PREFIX + name.upper() for key, name in FIELD_OF_KEY.items()}
"""Environment variable by configuration key."""
LOCAL_DIRECTORY = "RAFTLOG_LOCAL_DIRECTORY"
"""Variable set by `raftlog local env`: the directory of the local cluster."""
CLI_VARIABLES = frozenset(
    {
        "RAFTLOG_BOOTSTRAP_CONTROLLER",
        "RAFTLOG_BOOTSTRAP_SERVER",
        LOCAL_DIRECTORY,
        "RAFTLOG_TIMEOUT",
        "RAFTLOG_TOKEN_FILE",
    }
)
"""Variables with raftlog's prefix that only commands read; they configure no node."""
CUTS_VARIABLE = "RAFTLOG_DEV_CUTS_FILE"
"""Variable with the file that injects network partitions into a node of a development cluster."""
PARENT_VARIABLE = "RAFTLOG_DEV_PARENT"
"""Variable with the id of a process; the node exits when that process dies."""
PROCESS_VARIABLES = frozenset({"RAFTLOG_NATIVE_CODEC", CUTS_VARIABLE, PARENT_VARIABLE})
"""Variables that any process reads before it has a configuration."""

LISTENER_KEY = "listener.name"
"""Prefix of the keys of single listeners; the listener's name follows."""
MAX_FILE_BYTES = 1 << 20
"""Maximum size of a configuration file, in bytes, far above any real one."""
_SHOWN_CHARACTERS = 200

_KEY_OF_ENV = {variable: key for key, variable in ENV_OF_KEY.items()}
# Kubernetes sets these in every pod if there is a service with our name: RAFTLOG_SERVICE_HOST,
# RAFTLOG_PORT_9093_TCP, ...
_SERVICE_LINK = re.compile(r"^RAFTLOG_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP)\w*)?)$")


@dataclass(frozen=True, slots=True)
class Given:
    """A value and its source, for messages."""

    value: Any
    origin: str


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of nested tables; quoted dotted keys are unchanged, so both TOML forms
    are equivalent.

    An empty table is a value, unless it could contain keys, so that an unknown key with an empty
    table is not overlooked.
    """
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (
            value or any(known.startswith(f"{key}.") for known in FIELD_OF_KEY)
        ):
            yield from flatten(value, f"{key}.")
        else:
            yield key, value


def read_file(path: Path, mistakes: list[str]) -> dict[str, Given]:
    """Return the values in a TOML file. Adds to ``mistakes`` each key that occurs in two forms.
    Raises ConfigError if the file cannot be read.
    """
    given: dict[str, Given] = {}
    try:
        for key, value in flatten(tomllib.loads(_text(path))):
            if key in given:
                mistakes.append(f"{shown(key)}: occurs twice in {path}")
            given[key] = Given(value, str(path))
    except RecursionError:
        raise ConfigError(f"{path} is not a configuration file: it is nested too deeply") from None
    except ValueError as error:
        # Errors of tomllib, of UTF-8, and for a number with thousands of digits.
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return given


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} is not a configuration file: it has more than {MAX_FILE_BYTES} bytes"
        )
    return data.decode("utf-8-sig").replace("\r\n", "\n")


def shown(value: object) -> str:
    """Return a key or a value for a message: on one line, of limited length."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def read_environment(environment: Mapping[str, str], mistakes: list[str]) -> dict[str, Given]:
    """Return the values of ``RAFTLOG_...`` variables; unknown ones are mistakes."""
    given: dict[str, Given] = {}
    for variable in sorted(environment):
        key = _KEY_OF_ENV.get(variable) or _key_of_listener(variable)
        if key is not None:
            given[key] = Given(environment[variable], variable)
        elif (
            variable.startswith(ENV_PREFIX)
            and variable not in CLI_VARIABLES | PROCESS_VARIABLES
            and not _SERVICE_LINK.match(variable)
        ):
            mistakes.append(
                f"{shown(variable)}: unknown environment variable{suggest(variable, _KEY_OF_ENV)}"
            )
    return given


def _key_of_listener(variable: str) -> str | None:
    """Return the key that a variable sets for one listener, or None if it sets none.

    RAFTLOG_LISTENER_NAME_CLIENTS_TLS_CA_FILE sets ``listener.name.clients.tls.ca.file``.
    """
    rest = variable.removeprefix(f"{ENV_OF_KEY[LISTENER_KEY]}_")
    for key in (key_of(name) for name in PER_LISTENER):
        name = rest.removesuffix("_" + key.upper().replace(".", "_"))
        if rest != variable and name and name != rest:
            return f"{LISTENER_KEY}.{name.lower()}.{key}"
    return None


def environment_configures() -> bool:
    """Return whether this process's environment sets a configuration key."""
    return any(
        variable in _KEY_OF_ENV or _key_of_listener(variable) for variable in process_environment()
    )


def read_flags(flags: Iterable[str], mistakes: list[str]) -> dict[str, Given]:
    """Return the values of ``--set key=value`` flags; later ones override earlier ones."""
    given: dict[str, Given] = {}
    for flag in flags:
        key, equals, value = flag.partition("=")
        if equals and key.strip():
            given[key.strip()] = Given(value.strip(), f"--set {key.strip()}")
        else:
            mistakes.append(f"--set {shown(flag)}: write it as key=value")
    return given


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` for the closest known word, or nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def process_environment() -> Mapping[str, str]:
    """Return this process's environment variables."""
    return os.environ
