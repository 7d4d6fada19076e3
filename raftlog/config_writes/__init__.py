"""Config writes on their hot path: several writes are one object, from the bytes of a message to
the bytes of the log.

Why: docs/decisions/026-config-writes-in-groups.md
"""
