"""Rules about the mapping from hostnames to broker ids (KIP-426): one id a host at a time, and a
registration maps its own.

That a host is mapped to another id later is no offence: the last broker that registered from it has
it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.causes import HostnameCause
from raftlog.metadata.records import RecordType
from replay.audit import rules
from replay.audit.finding import findings, text, verdict, when
from replay.audit.history import History
from replay.causes import hostname_cause

RULES = (rules.HOSTNAME_OF_TWO_IDS, rules.HOSTNAME_NOT_OF_REGISTRATION)
_SIDE = ("offset", "name", "broker_id", "epoch", "timestamp_ms", "principal")
_OTHER = {name: f"other_{name}" for name in (*_SIDE, "host", "ends", "batch_base_offset")}
_RECORD = ("offset", "epoch", "timestamp_ms", "principal")


def check(history: History) -> DataFrame:
    """Each mapping."""
    return _of_registrations(history).unionByName(_of_two_ids(_mappings(history)))


def _mappings(history: History) -> DataFrame:
    """From when to when a name as it is spelled was mapped to an id; ``host``: the name that it is
    the same as.
    """
    of_name = Window.partitionBy("name").orderBy("offset")
    host = sf.lower(sf.regexp_replace("group_id", r"\.+$", ""))
    rows = history.of(RecordType.HOSTNAME).select(
        *_RECORD,
        "batch_base_offset",
        sf.col("group_id").alias("name"),
        host.alias("host"),
        "broker_id",
    )
    return rows.withColumn("ends", sf.lead("offset").over(of_name)).where(
        sf.col("broker_id").isNotNull()
    )


def _of_two_ids(mapped: DataFrame) -> DataFrame:
    """Two ids at a time: by two records of one batch, or by two spellings of one host."""
    rows = _by_batch(mapped).unionByName(_by_spelling(mapped))
    return findings(
        rows.withColumn("subject", text("host {}", sf.col("host"))),
        when(
            sf.col("broker_id") != sf.col("other.broker_id"),
            verdict(
                rules.HOSTNAME_OF_TWO_IDS,
                broker_id=sf.col("broker_id"),
                also=sf.col("other.offset"),
                found=text("{} mapped to broker {}", sf.col("name"), sf.col("broker_id")),
                expected=text(
                    "broker {}, as {} is", sf.col("other.broker_id"), sf.col("other.name")
                ),
            ),
        ),
    )


def _by_batch(mapped: DataFrame) -> DataFrame:
    """Each mapping with the one before it in its batch: the columns of SIDE, host and ``other``, a
    struct of the same.
    """
    of_batch = Window.partitionBy("host", "batch_base_offset").orderBy("offset")
    return mapped.select("host", *_SIDE, sf.lag(sf.struct(*_SIDE)).over(of_batch).alias("other"))


def _by_spelling(mapped: DataFrame) -> DataFrame:
    """Mappings of one host under two names at a time: the later one, with the earlier as
    ``other``.
    """
    # What a controller maps is spelled in one way: one side of this join is empty, but for forged
    # names.
    odd, other = mapped.where(sf.col("name") != sf.col("host")), mapped.withColumnsRenamed(_OTHER)
    differ = (sf.col("host") == sf.col("other_host")) & (sf.col("name") != sf.col("other_name"))
    overlap = _before("offset", "other_ends") & _before("other_offset", "ends")
    once = (sf.col("other_name") == sf.col("other_host")) | (
        sf.col("other_offset") < sf.col("offset")
    )
    this, that = (
        sf.struct(*_SIDE),
        sf.struct(*(sf.col(f"other_{name}").alias(name) for name in _SIDE)),
    )
    in_order = sf.array_sort(sf.array(this, that))
    pairs = odd.join(other, differ & overlap & once).select("host", in_order.alias("sides"))
    return pairs.select(
        "host", sf.col("sides")[1].alias("now"), sf.col("sides")[0].alias("other")
    ).select("host", "now.*", "other")


def _before(offset: str, ends: str) -> Column:
    return sf.col(ends).isNull() | (sf.col(offset) < sf.col(ends))


def _takes_cause_back() -> Column:
    """As :func:`raftlog.metadata.hostnames.takes_cause_back` has it: such a record maps nothing."""
    of_name = Window.partitionBy("group_id").orderBy("offset")
    said = sf.lag("cause").over(of_name).isNotNull() & sf.col("cause").isNull()
    return said & sf.equal_null("broker_id", sf.lag("broker_id").over(of_name))


def _of_registrations(history: History) -> DataFrame:
    registered = history.of(RecordType.REGISTER_BROKER).select(
        "batch_base_offset", sf.col("broker_id").alias("registers")
    )
    mapped = history.of(RecordType.HOSTNAME).withColumn("takes_back", _takes_cause_back())
    # Null where the cause is: a text that no build has written.
    registered_ = (
        hostname_cause(sf.col("cause"), sf.col("reason")) == HostnameCause.BY_REGISTRATION.name
    )
    by_registration = mapped.where(
        sf.col("broker_id").isNotNull() & registered_ & ~sf.col("takes_back")
    )
    rows = by_registration.select(
        *_RECORD, "batch_base_offset", sf.col("group_id").alias("name"), "broker_id"
    )
    # One registration a batch.
    rows = rows.join(registered, "batch_base_offset", "left")
    return findings(
        rows.withColumn("subject", text("host {}", sf.col("name"))),
        when(
            ~sf.equal_null("broker_id", "registers"),
            verdict(
                rules.HOSTNAME_NOT_OF_REGISTRATION,
                broker_id=sf.col("broker_id"),
                found=text("mapped to broker {}", sf.col("broker_id")),
                expected=sf.when(
                    sf.col("registers").isNull(), sf.lit("a registration in the same batch")
                ).otherwise(text("broker {}, which registers", sf.col("registers"))),
            ),
        ),
    )
