"""The cells of the matrix of permissions: who asks for what where, and what becomes of it."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from matrix_callers import Caller, Listener
from matrix_rpcs import Rpc

from raftlog.errors import ErrorCode

NONE = ErrorCode.NONE


class Kind(Enum):
    """What becomes of a request, for the summary."""

    NO_CONNECTION = "no connection"
    UNAUTHENTICATED = "unauthenticated"
    ABSENT = "not there"
    REFUSED = "refused"
    PARTLY = "in part"
    ALLOWED = "allowed"
    UNDECIDED = "undecided"
    """The answer does not tell whether it was let in: no table says this."""


class Verdict(NamedTuple):
    """``codes``: of the whole request, or of each item; NONE: it is not refused.

    ``shown``: of a listing, the names that are in it.
    """

    kind: Kind
    codes: tuple[ErrorCode, ...] = ()
    shown: frozenset[str] | None = None

    def __str__(self) -> str:
        shown = "" if self.shown is None else f" showing {', '.join(sorted(self.shown))}"
        return f"{self.kind.value}{shown} {' '.join(one.name for one in self.codes)}".rstrip()


NO_CONNECTION, UNAUTHENTICATED, ABSENT, ALLOWED = (
    Verdict(kind) for kind in (Kind.NO_CONNECTION, Kind.UNAUTHENTICATED, Kind.ABSENT, Kind.ALLOWED)
)


class Case(NamedTuple):
    """One cell of the matrix."""

    caller: Caller
    listener: Listener
    rpc: Rpc
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.caller.name} on {self.listener.name}: {self.rpc}"


def of_whole(code: ErrorCode) -> Verdict:
    """Of a request that is refused, or not, as a whole."""
    return ALLOWED if code is NONE else Verdict(Kind.REFUSED, (code,))


def of_items(codes: Collection[ErrorCode]) -> Verdict:
    """Of one whose items are refused one by one."""
    if not any(codes):
        return Verdict(Kind.ALLOWED, tuple(codes))
    return Verdict(Kind.REFUSED if all(codes) else Kind.PARTLY, tuple(codes))


def of_names(shown: Collection[str], there: int) -> Verdict:
    """Of a listing that shows some of what is there."""
    kind = Kind.ALLOWED if len(shown) == there else Kind.PARTLY if shown else Kind.REFUSED
    return Verdict(kind, (), frozenset(shown))
