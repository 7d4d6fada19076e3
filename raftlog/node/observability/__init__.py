"""Logs, metrics, health.

Logs are everybody's; metrics and health need what the extra ``server`` brings.
"""
