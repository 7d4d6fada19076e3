"""The replay measured on made-up histories: Spark beside one process of pyarrow, and DuckDB for
what SQL says.

``runner`` makes the histories and starts one child a side; a side (``spark_side``, ``arrow_side``,
``duckdb_side``) does its steps one after the other and says when each begins and ends; ``watch``
measures its processes from outside meanwhile.
"""
