"""What a write comes to, for applications: where it stands, and how far it is visible."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Self

from typing_extensions import TypeVar

_TOKEN = re.compile(r"(\d{1,18})-(\d{1,9})-(-1|\d{1,18})(?:-(\d{1,9}))?", re.ASCII)


class Acks(StrEnum):
    """When a write returns. Each level includes the ones above it."""

    COMMITTED = "committed"
    """A majority of the controllers has it on disk: it is never lost."""
    ACKNOWLEDGED = "acknowledged"
    """Every unfenced broker has applied it: *latest* reads show it there."""
    VISIBLE = "visible"
    """Every unfenced broker knows that: *repeatable* reads show it there."""


@dataclass(frozen=True, slots=True)
class Token:
    """A position in the metadata log: a read at it shows that state or a later one.

    ``str(token)`` goes to another process, in a header or a queue; :meth:`parse` takes it there.
    """

    generation: int
    epoch: int
    offset: int
    part: int = 0
    """Of a watch: so many of the changes at this offset; 0: all of them."""

    def __str__(self) -> str:
        tail = f"-{self.part}" if self.part else ""
        return f"{self.generation}-{self.epoch}-{self.offset}{tail}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """The token of its text. Raises ValueError."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:80]!r} is no token: it looks like 5263904417582931-3-1042")
        return cls(*(int(number) for number in found.groups(default="0")))


class LogOffset(int):
    """An offset of the metadata log that knows which log it is of: an int, wherever one will do.

    After an unsafe recovery or a restore the log has another generation, in which other records
    have the same offsets. What this library gives as an offset or as the id of a lease is one of
    these, and a call that gets it back is refused once it means something else. ``int(offset)``
    does not know, nor does what was stored as a number.
    """

    generation: int

    def __new__(cls, offset: int, generation: int) -> Self:
        """The offset of a generation."""
        self = super().__new__(cls, offset)
        self.generation = generation
        return self

    def __reduce__(self) -> tuple[type[LogOffset], tuple[int, int]]:
        """For copies."""
        return LogOffset, (int(self), self.generation)


OF_NO_LOG = -1
"""A generation that no log has: of offsets of two logs."""


def generation_of(*offsets: object) -> int | None:
    """Return the generation of the log that they are of; None: unknown; OF_NO_LOG: they differ."""
    generations = {one.generation for one in offsets if isinstance(one, LogOffset)}
    if len(generations) > 1:
        return OF_NO_LOG
    return generations.pop() if generations else None


ItemT_co = TypeVar("ItemT_co", default=Any, covariant=True)


@dataclass(frozen=True, slots=True)
class WriteResult(Generic[ItemT_co]):
    """What became of a write that was accepted.

    ``token`` is where it stands in the log; None: there was nothing to write, or it was only
    validated. ``duplicate``: an earlier attempt of this very write was the one that was executed.
    """

    token: Token | None
    reached: Acks | None
    """The level of visibility reached; None: nothing was written."""
    waiting_for_brokers: tuple[int, ...] = ()
    """With ``errors.AcksNotReachedError``: some of those that have not applied it yet."""
    duplicate: bool = False
    items: tuple[ItemT_co, ...] = field(default=(), compare=False)
    """The result of each item, in the order of the request."""

    @property
    def offset(self) -> LogOffset:
        """Offset of the write's last record. Raises ValueError if nothing was written."""
        if self.token is None:
            raise ValueError("nothing was written, so there is no offset: see token")
        return LogOffset(self.token.offset, self.token.generation)
