"""Errors in a log of Kafka's."""

from __future__ import annotations

from pathlib import Path

from raftlog.errors import ConfigError, WrongDataError, is_disk_error
from replay.errors import DiskError, ReplayError


class KafkaLogError(ReplayError, WrongDataError):
    """A file cannot be read as what it should be; the message names the file and the offset."""


class NoKafkaLogError(ReplayError, ConfigError):
    """No log can be imported from there, or not into this export."""


def unreadable(path: Path, error: OSError) -> ReplayError:
    """Return the error for a file that the operating system can't read, which says nothing about
    its contents.
    """
    kind = DiskError if is_disk_error(error) else NoKafkaLogError
    return kind(f"cannot read {path}: {error.strerror}")


class MalformedRecordError(KafkaLogError):
    """The bytes of a batch or of a record are not what Kafka's schema says."""
