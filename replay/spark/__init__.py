"""Spark: its session and Java, a task pool, and exports as tables and streams."""
