"""Text of a stranger, made harmless for whoever reads it: on a terminal, in a log line, on a page.

Names, reasons, racks and principals are checked where they come in (``raftlog.limits``), but a log
of before, another build's answer and an error message may hold anything: an escape sequence that
repaints the terminal, a line break that forges a log line, a mark that turns the direction of
writing. Everything that shows such text puts it through here.
"""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with every character that is not printable as its escape in Python, but for those in
    ``keep``.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def printable_json(document: str) -> str:
    """A JSON document with every character that is not printable as JSON's escape.

    Its line breaks stand between its parts, and stay.
    """
    if document.isprintable():
        return document
    return "".join(
        char if char.isprintable() or char == "\n" else _json_escape(char) for char in document
    )


def ascii_json(document: str) -> str:
    """A JSON document with every character that is not ASCII as JSON's escape."""
    return "".join(char if char.isascii() else _json_escape(char) for char in document)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
