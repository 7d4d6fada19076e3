"""PySpark over exported logs: what the state was, who changed it, and whether the rules were kept.

Needs the extra ``replay``. Only the modules under :mod:`replay.jobs` and those they import need
pyspark.
"""
