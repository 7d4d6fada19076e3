"""Why brokers were fenced or not, as a column: by the causes of :mod:`raftlog.metadata.causes`,
never by words.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf

from raftlog.metadata.causes import OLD_TEXTS


def cause(said: Column, reason: Column) -> Column:
    """The cause's name: the one that the record says, else that of its text in the table of the old
    ones; null for another text.
    """
    table = sf.create_map(
        *(sf.lit(word) for text, each in OLD_TEXTS.items() for word in (text, each.name))
    )
    return sf.coalesce(said, sf.try_element_at(table, reason))
