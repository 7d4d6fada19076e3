"""A finding: one offence against one rule, in a fixed schema, whether it came from one run or from
a stream.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replay.audit.rules import Rule
from replay.kernels.finding import FINDING_DDL

RECORD = (
    "offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "topic_id",
    "topic_name",
    "partition_id",
    "subject",
)
"""What ``findings`` takes from its rows, as it is; what is not there, is null."""
_TYPES = {"epoch": "int", "timestamp_ms": "long", "partition_id": "int"}


class Charge:
    """What a row may be guilty of: the first of its conditions that holds gives the verdict, as
    ``sf.when`` would.

    Apart from it, whether any holds can be asked without a word of the verdicts: see
    :func:`findings`.
    """

    def __init__(self, *cases: tuple[Column, Column]) -> None:
        self._cases = cases

    def when(self, condition: Column, given: Column) -> Charge:
        """The same, with one more case behind the others. ``given``: a :func:`verdict`."""
        return Charge(*self._cases, (condition, given))

    @property
    def holds(self) -> Column:
        """Whether there is a verdict (null: no)."""
        return reduce(or_, (condition for condition, _ in self._cases))

    @property
    def verdict(self) -> Column:
        """The verdict, or null."""
        (condition, given), *others = self._cases
        return reduce(lambda so_far, case: so_far.when(*case), others, sf.when(condition, given))


def when(condition: Column, given: Column) -> Charge:
    """A charge of one case: the :func:`verdict` ``given`` where the condition holds."""
    return Charge((condition, given))


def verdict(
    rule: Rule,
    *,
    found: Column,
    expected: Column,
    broker_id: Column | None = None,
    also: Column | None = None,
) -> Column:
    """What is wrong with a row, if something is: to be put into :func:`when`.

    ``also``: one more offset that shows it.
    """
    shown = sf.array(also.cast("long")) if also is not None else sf.array().cast("array<long>")
    return sf.struct(
        sf.lit(rule.id).alias("rule"),
        sf.lit(rule.severity).alias("severity"),
        (sf.lit(None) if broker_id is None else broker_id).cast("int").alias("broker_id"),
        found.cast("string").alias("found"),
        expected.cast("string").alias("expected"),
        shown.alias("also"),
        sf.lit(rule.documentation).alias("documentation"),
    )


def findings(rows: DataFrame, *charges: Charge) -> DataFrame:
    """One row, FINDING_DDL, for each charge that holds of a row."""
    given = sf.array_compact(sf.array(*(charge.verdict for charge in charges)))
    record = [
        (
            sf.col(name)
            if name in rows.columns
            else sf.lit(None).cast(_TYPES.get(name, "string")).alias(name)
        )
        for name in RECORD
    ]
    # Almost always there is nothing. So all rows are asked by the bare conditions, which Spark
    # compiles; the texts are made of the rows that are left.
    guilty = rows.where(reduce(or_, (charge.holds for charge in charges)))
    flat = guilty.select(*record, sf.inline(given))
    offsets = sf.concat(sf.array("offset"), sf.array_compact("also")).alias("offsets")
    return flat.select(*(offsets if name == "offsets" else sf.col(name) for name in names()))


def names() -> list[str]:
    """The columns of FINDING_DDL, in order."""
    return [each.split()[0] for each in FINDING_DDL.split(", ")]


def partition_subject() -> Column:
    """orders-0, from ``topic_name``, ``topic_id`` and ``partition_id``."""
    return sf.concat(
        sf.lit("partition "),
        sf.coalesce("topic_name", "topic_id"),
        sf.lit("-"),
        sf.col("partition_id"),
    )


def ids(column: Column) -> Column:
    """[1, 2] of an array; "nothing" of null."""
    return sf.coalesce(
        sf.concat(sf.lit("["), sf.array_join(column.cast("array<string>"), ", "), sf.lit("]")),
        sf.lit("nothing"),
    )


def text(template: str, *columns: Column) -> Column:
    """The template with each ``{}`` replaced by a column; null as "none"."""
    pieces = template.split("{}")
    parts: list[Column] = [sf.lit(pieces[0])]
    for column, piece in zip(columns, pieces[1:], strict=True):
        parts += [sf.coalesce(column.cast("string"), sf.lit("none")), sf.lit(piece)]
    return sf.concat(*parts)
