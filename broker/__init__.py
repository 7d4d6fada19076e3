"""Follows: lifecycle, metadata cache, reads, and writes forwarded to the controller."""
