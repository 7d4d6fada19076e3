"""Exported logs: typed Parquet and raw segments, with a manifest."""
