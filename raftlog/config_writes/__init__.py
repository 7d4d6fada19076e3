"""Config writes on the hot path: several writes are handled as one object, from a message's bytes
to the log's bytes.

Why: docs/decisions/026-config-writes-in-groups.md
"""
