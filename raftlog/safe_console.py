"""A console that shows only printable characters, whatever the text, but keeps its own colours and
styles.
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
    """A console that makes content printable after layout and before styling."""

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
        """Override Rich, which would exit with code 1, as if a request had been refused."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
