"""PySpark over exported logs: the state at a point, the changes and their principals, and an audit
of the rules.

Needs the extra ``replay``. Only the modules under :mod:`replay.jobs` and those they import need
pyspark.
"""
