"""Errors of exports; each message names the file, the offsets, and what was expected."""

from __future__ import annotations

from functools import partial
from typing import Any

from raftlog.errors import ConfigError, RaftlogError, StorageError, WrongDataError


class ExportError(RaftlogError):
    """The export cannot be read or written. The message is for the operator."""


class NoExportError(ExportError, ConfigError):
    """There is no export at this place."""


class ExportDiskError(ExportError, StorageError):
    """The export's disk failed or is full; this does not mean that the export's contents
    are wrong.
    """


class ExportMismatchError(ExportError, WrongDataError):
    """The export, or a file in it, belongs to another cluster or another generation of the log."""


class ExportGapError(ExportError, WrongDataError):
    """Offsets are missing from the export, or occur twice."""


class UnsupportedExportError(ExportError, ConfigError):
    """The export has the format of a newer raftlog, which this build does not support."""


class UnvouchedError(ExportError, WrongDataError):
    """No controller has confirmed the state at a point of the export."""


class CorruptExportError(ExportError, WrongDataError):
    """A file of the export differs from what was written. Offsets are inclusive, and -1 if the file
    is not part of the log.
    """

    def __init__(
        self, message: str, *, file: str, base_offset: int = -1, last_offset: int = -1
    ) -> None:
        super().__init__(message)
        self.file = file
        self.base_offset = base_offset
        self.last_offset = last_offset

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the error's fields when a worker process raises it."""
        made = partial(
            type(self), file=self.file, base_offset=self.base_offset, last_offset=self.last_offset
        )
        return made, (str(self),)
