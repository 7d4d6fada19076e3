"""Exported logs: raw segments with the log's exact bytes, the same records as typed Parquet, and a
manifest that lists both.
"""
