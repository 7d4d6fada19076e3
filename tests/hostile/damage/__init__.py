"""Damage done to the files of nodes, exports and configurations, and what every reader makes of it.

See ``__main__.py``.
"""
