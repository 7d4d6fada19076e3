"""``spark.read.format("raftlog")`` and ``spark.readStream.format("raftlog")``: Spark finds this
package by its name.

Spark imports it at the first use of any Python data source, so it imports nothing of raftlog before
it is asked to.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The raw segments of an export, a row a record, with the columns of its Parquet form.

    See :mod:`replay.spark.datasource`.
    """

    @classmethod
    def name(cls) -> str:
        """Short name of the data source, for ``format``."""
        return "raftlog"

    def schema(self) -> StructType:
        """All columns; ``.schema(…)`` with some of them reads only those."""
        from replay.spark.datasource import full_schema

        return full_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of what the export holds now."""
        from replay.spark.datasource import RawReader

        return RawReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reader of what the export holds and of what is added to it."""
        from replay.spark.datasource import RawStreamReader

        return RawStreamReader(self.options, schema)
