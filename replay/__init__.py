"""PySpark over exported logs."""
