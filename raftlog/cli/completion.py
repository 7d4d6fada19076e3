"""Completion by TAB: the words that the shell passes, and names from the cluster.

The shell runs the program with `_RAFTLOG_COMPLETE` and the words typed so far in environment
variables; Typer answers. This module reads them first, so that only one command is built.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from raftlog.cli.built_in import respelled
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import BROKERS, CONTROLLERS, variable

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

ASKED = "_RAFTLOG_COMPLETE"
INSTALL = "--install-completion"
SHOW = "--show-completion"
ANSWER_S = 0.15
"""Maximum wait for the cluster, in seconds, as completion must feel instant."""
MOST = 200


@contextmanager
def reported_installation() -> Iterator[None]:
    """Raise FailedError from the block if Typer cannot write to the home directory."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        message = f"{INSTALL} cannot write to the home directory: {error}; check HOME"
        raise FailedError(message, Exit.REFUSED) from error


def words_to_complete() -> list[str] | None:
    """Return the words after the program's name on the line that the shell completes, or None
    outside completion.

    The word being typed is left out, so `raftlog top` is completed among all commands.
    """
    if not os.environ.get(ASKED, "").startswith("complete"):
        return None
    if "COMP_WORDS" in os.environ:
        words = os.environ["COMP_WORDS"].split()
        at = os.environ.get("COMP_CWORD", "")
        return words[1 : int(at) if at.isdecimal() else None]
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return words if not words or line[-1:].isspace() else words[:-1]


def respell_line() -> None:
    """Replace an alias on the completed line (``raftlog topic``) with the command's own name
    (``topics``).
    """
    words = words_to_complete()
    if not words:
        return
    name = respelled(words)[0]
    for one in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        if one in os.environ:
            line = os.environ[one]
            os.environ[one] = re.sub(r"^(\s*\S+\s+)\S+", rf"\g<1>{name}", line)


def topics(incomplete: str) -> list[str]:
    """Return topic names from a broker."""
    return _beginning(incomplete, _topic_names)


def broker_ids(incomplete: str) -> list[str]:
    """Return the ids of registered brokers from the active controller."""
    return _beginning(incomplete, _broker_ids)


def voter_ids(incomplete: str) -> list[str]:
    """Return the ids of the voters from any controller."""
    return _beginning(incomplete, lambda: _node_names("controller-"))


def node_names(incomplete: str) -> list[str]:
    """Return node names such as ``controller-1`` and ``broker-4``."""
    return _beginning(incomplete, _node_names)


def cursor_names(incomplete: str) -> list[str]:
    """Return names of export cursors."""
    return _beginning(incomplete, _cursor_names)


def feature_levels(incomplete: str) -> list[str]:
    """Return ``NAME=`` for each feature: the operator chooses the level."""
    return _beginning(incomplete, _feature_names)


def history_kinds(incomplete: str) -> list[str]:
    """Return the kinds of entities that `raftlog history` supports."""
    return _beginning(incomplete, _history_kinds)


def config_names(incomplete: str) -> list[str]:
    """Return resource names for `raftlog configs alter KIND`."""
    find = {"topic": _topic_names, "broker": _broker_ids}.get(_config_kind())
    return [] if find is None else _beginning(incomplete, find)


def history_keys(incomplete: str) -> list[str]:
    """Return keys for `raftlog history KIND`."""
    kind = next(iter((words_to_complete() or [])[1:]), "")
    find = {"topic": _topic_names, "broker": _broker_ids}.get(kind)
    return [] if find is None else _beginning(incomplete, find)


def config_keys(incomplete: str) -> list[str]:
    """Return the config keys for the kind of resource on the line."""
    return _beginning(incomplete, _keys)


def config_assignments(incomplete: str) -> list[str]:
    """Return `KEY=` for each config key."""
    return _beginning(incomplete, lambda: [f"{key}=" for key in _keys()])


def topic_config_assignments(incomplete: str) -> list[str]:
    """Return `KEY=` for each config key of topics."""
    return _beginning(incomplete, lambda: [f"{key}=" for key in _keys("topic")])


def _beginning(incomplete: str, find: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names with the typed prefix; empty if the cluster cannot be queried."""
    try:
        return sorted(name for name in find() if name.startswith(incomplete))[:MOST]
    except Exception:
        return []


def _config_kind() -> str:
    """Return the kind from the line itself, as an incomplete line is not parsed yet."""
    return next(iter((words_to_complete() or [])[2:]), "")


def _keys(kind: str = "") -> Iterable[str]:
    from raftlog.metadata.config_keys import ResourceType
    from raftlog.metadata.config_keys import config_keys as known

    return known(ResourceType[(kind or _config_kind()).upper().replace("-", "_")]) or ()


def _history_kinds() -> Iterable[str]:
    from raftlog.metadata.selectors import HISTORY_KINDS

    return HISTORY_KINDS


def _feature_names() -> Iterable[str]:
    from raftlog.metadata.versions import BROKER_HEARTBEAT_VERSION, METADATA_VERSION

    return [f"{METADATA_VERSION}=", f"{BROKER_HEARTBEAT_VERSION}="]


def _topic_names() -> list[str]:
    return _ask(
        BROKERS, "bootstrap_server", lambda client: client.topics.list(read="latest"), "name"
    )


def _broker_ids() -> list[str]:
    async def brokers(client: AsyncClient) -> Iterable[Any]:
        return (await client.brokers.visibility()).brokers

    return _ask(CONTROLLERS, "bootstrap_controller", brokers, "id")


def _cursor_names() -> list[str]:
    return _ask(
        CONTROLLERS, "bootstrap_controller", lambda client: client.export_cursors.list(), "name"
    )


def _ask(
    option: str,
    name: str,
    listed: Callable[[AsyncClient], Awaitable[Iterable[Any]]],
    attribute: str,
) -> list[str]:
    """Return an attribute of each entity listed by the nodes that the option's environment variable
    names.
    """
    from raftlog.cli.command import call

    async def ask(client: AsyncClient) -> list[str]:
        return [str(getattr(one, attribute)) for one in await listed(client)]

    return call(ask, {name: os.environ[variable(option)], "timeout": ANSWER_S})


def _node_names(prefix: str = "") -> list[str]:
    """Return the names of nodes without the given prefix. Needs no leader."""
    import asyncio

    from raftlog.client.security import security_of_environment
    from raftlog.ops.collector import Collector, nodes_of

    addresses, brokers = (
        [one.strip() for one in os.environ.get(variable(which), "").split(",") if one.strip()]
        for which in (CONTROLLERS, BROKERS)
    )
    survey = asyncio.run(Collector(security_of_environment()).survey(addresses, ANSWER_S))
    found = nodes_of(survey, brokers)
    return [one.name.removeprefix(prefix) for one in found if one.name.startswith(prefix)]
