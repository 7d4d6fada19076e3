"""The files of a broker's partition replicas in its data directory, and how they were left.

::

    partitions/               RocksDB
    partitions-state.json     how it was left: see PartitionsState

Both are made when a broker first opens them: a directory that was formatted before there were
replicas is used as it is. The state says that the replicas have been made: without RocksDB beside
it they are lost. They are not made anew then: the broker would come back with its old directory id
and nothing behind it, and its leader might take it for the member of the ISR that it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import CorruptLogError
from raftlog.storage.checked_file import read_checked, write_checked

PARTITIONS_DIRECTORY = "partitions"
PARTITIONS_STATE_FILE = "partitions-state.json"
_STATE_KIND = "partitions-state"


@dataclass(frozen=True, slots=True)
class PartitionsState:
    """How the replicas were left.

    ``clean``: closed in order, so nothing on disk can be torn, and these sums are exact.
    """

    clean: bool
    partitions: int
    """Replicas that hold anything."""
    records: int
    """In all of them."""

    def require(self, directory: Path, partitions: int, records: int) -> None:
        """Raises CorruptLogError if the store was closed in order with something else in it: no
        checksum finds what is missing whole.
        """
        if self.clean and (partitions, records) != (self.partitions, self.records):
            raise CorruptLogError(
                f"the store in {directory / PARTITIONS_DIRECTORY} holds {partitions} partition"
                f" replicas with {records} records, but was closed with {self.partitions} and"
                f" {self.records}"
            )


def write_partitions_state(directory: Path, state: PartitionsState) -> None:
    """Replace the state, durably when this returns. Raises StorageError."""
    write_checked(directory / PARTITIONS_STATE_FILE, _STATE_KIND, state)


def read_partitions_state(directory: Path) -> PartitionsState:
    """How the replicas were left. Raises FileNotFoundError, CorruptLogError, StorageError."""
    return read_checked(directory / PARTITIONS_STATE_FILE, _STATE_KIND, PartitionsState)
