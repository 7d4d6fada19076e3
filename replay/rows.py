"""Bounded answers from unbounded tables, and tables that several answers need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row


def first(frame: DataFrame, limit: int, *order: str | Column) -> tuple[list[Row], int]:
    """The first rows in this order, and how many rows there are.

    What fits the limit, as most does, is counted as it comes.
    """
    found = frame.orderBy(*order).limit(limit + 1).collect()
    return found[:limit], len(found) if len(found) <= limit else frame.count()


def keeper(keep: ExitStack | None) -> Callable[[DataFrame], DataFrame]:
    """What keeps a table until ``keep`` is closed, instead of having it made again each time it is
    asked; for None, nothing does.
    """

    def kept(frame: DataFrame) -> DataFrame:
        if keep is None:
            return frame
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        keep.callback(frame.unpersist)
        return frame

    return kept
