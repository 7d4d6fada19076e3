"""The result of a write, for applications: its position, and the level of visibility reached."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Self

from typing_extensions import TypeVar

_TOKEN = re.compile(r"(\d{1,18})-(\d{1,9})-(-1|\d{1,18})(?:-(\d{1,9}))?", re.ASCII)


class Acks(StrEnum):
    """The level at which a write returns. Each level includes those before it in this list."""

    COMMITTED = "committed"
    """A majority of the controllers has the write on disk, so it is never lost."""
    ACKNOWLEDGED = "acknowledged"
    """Every unfenced broker has applied it, so *latest* reads show it there."""
    VISIBLE = "visible"
    """Every unfenced broker knows that all have applied it, so *repeatable* reads show it there."""


@dataclass(frozen=True, slots=True)
class Token:
    """A position in the metadata log: a read at it shows that state or a later one.

    Send ``str(token)`` to another process, in a header or a queue; :meth:`parse` reads it there.
    """

    generation: int
    epoch: int
    offset: int
    part: int = 0
    """Number of changes at this offset that a watch has delivered, or 0 for all of them."""

    def __str__(self) -> str:
        tail = f"-{self.part}" if self.part else ""
        return f"{self.generation}-{self.epoch}-{self.offset}{tail}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse the text of a token. Raises ValueError."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:80]!r} is not a token like 5263904417582931-3-1042")
        return cls(*(int(number) for number in found.groups(default="0")))


class LogOffset(int):
    """An offset in the metadata log with the log's generation; usable as an int.

    After an unsafe recovery or a restore the log has another generation, in which the same offsets
    belong to other records. This library returns offsets and lease ids as LogOffset, and refuses a
    call with one from another generation. ``int(offset)``, and an offset stored as a number, lose
    the generation.
    """

    generation: int

    def __new__(cls, offset: int, generation: int) -> Self:
        """Create an offset in a generation."""
        self = super().__new__(cls, offset)
        self.generation = generation
        return self

    def __reduce__(self) -> tuple[type[LogOffset], tuple[int, int]]:
        """Support copying and pickling."""
        return LogOffset, (int(self), self.generation)


OF_NO_LOG = -1
"""A generation that no log has: the value for offsets from two logs."""


def generation_of(*offsets: object) -> int | None:
    """Return the generation of the offsets' log, None if it is unknown, or OF_NO_LOG if the
    offsets' generations differ.
    """
    generations = {one.generation for one in offsets if isinstance(one, LogOffset)}
    if len(generations) > 1:
        return OF_NO_LOG
    return generations.pop() if generations else None


ItemT_co = TypeVar("ItemT_co", default=Any, covariant=True)


@dataclass(frozen=True, slots=True)
class WriteResult(Generic[ItemT_co]):
    """The result of an accepted write.

    ``token``: its position in the log, or None if nothing was written or the write was only
    validated. ``duplicate``: whether an earlier attempt of this write was executed.
    """

    token: Token | None
    reached: Acks | None
    """The level of visibility reached, or None if nothing was written."""
    waiting_for_brokers: tuple[int, ...] = ()
    """With ``errors.AcksNotReachedError``: some of the brokers that have not applied the
    write yet.
    """
    duplicate: bool = False
    items: tuple[ItemT_co, ...] = field(default=(), compare=False)
    """The result of each item, in the order of the request."""

    @property
    def offset(self) -> LogOffset:
        """Offset of the write's last record. Raises ValueError if nothing was written."""
        if self.token is None:
            raise ValueError("the write has no offset, because nothing was written: check token")
        return LogOffset(self.token.offset, self.token.generation)
