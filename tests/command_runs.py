"""Results of command lines, with assertions."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec


@dataclass(frozen=True)
class Ran:
    """The result of a command line."""

    code: int | str
    out: str
    err: str
    took_s: float = 0.0

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    def showed(self, *texts: str) -> Self:
        assert self.code == 0, self
        assert [text for text in texts if text not in self.out] == [], self.out
        return self

    def refused(self, code: int | str, *texts: str) -> Self:
        """Assert the exit code, and that stderr has these texts."""
        assert self.code == code, self
        assert [text for text in texts if text not in self.err] == [], self.err
        return self


def run_text(
    command: Sequence[str | Path], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, and capture its output as text."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)
