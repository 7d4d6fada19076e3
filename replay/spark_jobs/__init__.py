"""Jobs by Spark's own tables. What they tell, and what they do without Spark: ``replay/jobs``."""
