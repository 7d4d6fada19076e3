"""DuckDB: ``python -m benchmarks.replay.duckdb_side EXPORT [STEP …]``.

Uses as many threads as there are cores, like Spark.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import duckdb

from benchmarks.replay.questions import QUESTIONS, answer, for_duckdb
from benchmarks.replay.steps import perform
from raftlog.segments.manifest import RECORDS, read_manifest


def connect(directory: str) -> duckdb.DuckDBPyConnection:
    """Open a database with the view ``records``."""
    database = duckdb.connect()
    files = [
        str(Path(directory) / segment.file) for segment in read_manifest(directory).of_kind(RECORDS)
    ]
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in files)
    database.execute(
        'CREATE VIEW records AS SELECT "offset" AS at_offset, * EXCLUDE ("offset") FROM'
        f" read_parquet([{listed}])"
    )
    return database


def main(directory: str, wanted: list[str]) -> None:
    database = connect(directory)

    def ask(text: str) -> list[list[str]]:
        return answer(database.execute(for_duckdb(text)).fetchall())

    perform({n: partial(ask, text) for n, text in QUESTIONS.items() if not wanted or n in wanted})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
