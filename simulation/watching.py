"""Lets checkers see what happens inside the hosts, without the shipped code knowing of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView, World

HOOKS = tuple(name for name in vars(Checker) if not name.startswith("_"))
_VIEW_CALLS = ("apply", "hear", "reset", "install")
_OF_IMAGES = ("broker_moved", "broker_asked", "message_sent")
"""Hooks whose first argument is a host, about what its image makes it say."""


class Watch:
    """Hands each happening to the checkers that want it.

    The first failure is kept, wherever it is raised and whoever swallows it.
    """

    def __init__(
        self, checkers: Sequence[Checker], on_failure: Callable[[BaseException], None]
    ) -> None:
        self.checkers = list(checkers)
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._hooks: dict[str, list[Callable[..., None]]] = {
            name: [
                getattr(c, name)
                for c in checkers
                if getattr(type(c), name) is not getattr(Checker, name)
            ]
            for name in HOOKS
        }
        self._announced: dict[str, tuple[int, int]] = {}
        self.retired: list[Checker] = []
        """Of a life that is over."""

    def wants(self, hook: str) -> bool:
        """Whether any checker does."""
        return bool(self._hooks[hook])

    def renew(
        self,
        checkers: Sequence[Checker],
        is_current: Callable[[Any], bool],
        is_new: Callable[[Any], bool],
    ) -> None:
        """Other checkers look on from here on, at the same hosts. They have begun.

        ``is_current``: of a host, whether what it says is of the present history. ``is_new``: of a
        client's operation.
        """
        self.retired += [checker for checker in self.checkers if checker not in checkers]
        self.checkers = list(checkers)
        for name, hooks in self._hooks.items():
            # In place: whoever was tapped has the list.
            hooks[:] = [
                getattr(c, name)
                for c in checkers
                if getattr(type(c), name) is not getattr(Checker, name)
            ]
            if name in _OF_IMAGES:
                hooks[:] = [_only_if(is_current, hook) for hook in hooks]
            elif name == "client_returned":
                hooks[:] = [_only_if(is_new, hook) for hook in hooks]

    def begin(self, world: World) -> None:
        """Before anything starts."""
        for checker in self.checkers:
            checker.begin(world)

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call the hook of every checker that has one.

        Raises what the first one raises, and keeps it.
        """
        for call in self._hooks[hook]:
            try:
                call(*arguments)
            except Exception as error:
                self.fail(error)
                raise

    def fail(self, error: BaseException) -> None:
        """Note a failure; the first one counts."""
        if self.failure is None:
            self.failure = error
            self._on_failure(error)

    # --- taps ------------------------------------------------------------------------------------

    def tap_controller(self, host: ControllerView) -> None:
        """Look on at every step of a process that has just recovered."""
        core = host.core
        assert core is not None
        self.tell("controller_started", host)
        hooks = self._hooks["after_step"]
        step = core.step

        def stepped(event: Any, now: float) -> list[Any]:
            try:
                effects = step(event, now)
                for hook in hooks:
                    hook(host, event, effects)
            except Exception as error:
                self.fail(error)
                raise
            return effects

        core.step = stepped  # type: ignore[method-assign]

    def tap_broker(self, host: BrokerView) -> None:
        """Look on at every change of a new broker's view."""
        self.tell("broker_started", host)
        if self.wants("broker_asked") and host.service is not None:
            requests = host.service.requests
            requests._why_fenced = self._asked(host, requests._why_fenced)
        if not self.wants("broker_moved") or host.service is None:
            return
        view = host.service._view

        def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                result = call(*arguments, **options)
                self.tell("broker_moved", host)
                return result

            return called

        for name in _VIEW_CALLS:
            if hasattr(view, name):
                setattr(view, name, wrap(getattr(view, name)))

    def _asked(self, host: BrokerView, why_fenced: Callable[[], str]) -> Callable[[], str]:
        def asked() -> str:
            why = why_fenced()
            self.tell("broker_asked", host, why)
            return why

        return asked

    def tap_replicas(self, host: BrokerView) -> None:
        """Look on at every step of a new broker's partition replicas, from their recovery on;
        nothing if it keeps none.
        """
        data = host.service.data if host.service is not None else None
        hooks = self._hooks["data_step"]
        if data is None or not hooks:
            return
        make = data._make_replicas

        def made(found: Any, now: float) -> Any:
            replicas = make(found, now)
            self.tell("data_recovered", host)
            step = replicas.step

            def stepped(event: Any, now: float) -> list[Any]:
                effects = step(event, now)
                try:
                    for hook in hooks:
                        hook(host, event, effects, now)
                except Exception as error:
                    self.fail(error)
                    raise
                return effects

            replicas.step = stepped  # type: ignore[method-assign]
            return replicas

        data._make_replicas = made

    def sender(self, host: ControllerView | BrokerView) -> Callable[[str, Any], None] | None:
        """What the host's transport calls with each message it gives to a link; None if nobody
        wants to know.
        """
        wants_lao = self.wants("lao_announced") and hasattr(host, "disk")
        if not wants_lao and not self.wants("message_sent"):
            return None
        return partial(self._sent, host, wants_lao)

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


def _only_if(wanted: Callable[[Any], bool], hook: Callable[..., None]) -> Callable[..., None]:
    def told(subject: Any, *arguments: Any) -> None:
        if wanted(subject):
            hook(subject, *arguments)

    return told


__all__ = ["CheckFailedError", "Watch"]
