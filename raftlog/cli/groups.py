"""What groups of commands have in common, whichever program they are of."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperGroup

from raftlog.cli.endings import UNREAD
from raftlog.cli.exits import Exit
from raftlog.cli.standard_output import has_no_reader

_WHOLE = 1_000
"""More characters than any sentence has."""


class PipedGroup(TyperGroup):
    """Lists its commands with whole sentences.

    Ends with UNREAD when nobody reads standard output any more. Typer would exit with 1, which says
    that nothing was changed.
    """

    last: Sequence[str] = ()
    """Commands that come behind the others, in this order."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands: Typer would list groups behind all others."""
        place = {name: number for number, name in enumerate(self.last)}
        return sorted(super().list_commands(ctx), key=lambda name: place.get(name, -1))

    def sections(self, names: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
        """The headings under which the help lists the commands, each with its commands."""
        return [("Commands", names)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List each command with the first sentence of its help, whole: Typer would cut it."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        texts = {
            name: one.get_short_help_str(_WHOLE)
            for name, one in found.items()
            if one is not None and not one.hidden
        }
        width = max(map(len, texts), default=0)
        for heading, names in self.sections(list(texts)):
            if names:
                with formatter.section(heading):
                    formatter.write_dl([(one.ljust(width), texts[one]) for one in names])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help where no command is named, on stdout: it may go through a pager."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            print(ctx.get_help())
            ctx.exit(Exit.USAGE)
        return super().parse_args(ctx, args)

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
