"""The Spark data source "raftlog", which Spark finds by the package's name.

Spark imports this package at the first use of any Python data source, so the package itself imports
raftlog only when it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The raw segments of an export, one row per record, with the columns of the Parquet form.

    See :mod:`replay.spark.datasource`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "raftlog"

    def schema(self) -> StructType:
        """Return all columns; ``.schema(…)`` restricts what is read."""
        from replay.spark.datasource import full_schema

        return full_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the export as it is now."""
        from replay.spark.datasource import RawReader

        return RawReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of the export's records, including those added later."""
        from replay.spark.datasource import RawStreamReader

        return RawStreamReader(self.options, schema)
