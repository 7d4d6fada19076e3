"""Configs that are changed over and over."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType


def config_churn(records: DataFrame, since_ms: int) -> DataFrame:
    """One row a key of a resource that was set or deleted from ``since_ms`` on.

    A write of the value that is there, or of none where none is, changes nothing and does not
    count.

    resource_type, resource_name, config_name, changes, ``reversals`` (changes to the value before
    the last one: A, B, A), principals (how many different ones), last_offset, last_ms,
    last_principal, last_value (null: deleted).
    """
    key = ["resource_type", "resource_name", "config_name"]
    of_key = Window.partitionBy(*key).orderBy("offset")
    # Before the first write there is no value, as behind a deletion.
    again = sf.col("config_value").eqNullSafe(sf.lag("config_value").over(of_key))
    changed = (
        records.where(sf.col("type") == int(RecordType.CONFIG))
        .withColumn("again", again)
        .where(~sf.col("again"))
    )
    back = (
        sf.col("config_value").eqNullSafe(sf.lag("config_value", 2).over(of_key))
        & sf.lag("offset", 2).over(of_key).isNotNull()
    )
    return (
        changed.withColumn("back", back)
        .where(sf.col("timestamp_ms") >= since_ms)
        .groupBy(*key)
        .agg(
            sf.count("*").alias("changes"),
            sf.count_if("back").alias("reversals"),
            sf.count_distinct("principal").alias("principals"),
            sf.max("offset").alias("last_offset"),
            sf.max("timestamp_ms").alias("last_ms"),
            sf.max_by("principal", "offset").alias("last_principal"),
            sf.max_by("config_value", "offset").alias("last_value"),
        )
    )
