"""What groups of commands have in common, whichever program they are of."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperGroup

from raftlog.cli.endings import UNREAD
from raftlog.cli.standard_output import has_no_reader


class PipedGroup(TyperGroup):
    """Ends with UNREAD when nobody reads standard output any more. Typer would exit with 1, which
    says that nothing was changed.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Raises SystemExit also if nobody reads ``--help``, which is printed here."""
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError:
            _end_unread()
            raise

    def invoke(self, ctx: Any) -> Any:
        """Raises SystemExit if nobody reads what the command prints."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _end_unread()
            raise


def _end_unread() -> None:
    if has_no_reader():
        sys.exit(UNREAD)
