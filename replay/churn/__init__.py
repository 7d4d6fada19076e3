"""Frequent changes and growth in a log."""
