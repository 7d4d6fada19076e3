"""Spark: its session and Java, the pool of its tasks, and exports as its tables and streams."""
