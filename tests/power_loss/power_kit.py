"""The recorded programs, the thoroughness of their examination, and their directories."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from examination import Depth, Starter
from promises import LogPromises, PartitionPromises, Promises, ValuePromises

NIGHTLY = os.environ.get("RAFTLOG_POWER_LOSS", "") == "nightly"
"""Many more states of each moment, and moments: minutes instead of seconds."""
DEPTH = Depth(samples=40, scattered=4, each_event=True, keep=16) if NIGHTLY else Depth(keep=1)
GOES_ON = ("append", "truncate", "move_start", "install", "install_over_start", "recover_by_hand")[
    :: 1 if NIGHTLY else 2
]
"""Programs of whose states some are started on under another power cut."""
_MEMORY = Path("/dev/shm")


class Program(NamedTuple):
    """A recorded program with the start that follows it."""

    module: str
    function: str
    start: str
    promises: Callable[[], Promises]


PROGRAMS = (
    *(
        Program("node_programs", name, "node", LogPromises)
        for name in (
            "format_anew", "append", "group_commit", "truncate", "restart", "move_start", "install", "install_over_start", "identify",
            "recover_by_hand",
        )
    ),
    Program("partition_programs", "partitions", "partitions", PartitionPromises),
    Program("file_programs", "restore_backup", "node", LogPromises),
    Program("file_programs", "backup", "backup", ValuePromises),
    Program("file_programs", "export", "export", ValuePromises),
    Program("file_programs", "ledger", "ledger", ValuePromises),
)  # fmt: skip


@contextmanager
def scratch_directory(fallback: Path) -> Iterator[Path]:
    """Return a directory in memory if possible: the model plays the disk, and a sync costs nothing
    there.
    """
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else fallback
    directory = Path(tempfile.mkdtemp(prefix="raftlog-power-loss-", dir=where))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# --- Where the power is cut, and who starts then -------------------------------------------------


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with scratch_directory(tmp_path_factory.getbasetemp()) as directory:
        yield directory


@pytest.fixture(scope="module")
def starter(scratch: Path) -> Iterator[Starter]:
    starter = Starter(scratch)
    yield starter
    starter.close()
