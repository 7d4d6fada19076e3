"""Lag of the brokers behind the log, and the brokers that held LAO back."""
