"""The directory of a streaming job: its output and its state.

::

    DIR/alerts/batch=7/*.parquet the alerts of micro-batch 7; missing if there are none
    DIR/state/7/NAME/*.parquet the state after micro-batch 7 DIR/done.json the last finished
    micro-batch and the end of its records; written last DIR/checkpoint/ Spark's own

Spark repeats a micro-batch that it has not recorded as done, with the same records. If
``done.json`` lists it, it is skipped. Otherwise its output is either complete, because directories
are renamed into place, or it is recomputed from the previous state. So each row appears exactly
once, however often the job is killed. Everything that ``done.json`` lists is durable; Spark's own
checkpoint is not.

Driver and workers must see the same directory on a mounted file system, local or shared.
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
    """The directory of a job. It has a single writer. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Open or create the directory.

        Raises ReplayError if it belongs to something else, and ExportError if it cannot be used.
        """
        self.directory = directory.absolute()
        with files.named_errors("write to", self.directory):
            make_directories(self.directory)
            done = read_done(self.directory)
            if done is None:
                if any(not path.name.startswith(".") for path in self.directory.iterdir()):
                    raise ReplayError(
                        f"{self.directory} is not empty and has no {DONE}: it does not belong to a"
                        " watch; give another directory"
                    )
                done = Done()
                files.write_atomically(self.directory / DONE, msgspec.json.encode(done))
            self.done = done

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the directory. Raises ExportError if another job has locked it."""
        lock = files.DirectoryLock(self.directory, "another job")
        try:
            # Another job may have written to the directory since it was opened.
            self.done = read_done(self.directory) or self.done
            yield
        finally:
            lock.release()

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint directory."""
        return self.directory / _CHECKPOINT

    def remembered(self, spark: SparkSession, name: str) -> DataFrame | None:
        """Return a table of the last micro-batch's state by name, or None before the first
        micro-batch.
        """
        if self.done.batch < 0:
            return None
        return spark.read.parquet(str(self._state(self.done.batch) / name))

    def publish(self, batch: int, rows: DataFrame) -> int:
        """Publish the alerts of a micro-batch, unless this was done before, and return their
        number.
        """
        final = self.directory / ALERTS / f"batch={batch}"
        if not final.exists():
            _write(rows, final)
        count = rows.sparkSession.read.schema(rows.schema).parquet(str(final)).count()
        if not count:
            shutil.rmtree(final)
        return count

    def remember(self, batch: int, state: dict[str, DataFrame]) -> None:
        """Store the state for the next micro-batch."""
        for name, rows in state.items():
            _write(rows, self._state(batch) / name)

    def finish(self, batch: int, end_offset: int, alerts: int) -> None:
        """Record that a micro-batch is done, and delete the state that only this micro-batch
        needed.
        """
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
    # Spark does not sync, but what is recorded as done must survive a power failure.
    for path in (*temporary.rglob("*"), temporary):
        files.sync_file(path)
    make_directories(final.parent)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    files.sync_file(final.parent)


def output(spark: SparkSession, directory: Path | str) -> DataFrame | None:
    """Return all alerts of a job with their micro-batch in ``batch``, or None."""
    found = Path(directory).absolute() / ALERTS
    if not found.is_dir() or not any(path.name.startswith("batch=") for path in found.iterdir()):
        return None
    return spark.read.parquet(str(found))


DONE = "done.json"


class Done(msgspec.Struct, frozen=True):
    """Progress of a job: the last micro-batch (-1 before the first), the end of the judged log
    (exclusive), and the number of alerts.
    """

    batch: int = -1
    end_offset: int = 0
    alerts: int = 0


def read_done(directory: Path) -> Done | None:
    """Read the progress of the job in a directory, or None if the job has not started.

    Raises ReplayError if the file is damaged, and OSError.
    """
    path = directory / DONE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Done)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ReplayError(f"{path} is damaged: {error}. Use a new directory") from error
