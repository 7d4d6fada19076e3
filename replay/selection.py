"""The selection of a question (:mod:`replay.asked`), as conditions on columns of Spark."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.records import EVERY_TOPIC
from replay.asked import KINDS, TOPIC, Asked, ask

__all__ = ["KINDS", "Selection", "select"]


class Selection(NamedTuple):
    """The entities of a question.

    ``groups``: a condition on group_kind and group_id; ``entities``: one on kind and key.
    """

    groups: Column
    entities: Column
    asked: Asked

    def narrow(self, rows: DataFrame, there: str | None = None) -> DataFrame:
        """Return the records that may matter.

        A name may have belonged to several topics, one after the other: all of them count.
        ``there``: the id of the one that had it where the rows begin.
        """
        asked = self.asked
        if not asked.topic_name:
            return rows
        ids = (
            rows.where(sf.col("topic_name") == asked.topic_name)
            .select(sf.col("topic_id").alias("group_id"))
            .distinct()
        )
        others = [EVERY_TOPIC.id] if there is None else [EVERY_TOPIC.id, there]
        more = rows.sparkSession.createDataFrame([(id_,) for id_ in others], "group_id string")
        ids = ids.union(more)
        of_topic = rows.where(sf.col("group_kind") == TOPIC)
        if not asked.topic_types:
            return of_topic.join(ids, "group_id", "left_semi")
        of_topic = of_topic.where(sf.col("type").isin(*asked.topic_types))
        own = rows.where(self.groups & (sf.col("group_kind") != TOPIC))
        return own.unionByName(of_topic.join(ids, "group_id", "left_semi").select(rows.columns))


def select(kind: str, key: str = "") -> Selection:
    """Return the entities of a kind under a key; "": all of the kind.

    Raises ReplayError for a kind or a key that there can't be.
    """
    asked = ask(kind, key)
    group_kind, group_id = asked.group
    groups = sf.col("group_kind") == group_kind
    if group_id is not None:
        groups &= sf.col("group_id") == group_id
    if asked.topic_types:
        groups |= sf.col("group_kind") == TOPIC
    entities = sf.lit(True)
    if asked.kind is not None:
        entities &= sf.col("kind") == asked.kind
    if asked.key is not None:
        entities &= sf.col("key") == asked.key
    if asked.prefix is not None:
        entities &= sf.col("key").startswith(asked.prefix)
    if asked.suffix is not None:
        entities &= sf.col("key").endswith(asked.suffix)
    return Selection(groups, entities, asked)
