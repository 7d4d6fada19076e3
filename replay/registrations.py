"""Which registration of a broker was in force when, as intervals of offsets."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType


def registrations(records: DataFrame) -> DataFrame:
    """Columns broker_id, broker_epoch, begins (offset, inclusive), ends (exclusive; null: still in force)."""
    per_broker = Window.partitionBy("broker_id").orderBy("begins")
    return (
        records.where(sf.col("type").isin(int(RecordType.REGISTER_BROKER), int(RecordType.UNREGISTER_BROKER)))
        .select("broker_id", "broker_epoch", "type", sf.col("offset").alias("begins"))
        .withColumn("ends", sf.lead("begins").over(per_broker))
        .where(sf.col("type") == int(RecordType.REGISTER_BROKER))
        .drop("type")
    )
