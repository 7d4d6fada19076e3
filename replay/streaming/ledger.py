"""The ledger of a streaming job, in a directory: its output, and its state.

::

    DIR/alerts/batch=7/*.parquet    the alerts of micro-batch 7; none if it gave none
    DIR/state/7/NAME/*.parquet      what was remembered after it
    DIR/done.json                   the last micro-batch that is done, and where in the log it
                                    ended: written last
    DIR/checkpoint/                 Spark's own

Spark repeats a micro-batch that it has not noted as done, with the same records. One that
``done.json`` names is skipped; of another one whatever is there is either whole, as directories
get their names by being renamed, or written anew from the state before it. So each row is there
once, however often the job was killed. What ``done.json`` names is durable too; Spark's own
checkpoint is not.

The directory must be one for driver and workers, and local to the file system: a disk, or a shared
one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from raftlog.files import make_directories
from raftlog.segments import files
from replay.errors import ReplayError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALERTS = "alerts"
_STATE = "state"
_CHECKPOINT = "checkpoint"


class Ledger:
    """The directory of a job; one writer. Blocking."""

    def __init__(self, directory: Path) -> None:
        """Open it, or begin it.

        Raises ReplayError if it is not a job's, ExportError if it can't be used.
        """
        self.directory = directory.absolute()
        with files.named_errors("write to", self.directory):
            make_directories(self.directory)
            done = read_done(self.directory)
            if done is None:
                if any(not path.name.startswith(".") for path in self.directory.iterdir()):
                    raise ReplayError(
                        f"{self.directory} is not empty and has no {DONE}: it is not a job's"
                        " directory"
                    )
                done = Done()
                files.write_atomically(self.directory / DONE, msgspec.json.encode(done))
            self.done = done

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the directory against other jobs. Raises ExportError if another job holds it."""
        lock = files.DirectoryLock(self.directory, "another job")
        try:
            # Another job may have written since this was opened.
            self.done = read_done(self.directory) or self.done
            yield
        finally:
            lock.release()

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint directory."""
        return self.directory / _CHECKPOINT

    def remembered(self, spark: SparkSession, name: str) -> DataFrame | None:
        """Return the table that the last micro-batch left under a name; None: none yet."""
        if self.done.batch < 0:
            return None
        return spark.read.parquet(str(self._state(self.done.batch) / name))

    def publish(self, batch: int, rows: DataFrame) -> int:
        """Publish the alerts of a micro-batch, unless they were; return their number."""
        final = self.directory / ALERTS / f"batch={batch}"
        if not final.exists():
            _write(rows, final)
        count = rows.sparkSession.read.schema(rows.schema).parquet(str(final)).count()
        if not count:
            shutil.rmtree(final)
        return count

    def remember(self, batch: int, state: dict[str, DataFrame]) -> None:
        """Store the state that the next micro-batch needs."""
        for name, rows in state.items():
            _write(rows, self._state(batch) / name)

    def finish(self, batch: int, end_offset: int, alerts: int) -> None:
        """Record that a micro-batch is done, and delete what only it needed."""
        before = self.done.batch
        self.done = Done(batch, end_offset, self.done.alerts + alerts)
        files.write_atomically(self.directory / DONE, msgspec.json.encode(self.done))
        if before >= 0:
            shutil.rmtree(self._state(before), ignore_errors=True)

    def _state(self, batch: int) -> Path:
        return files.require_inside(self.directory, self.directory / _STATE / str(batch))


def _write(rows: DataFrame, final: Path) -> None:
    temporary = final.with_name(f"{files.TEMP_PREFIX}{final.name}")
    rows.write.mode("overwrite").parquet(str(temporary))
    # Spark syncs nothing, and what is noted as done must be there after a power cut.
    for path in (*temporary.rglob("*"), temporary):
        files.sync_file(path)
    make_directories(final.parent)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    files.sync_file(final.parent)


def output(spark: SparkSession, directory: Path | str) -> DataFrame | None:
    """Return the alerts of a job so far, with the micro-batch (``batch``) of each; None: none."""
    found = Path(directory).absolute() / ALERTS
    if not found.is_dir() or not any(path.name.startswith("batch=") for path in found.iterdir()):
        return None
    return spark.read.parquet(str(found))


DONE = "done.json"


class Done(msgspec.Struct, frozen=True):
    """Position of a job: its last micro-batch (-1: none yet), the end of the judged log, exclusive,
    and the number of alerts.
    """

    batch: int = -1
    end_offset: int = 0
    alerts: int = 0


def read_done(directory: Path) -> Done | None:
    """Read the position in a job's directory; None: the job has not begun.

    Raises ReplayError if the file is damaged, OSError.
    """
    path = directory / DONE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Done)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ReplayError(f"{path} is damaged: {error}. Begin another directory") from error
