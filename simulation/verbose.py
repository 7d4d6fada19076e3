"""A transcript of every step of every controller: the event, and its effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from raftlog.quorum.events import Effect, Event
from simulation.checks.api import BrokerView, Checker, ControllerView

SHOWN_CHARS = 160


class Verbose(Checker):
    """Checks nothing."""

    @override
    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        made = " ".join(type(effect).__name__ for effect in effects)
        role = host.core.role if host.core is not None else ""
        self.world.note(host.name, f"{role}: {_what(event)} -> {made or 'nothing'}")

    @override
    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        self.world.note(host.name, f"to {peer}: {type(message).__name__} {_short(str(message))}")


def _what(event: Event) -> str:
    inner = getattr(event, "request", None) or getattr(event, "response", None)
    number = getattr(event, "correlation_id", "")
    of = type(inner).__name__ if inner is not None else ""
    return f"{type(event).__name__} {number} {of}".strip()


def _short(text: str) -> str:
    return " ".join(text.split())[:SHOWN_CHARS]
