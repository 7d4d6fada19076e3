"""Forwards events inside the hosts to the checkers, from the shipped code's tracers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker.partition import events as data_events
from raftlog.quorum import events as quorum_events
from raftlog.quorum.events import Effect, Event
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView, World

HOOKS = tuple(name for name in vars(Checker) if not name.startswith("_"))
_OF_IMAGES = ("broker_moved", "broker_asked", "message_sent", "message_arrived")
"""Hooks whose first argument is a host, about what its image makes it say."""


class Watch:
    """Passes each event to the checkers that want it, and keeps the first failure."""

    def __init__(
        self, checkers: Sequence[Checker], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.checkers = list(checkers)
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._hooks = {name: _listening(checkers, name) for name in HOOKS}
        self._announced: dict[str, tuple[int, int]] = {}
        self.retired: list[Checker] = []

    def wants(self, hook: str) -> bool:
        return bool(self._hooks[hook])

    def renew(
        self,
        checkers: Sequence[Checker],
        is_current: Callable[[Any], bool],
        is_new: Callable[[Any], bool],
    ) -> None:
        """Replace the checkers. ``is_current`` selects the hosts, and ``is_new`` the operations,
        whose events the new checkers receive.
        """
        self.retired += [checker for checker in self.checkers if checker not in checkers]
        self.checkers = list(checkers)
        for name, hooks in self._hooks.items():
            hooks[:] = _listening(checkers, name)
            if name in _OF_IMAGES:
                hooks[:] = [_only_if(is_current, hook) for hook in hooks]
            elif name == "client_returned":
                hooks[:] = [_only_if(is_new, hook) for hook in hooks]

    def begin(self, world: World) -> None:
        for checker in self.checkers:
            checker.begin(world)

    def tell(self, hook: str, *arguments: Any) -> None:
        for call in self._hooks[hook]:
            try:
                call(*arguments)
            except Exception as error:
                self.fail(error)
                raise

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self._on_failure(error)

    def sender(self, host: ControllerView | BrokerView) -> Callable[[str, Any], None] | None:
        """Return a function for each message that a host sends; None if no checker wants it."""
        wants_lao = self.wants("lao_announced") and hasattr(host, "disk")
        if not wants_lao and not self.wants("message_sent"):
            return None
        return partial(self._sent, host, wants_lao)

    def receiver(self, host: ControllerView) -> Callable[[str, Any], None] | None:
        """Return a function for each request that a host receives; None if no checker wants it."""
        if not self.wants("message_arrived"):
            return None
        return partial(self.tell, "message_arrived", host)

    def _sent(self, host: Any, wants_lao: bool, peer: str, message: Any) -> None:
        if self._hooks["message_sent"]:
            self.tell("message_sent", host, peer, message)
        if not wants_lao:
            return
        if isinstance(message, pb.MetadataFetchResponse):
            epoch, lao = message.controller_epoch, message.lowest_acknowledged_offset
        elif isinstance(message, pb.ControllerResponse) and message.HasField("broker_heartbeat"):
            reply = message.broker_heartbeat
            epoch, lao = reply.controller_epoch, reply.lowest_acknowledged_offset
        else:
            return
        if lao >= 0 and self._announced.get(host.name) != (epoch, lao):
            self._announced[host.name] = (epoch, lao)
            self.tell("lao_announced", host, epoch, lao)


class ControllerTap:
    """Tap of one controller process: each of its steps."""

    def __init__(self, host: ControllerView, watch: Watch) -> None:
        self._host, self._watch = host, watch

    def stepped(
        self, event: quorum_events.Event, effects: Sequence[quorum_events.Effect], now: float
    ) -> None:
        self._watch.tell("after_step", self._host, event, effects)

    def step_failed(self, error: Exception) -> None:
        self._watch.fail(error)


class BrokerTap:
    """Tap of one broker process: its view, its callers, and its partition replicas."""

    def __init__(self, host: BrokerView, watch: Watch) -> None:
        self._host, self._watch = host, watch

    def view_moved(self) -> None:
        self._watch.tell("broker_moved", self._host)

    def fencing_checked(self, why_fenced: str) -> None:
        self._watch.tell("broker_asked", self._host, why_fenced)

    def replicas_recovered(self) -> None:
        self._watch.tell("data_recovered", self._host)

    def stepped(
        self, event: data_events.Event, effects: Sequence[data_events.Effect], now: float
    ) -> None:
        self._watch.tell("data_step", self._host, event, effects, now)

    def step_failed(self, error: Exception) -> None:
        """The loop receives a defect, and the host a failed disk: both from the shell."""


def _listening(checkers: Sequence[Checker], hook: str) -> list[Callable[..., None]]:
    """Return a hook's methods of the checkers that override it."""
    inherited = getattr(Checker, hook)
    return [getattr(one, hook) for one in checkers if getattr(type(one), hook) is not inherited]


def _only_if(wanted: Callable[[Any], bool], hook: Callable[..., None]) -> Callable[..., None]:
    def told(subject: Any, *arguments: Any) -> None:
        if wanted(subject):
            hook(subject, *arguments)

    return told


__all__ = ["CheckFailedError", "Watch"]


SHOWN_CHARS = 160


class Verbose(Checker):
    """Checks nothing."""

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        made = " ".join(type(effect).__name__ for effect in effects)
        role = host.core.role if host.core is not None else ""
        self.world.note(host.name, f"{role}: {_what(event)} -> {made or 'nothing'}")

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        self.world.note(host.name, f"to {peer}: {type(message).__name__} {_short(str(message))}")


def _what(event: Event) -> str:
    inner = getattr(event, "request", None) or getattr(event, "response", None)
    number = getattr(event, "correlation_id", "")
    of = type(inner).__name__ if inner is not None else ""
    return f"{type(event).__name__} {number} {of}".strip()


def _short(text: str) -> str:
    return " ".join(text.split())[:SHOWN_CHARS]
