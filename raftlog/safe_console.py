"""A console that shows nothing but printable characters, whatever it is given to print.

Colours and styles are its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from raftlog.text import printable


class SafeConsole(Console):
    """Content is made printable after it was laid out and before it is styled, so that there is one
    place for all of it.
    """

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment(printable(text, keep="\n"), style)

    @override
    def on_broken_pipe(self) -> None:
        """Rich would end the process with exit code 1, as if a request had been refused."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
