"""Search for a fragment of source regardless of its layout: line breaks, and commas that close a
list, are the formatter's business.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<skipped>\s+|\#[^\n]*|\\\n)
    |(?:[rbfuRBFU]{0,2})(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |\w+|\*\*=?|//=?|<<=?|>>=?|[-+*/%&|^@:<>=!]=|->|\S
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = frozenset(")]}")


class Span(NamedTuple):
    """Begin and end of a fragment in the source, in characters."""

    begin: int
    end: int


class _Token(NamedTuple):
    text: str
    begin: int
    end: int


def find_spans(source: str, fragment: str) -> list[Span]:
    """Return each place where the fragment's tokens stand in the source, in order.

    A fragment without tokens is nowhere.
    """
    there, wanted = _tokens(source), [token.text for token in _tokens(fragment)]
    if not wanted:
        return []
    texts = [token.text for token in there]
    count = len(wanted)
    return [
        Span(there[at].begin, there[at + count - 1].end)
        for at in range(len(texts) - count + 1)
        if texts[at : at + count] == wanted
    ]


def put(source: str, span: Span, fragment: str, instead: str) -> str:
    """Return the source with ``instead`` at the place of the fragment.

    Blanks around the fragment are around the place already.
    """
    begin = instead.lstrip() if fragment[:1].isspace() else instead
    return (
        source[: span.begin]
        + (begin.rstrip() if fragment[-1:].isspace() else begin)
        + source[span.end :]
    )


def _tokens(source: str) -> list[_Token]:
    """Return the tokens without blanks, comments, and commas before a closing bracket."""
    found: list[_Token] = []
    for match in _TOKEN.finditer(source):
        if match["skipped"] is not None:
            continue
        if match[0] in _CLOSERS and found and found[-1].text == ",":
            found.pop()
        found.append(_Token(match[0], match.start(), match.end()))
    return found
