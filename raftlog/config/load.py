"""Loading a configuration: flags over environment over file, and every mistake in one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from raftlog.config.node import NodeConfig, node_config
from raftlog.config.rules import broken_rules
from raftlog.config.settings import FIELD_OF_KEY, Settings, key_of
from raftlog.config.sources import (
    Given,
    process_environment,
    read_environment,
    read_file,
    read_flags,
    shown,
    suggest,
)
from raftlog.errors import ConfigError


def _checked_settings() -> type[BaseModel]:
    """The fields of :class:`Settings` under their keys' names, with values that pydantic reads and
    checks.
    """
    types = get_type_hints(Settings, include_extras=True)
    declared: dict[str, Any] = {
        one.name: (types[one.name], one.default) for one in fields(Settings)
    }
    return create_model(
        "Settings", __config__=ConfigDict(alias_generator=key_of, extra="forbid"), **declared
    )


_Checked = _checked_settings()


def load_config(
    path: Path | None, *, flags: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """The checked configuration of one node. ``environment`` defaults to the process's.

    Raises ConfigError whose message lists all mistakes, one a line, each naming its key and where
    it was given.
    """
    mistakes: list[str] = []
    given = read_file(path, mistakes) if path is not None else {}
    given |= read_environment(
        process_environment() if environment is None else environment, mistakes
    )
    given |= read_flags(flags, mistakes)
    unknown = sorted(given.keys() - FIELD_OF_KEY.keys())
    mistakes += [
        f"{shown(key)}: unknown key in {given.pop(key).origin}{suggest(key, FIELD_OF_KEY)}"
        for key in unknown
    ]
    settings, wrong = _validate(given, mistakes)
    mistakes.extend(broken_rules(settings, wrong))
    if mistakes:
        raise ConfigError(_message(path, mistakes))
    return node_config(settings, path.parent.absolute() if path is not None else Path.cwd())


def _validate(given: Mapping[str, Given], mistakes: list[str]) -> tuple[Settings, set[str]]:
    """Settings from the values that are right, and the names of the fields that are not."""
    values = {key: one.value for key, one in given.items()}
    try:
        return _settings(values), set()
    except ValidationError as error:
        wrong: dict[str, list[str]] = {}
        for detail in error.errors(include_url=False):
            key = str(detail["loc"][0])
            wrong.setdefault(key, []).append(shown(detail["msg"].removeprefix("Value error, ")))
        mistakes += [
            f"{key} = {shown(repr(values[key]))} in {given[key].origin}: {'; '.join(wrong[key])}"
            for key in sorted(wrong)
        ]
        good = {key: value for key, value in values.items() if key not in wrong}
        return _settings(good), {FIELD_OF_KEY[key] for key in wrong}


def _settings(values: Mapping[str, object]) -> Settings:
    """Settings from values under their keys. Raises ValidationError."""
    return Settings(**dict(_Checked.model_validate(values)))


def _message(path: Path | None, mistakes: list[str]) -> str:
    where = str(path) if path is not None else "the environment and flags"
    count = f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}"
    return "\n".join(
        [
            f"the configuration from {where} has {count}:",
            *(f"  - {mistake}" for mistake in mistakes),
        ]
    )
