"""What ``scripts/reference.py`` writes, one module a subject."""
