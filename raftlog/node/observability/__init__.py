"""Logs, metrics, health. Every process has logs; metrics and health need the extra ``server``."""
