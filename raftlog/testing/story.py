"""The story of a simulated run: the events in the cluster, and the answers to its clients."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from raftlog.client.key_values import KeyValue
from raftlog.client.leases import AsyncLease
from raftlog.outcome import WriteResult

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient

NAMESPACES = (
    "topics",
    "configs",
    "brokers",
    "cluster",
    "features",
    "quorum",
    "acls",
    "kv",
    "leases",
    "partitions",
    "export_cursors",
    "hostnames",
)
CALLS = ("produce", "consume")
_WIDTH = 40
"""Maximum number of characters shown of one value."""
_IN_CALL: ContextVar[bool] = ContextVar("raftlog_recorded_call", default=False)
"""Whether a call is made by another recorded call; only the outer call is recorded."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in an object's default repr, which differs between processes."""


class Story:
    """Lines in order of virtual time, each with its time and its subject."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pending: dict[int, tuple[float, str, str]] = {}
        self._calls = 0
        self._ended = False
        self.lines: list[str] = []

    def note(self, who: str, what: str) -> None:
        """Add a line."""
        if not self._ended:
            self.lines.append(_line(self._now(), who, what))

    def give_up(self, host: str = "") -> None:
        """Record the calls of a host, or of all hosts, that will never be answered."""
        for number, (began_at, who, call) in list(self._pending.items()):
            if host in ("", who):
                del self._pending[number]
                waited_s = self._now() - began_at
                self.note(who, f"{call} … not answered for {waited_s:.3f} s")

    def end(self) -> None:
        """Ignore further lines."""
        self.give_up()
        self._ended = True

    def tail(self, count: int) -> str:
        """Return the last lines."""
        left_out = len(self.lines) - count
        head = [f" … {left_out} earlier lines, in the error's story"] if left_out > 0 else []
        return "\n".join([*head, *(f"  {line}" for line in self.lines[-count:])])

    def record(self, client: AsyncClient, who: str) -> None:
        """Record a line for each call of a client from now on."""
        for name in NAMESPACES:
            namespace = getattr(client, name)
            for call, _ in inspect.getmembers(type(namespace), inspect.iscoroutinefunction):
                if not call.startswith("_"):
                    self._wrap(namespace, call, f"{name}.{call}", who)
        for call in CALLS:
            self._wrap(client, call, call, who)

    def _wrap(self, owner: Any, name: str, shown: str, who: str) -> None:
        original = getattr(owner, name)

        async def recorded(*args: Any, **kwargs: Any) -> Any:
            if _IN_CALL.get():
                return await original(*args, **kwargs)
            number, began_at = self._calls, self._now()
            self._calls += 1
            self._pending[number] = (began_at, who, f"{shown}({_arguments(args, kwargs)})")
            inside = _IN_CALL.set(True)
            try:
                result = await original(*args, **kwargs)
            except BaseException as error:
                self._answered(number, type(error).__name__)
                raise
            finally:
                _IN_CALL.reset(inside)
            self._answered(number, _result(result))
            if isinstance(result, AsyncLease):
                self._watch(result, who)
            return result

        setattr(owner, name, recorded)

    def _watch(self, lease: AsyncLease, who: str) -> None:
        """Record when the holder stops relying on a lease."""
        end = lease.end

        def ended(why: str) -> None:
            if not lease.why_lost:
                self.note(who, f"lease {lease.id}: {why}")
            end(why)

        setattr(lease, "end", ended)  # noqa: B010 - for the type checker a method stays one

    def _answered(self, number: int, answer: str) -> None:
        # Calls that are pending at the end have already been recorded.
        if (asked := self._pending.pop(number, None)) is not None:
            began_at, who, call = asked
            took_s = self._now() - began_at
            self.note(who, f"{call} -> {answer}" + (f" after {took_s:.3f} s" * (took_s >= 0.1)))


def _line(at: float, who: str, what: str) -> str:
    return f"{at:9.3f} {who:<11} {what}"


def _arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_short, args), *(f"{name}={_short(v)}" for name, v in kwargs.items())])


def _short(value: Any) -> str:
    text = _ADDRESS.sub("", _shown(value))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        # Default values are omitted.
        said = (
            f"{one.name}={_shown(getattr(value, one.name))}"
            for one in fields(value)
            if one.default is MISSING or getattr(value, one.name) != one.default
        )
        return f"{type(value).__name__}({', '.join(said)})"
    return repr(value)


def _result(result: Any) -> str:
    if isinstance(result, WriteResult):
        return "nothing written" if result.token is None else f"at {result.offset}"
    if isinstance(result, KeyValue):
        return f"{_short(result.value)} at {result.offset}"
    if isinstance(result, AsyncLease):
        return f"lease {result.id}"
    if isinstance(result, (list, tuple, dict)):
        return f"{len(result)} items"
    return _short(result)
