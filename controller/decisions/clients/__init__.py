"""Exactly-once clients, export cursors, and the key-value store."""
