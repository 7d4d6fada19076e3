"""What a command reads from its standard input, which may be closed or no file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from raftlog.cli.exits import Exit, FailedError
from raftlog.errors import is_disk_error


@contextmanager
def standard_input() -> Iterator[TextIO]:
    """Raises FailedError if it cannot be read. A closed one is not an empty one: a key would get an
    empty value.
    """
    if sys.stdin is None:
        raise FailedError("standard input is closed: there is nothing to read", Exit.USAGE)
    try:
        yield sys.stdin
    except OSError as error:
        if is_disk_error(error):
            raise
        raise FailedError(f"can't read standard input: {error.strerror}", Exit.USAGE) from error
