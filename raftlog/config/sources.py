"""Where values come from: a TOML file below the environment below flags, each flattened to dotted keys."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from raftlog.config.settings import FIELD_OF_KEY
from raftlog.errors import ConfigError

ENV_PREFIX = "RAFTLOG_"
ENV_OF_KEY: dict[str, str] = {key: ENV_PREFIX + name.upper() for key, name in FIELD_OF_KEY.items()}
"""Configuration key -> environment variable."""
CLI_VARIABLES = frozenset({"RAFTLOG_BOOTSTRAP_CONTROLLER", "RAFTLOG_BOOTSTRAP_SERVER", "RAFTLOG_TIMEOUT"})
"""Variables with our prefix that the command line reads, and that configure no node."""

_KEY_OF_ENV = {variable: key for key, variable in ENV_OF_KEY.items()}
# Kubernetes puts these into every pod beside a service of our name: RAFTLOG_SERVICE_HOST, RAFTLOG_PORT_9093_TCP, ...
_SERVICE_LINK = re.compile(r"^RAFTLOG_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP)\w*)?)$")


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it was given, for messages."""

    value: Any
    origin: str


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables to dotted keys; quoted dotted keys stay what they are, so both forms of TOML mean the same."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{key}."))
        else:
            flat[key] = value
    return flat


def read_file(path: Path) -> dict[str, Given]:
    """The values of a TOML file. Raises ConfigError if it cannot be read."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return {key: Given(value, str(path)) for key, value in flatten(content).items()}


def read_environment(environment: Mapping[str, str], mistakes: list[str]) -> dict[str, Given]:
    """The values of ``RAFTLOG_...`` variables; unknown ones are mistakes."""
    given: dict[str, Given] = {}
    for variable in sorted(environment):
        key = _KEY_OF_ENV.get(variable)
        if key is not None:
            given[key] = Given(environment[variable], variable)
        elif variable.startswith(ENV_PREFIX) and variable not in CLI_VARIABLES and not _SERVICE_LINK.match(variable):
            mistakes.append(f"{variable}: unknown environment variable{suggest(variable, _KEY_OF_ENV)}")
    return given


def read_flags(flags: Iterable[str], mistakes: list[str]) -> dict[str, Given]:
    """The values of ``--set key=value`` flags; later ones win."""
    given: dict[str, Given] = {}
    for flag in flags:
        key, equals, value = flag.partition("=")
        if equals and key.strip():
            given[key.strip()] = Given(value.strip(), f"--set {key.strip()}")
        else:
            mistakes.append(f"--set {flag}: write it as key=value")
    return given


def suggest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` for the nearest known word, or nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def process_environment() -> Mapping[str, str]:
    """This process's environment variables."""
    return os.environ
