"""Jobs by Spark's own tables. Their results, and their forms without Spark: ``replay/jobs``."""
