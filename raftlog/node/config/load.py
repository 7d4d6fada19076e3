"""Loading of a configuration: flags override the environment, which overrides the file; all
mistakes are reported in one error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from raftlog.endpoint import LISTENER_NAME
from raftlog.errors import ConfigError
from raftlog.metadata.config_keys import ResourceType, find
from raftlog.node.config.fields import ListenerKey
from raftlog.node.config.listeners import PER_LISTENER
from raftlog.node.config.node import NodeConfig, node_config
from raftlog.node.config.plain import NotPlainError, plain_settings
from raftlog.node.config.rules import broken_rules
from raftlog.node.config.settings import FIELD_OF_KEY, Settings, key_of
from raftlog.node.config.sources import (
    LISTENER_KEY,
    Given,
    process_environment,
    read_environment,
    read_file,
    read_flags,
    shown,
    suggest,
)

_OWN_KEYS = tuple(key_of(name) for name in PER_LISTENER)


def load_config(
    path: Path | None, *, flags: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """Return the checked configuration of one node. ``environment`` defaults to the process's.

    Raises ConfigError whose message lists all mistakes, one per line, each with its key and its
    source.
    """
    mistakes: list[str] = []
    given = read_file(path, mistakes) if path is not None else {}
    given |= read_environment(
        process_environment() if environment is None else environment, mistakes
    )
    given |= read_flags(flags, mistakes)
    of_listeners = _keys_of_listeners(given, mistakes)
    unknown = sorted(given.keys() - FIELD_OF_KEY.keys())
    mistakes += [
        f"{shown(key)}: unknown key in {given.pop(key).origin}"
        f"{_of_the_cluster(key) or suggest(key, FIELD_OF_KEY)}"
        for key in unknown
    ]
    settings, wrong = _validate(given, mistakes)
    settings = replace(settings, listener_name=of_listeners)
    mistakes.extend(broken_rules(settings, wrong))
    if mistakes:
        raise ConfigError(_message(path, mistakes))
    return node_config(settings, path.parent.absolute() if path is not None else Path.cwd())


def _of_the_cluster(key: str) -> str:
    """Return how to set a key that Kafka reads from brokers' files but raftlog keeps only in the
    log; empty for other keys.
    """
    for kind, resource in ((ResourceType.BROKER, 'broker ""'), (ResourceType.TOPIC, "topic NAME")):
        if find(kind, key) is not None:
            return f"; set it in the running cluster: raftlog configs alter {resource} --set"
    return ""


def _keys_of_listeners(given: dict[str, Given], mistakes: list[str]) -> tuple[ListenerKey, ...]:
    """Remove the keys of single listeners from the given values, and return them."""
    found: list[ListenerKey] = []
    for key in sorted(key for key in given if key.startswith(f"{LISTENER_KEY}.")):
        one = given.pop(key)
        name, _, rest = key.removeprefix(f"{LISTENER_KEY}.").partition(".")
        field = FIELD_OF_KEY.get(rest, "")
        if field not in PER_LISTENER or not LISTENER_NAME.fullmatch(name.upper()):
            mistakes.append(f"{shown(key)}: unknown key in {one.origin}{suggest(rest, _OWN_KEYS)}")
            continue
        settings, wrong = _settings({rest: one.value})
        if wrong:
            why = "; ".join(_shown_error(text) for _, text in wrong)
            mistakes.append(f"{shown(key)} = {shown(repr(one.value))} in {one.origin}: {why}")
        else:
            found.append(ListenerKey(name.upper(), field, getattr(settings, field)))
    return tuple(found)


def _shown_error(text: str) -> str:
    return shown(text.removeprefix("Value error, "))


def _validate(given: Mapping[str, Given], mistakes: list[str]) -> tuple[Settings, set[str]]:
    """Return settings from the valid values, and the names of the invalid fields."""
    values = {key: one.value for key, one in given.items()}
    settings, found = _settings(values)
    if not found:
        return settings, set()
    wrong: dict[str, list[str]] = {}
    for key, text in found:
        wrong.setdefault(key, []).append(_shown_error(text))
    mistakes += [
        f"{key} = {shown(repr(values[key]))} in {given[key].origin}: {'; '.join(wrong[key])}"
        for key in sorted(wrong)
    ]
    settings, _ = _settings({key: value for key, value in values.items() if key not in wrong})
    return settings, {FIELD_OF_KEY[key] for key in wrong}


def _settings(values: Mapping[str, object]) -> tuple[Settings, list[tuple[str, str]]]:
    """Return the settings for a mapping of keys to values; if any is invalid, the defaults and
    (key, fault) pairs.
    """
    try:
        return plain_settings(values), []
    except NotPlainError:
        from raftlog.node.config.checked import InvalidError, checked_settings

    try:
        return checked_settings(values), []
    except InvalidError as error:
        return Settings(), error.found


def _message(path: Path | None, mistakes: list[str]) -> str:
    where = str(path) if path is not None else "the environment and flags"
    count = f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}"
    return "\n".join(
        [
            f"the configuration from {where} has {count}:",
            *(f"  - {mistake}" for mistake in mistakes),
        ]
    )
