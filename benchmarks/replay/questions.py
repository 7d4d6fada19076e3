"""Queries in SQL: the same text for Spark and for DuckDB, over a view ``records`` (in which
``offset`` is called ``at_offset``).
"""

from __future__ import annotations

BY_TYPE = "SELECT type_name, count(*) AS n, max(at_offset) AS last FROM records GROUP BY type_name"

LAST_CONFIGS = """
SELECT count(*) AS n, sum(length(value)) AS bytes, max(last) AS last
FROM (
    SELECT resource_type, resource_name, config_name,
           max_by(coalesce(config_value, ''), at_offset) AS value, max(at_offset) AS last
    FROM records WHERE type_name = 'CONFIG'
    GROUP BY resource_type, resource_name, config_name
) WHERE value <> ''
"""

FENCED = """
SELECT broker_id, count(*) AS n, sum(ends_ms - timestamp_ms) AS fenced_ms
FROM (
    SELECT broker_id, fenced, timestamp_ms, lead(timestamp_ms) OVER (PARTITION BY broker_id ORDER BY at_offset) AS ends_ms
    FROM records WHERE fenced IS NOT NULL
) WHERE fenced AND ends_ms IS NOT NULL
GROUP BY broker_id
"""

LEADERLESS = """
SELECT count(*) AS n, sum(ends_ms - timestamp_ms) AS leaderless_ms
FROM (
    SELECT leader, timestamp_ms, lead(timestamp_ms) OVER (PARTITION BY topic_id, partition_id ORDER BY at_offset) AS ends_ms
    FROM records WHERE leader IS NOT NULL
) WHERE leader = -1 AND ends_ms IS NOT NULL
"""

ISR_CHURN = """
SELECT count(*) AS n, sum(members - least(members, was)) AS grown, sum(was - least(members, was)) AS shrunk
FROM (
    SELECT cardinality(isr) AS members,
           lag(cardinality(isr)) OVER (PARTITION BY topic_id, partition_id ORDER BY at_offset) AS was
    FROM records WHERE isr IS NOT NULL
) WHERE was IS NOT NULL
"""

QUESTIONS = {
    "sql: records by type": BY_TYPE,
    "sql: last value of each config": LAST_CONFIGS,
    "sql: time fenced, by broker": FENCED,
    "sql: time without a leader": LEADERLESS,
    "sql: ISRs grown and shrunk": ISR_CHURN,
}


def for_duckdb(text: str) -> str:
    """Return a query in DuckDB's dialect, which differs in one word."""
    return text.replace("cardinality(isr)", "len(isr)")


def answer(rows: list[tuple[object, ...]]) -> list[list[str]]:
    """Return rows in a canonical order, comparable between engines."""
    return sorted(
        [str(int(value)) if isinstance(value, int | float) else str(value) for value in row]
        for row in rows
    )
