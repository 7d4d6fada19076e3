"""Exactly-once clients and export cursors."""
