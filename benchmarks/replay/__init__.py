"""The replay, measured on generated histories: Spark compared with one process of pyarrow, and with
DuckDB for queries in SQL.

``runner`` creates the histories and starts one child per side; a side (``spark_side``,
``arrow_side``, ``duckdb_side``) performs its steps one after the other and reports when each begins
and ends; meanwhile ``watch`` measures its processes from outside.
"""
