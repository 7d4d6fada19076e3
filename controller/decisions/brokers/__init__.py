"""Registrations, heartbeats, broker ids and hostnames."""
