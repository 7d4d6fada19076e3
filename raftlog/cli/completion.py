"""Completion by TAB: which words the shell asks about, and what the cluster has to offer.

The shell runs the program with `_RAFTLOG_COMPLETE` in the environment, and the words typed so far
in other variables; Typer answers. Here they are read before, so that one command is built and not
all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from raftlog.cli.spellings import respelled

ASKED = "_RAFTLOG_COMPLETE"
ANSWER_S = 0.15
"""For the cluster to answer: who presses TAB does not wait."""
MOST = 200


def words_to_complete() -> list[str] | None:
    """What follows the program's name on the line to be completed; None: nothing is.

    The last one, which is being typed, is left out: `raftlog top` is to be completed among all
    commands.
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
    """Let Typer find ``raftlog topic`` under the command's own name, ``topics``."""
    words = words_to_complete()
    if not words:
        return
    name = respelled(words)[0]
    for variable in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        if variable in os.environ:
            line = os.environ[variable]
            os.environ[variable] = re.sub(r"^(\s*\S+\s+)\S+", rf"\g<1>{name}", line)


def topics(incomplete: str) -> list[str]:
    """Names of topics, as a broker shows them."""
    return _beginning(incomplete, _topic_names)


def broker_ids(incomplete: str) -> list[str]:
    """Ids of registered brokers, as the active controller knows them."""
    return _beginning(incomplete, _broker_ids)


def config_names(incomplete: str) -> list[str]:
    """Names of what `raftlog configs alter KIND` is about."""
    find = {"topic": _topic_names, "broker": _broker_ids}.get(_config_kind())
    return [] if find is None else _beginning(incomplete, find)


def history_keys(incomplete: str) -> list[str]:
    """What `raftlog history KIND` is about."""
    kind = next(iter((words_to_complete() or [])[1:]), "")
    find = {"topic": _topic_names, "broker": _broker_ids}.get(kind)
    return [] if find is None else _beginning(incomplete, find)


def config_keys(incomplete: str) -> list[str]:
    """Keys of that kind of resource."""
    return _beginning(incomplete, _keys)


def config_assignments(incomplete: str) -> list[str]:
    """`KEY=`, to be gone on with by hand."""
    return _beginning(incomplete, lambda: [f"{key}=" for key in _keys()])


def _beginning(incomplete: str, find: Callable[[], Iterable[str]]) -> list[str]:
    """The names that begin with what was typed; none where the cluster cannot be asked."""
    try:
        return sorted(name for name in find() if name.startswith(incomplete))[:MOST]
    except Exception:
        return []


def _config_kind() -> str:
    """Read from the line itself: what lacks an option's value is not parsed yet."""
    return next(iter((words_to_complete() or [])[2:]), "")


def _keys() -> Iterable[str]:
    from raftlog.metadata.config_keys import ResourceType
    from raftlog.metadata.config_keys import config_keys as known

    return known(ResourceType[_config_kind().upper().replace("-", "_")]) or ()


def _topic_names() -> list[str]:
    from raftlog.cli.options import BROKERS, variable
    from raftlog.cli.session import run
    from raftlog.wire.broker.v1 import broker_pb2

    bootstrap = os.environ[variable(BROKERS)]

    async def ask(session: Any) -> list[str]:
        client = session.brokers(bootstrap)
        answer = await client.read(
            broker_pb2.MetadataRequest(), mode=broker_pb2.LATEST, timeout_s=ANSWER_S
        )
        return [topic.name for topic in answer.metadata.topics]

    return run(ask, ANSWER_S)


def _broker_ids() -> list[str]:
    from raftlog.cli.options import CONTROLLERS, variable
    from raftlog.cli.session import run
    from raftlog.wire.controller.v1 import controller_pb2

    bootstrap = os.environ[variable(CONTROLLERS)]

    async def ask(session: Any) -> list[str]:
        client = session.controllers(bootstrap)
        answer = await client.call(controller_pb2.DescribeBrokersRequest(), timeout_s=ANSWER_S)
        return [str(one.broker_id) for one in answer.describe_brokers.brokers]

    return run(ask, ANSWER_S)
