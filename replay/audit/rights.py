"""The rule about access control entries: who wrote had the right to it, by the entries below the
batch.

What a record needs is what the request behind it needs, and the verdict is that of
:mod:`raftlog.security.authorizer`. Two things are not in the log: the hosts that requests came
from, and ``super.users``. So nobody is found who had the right from some host, and super users are
named by who asks.

A verdict changes only where an entry that is about the question comes or goes. So each question
(principal, operation, resource) has a line of such turns, and the records that ask it are put into
that line: no record meets the entries.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.acls import AclResourceType
from replay import acls
from replay.audit import rules
from replay.audit.entries import QUESTION, creates_topic, turns
from replay.audit.finding import findings, text, verdict, when
from replay.audit.history import History
from replay.audit.needs import asked

RULES = (rules.WRITE_WITHOUT_RIGHT,)


def check(history: History) -> DataFrame:
    """Each record that a request of a client led to; of one batch and one question the first."""
    questions = asked(history)
    of_question = Window.partitionBy(*QUESTION).orderBy("at", "offset")
    so_far = of_question.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    told = {
        "ways": sf.sum("turn").over(so_far),
        "turned": sf.last(sf.when(sf.col("turn").isNotNull(), sf.col("at")), ignorenulls=True).over(
            so_far
        ),
        "again": sf.lag("turn").over(of_question).isNull()
        & (sf.lag("at").over(of_question) == sf.col("at")),
    }
    rows = questions.unionByName(turns(questions, history), allowMissingColumns=True).withColumns(
        told
    )
    judged = rows.where(sf.col("turn").isNull() & ~sf.coalesce("again", sf.lit(False)))
    of_topic = sf.col("on_type") == int(AclResourceType.TOPIC)
    on = acls.words(sf.col("on_type"), sf.col("on_name"))
    can = sf.concat(acls.named_in(acls.OPERATIONS, sf.col("operation")), sf.lit(" on "), on)
    either = sf.when(creates_topic(), sf.lit(" or on the cluster")).otherwise("")
    return findings(
        judged.withColumns({"subject": on, "topic_name": sf.when(of_topic, sf.col("on_name"))}),
        when(
            sf.coalesce("ways", sf.lit(0)) == 0,
            verdict(
                rules.WRITE_WITHOUT_RIGHT,
                also=sf.col("turned"),
                found=text("{} by {}", sf.col("type_name"), sf.col("principal")),
                expected=text("the right to {}{}", can, either),
            ),
        ),
    )
