"""Damage to the files of nodes, exports and configurations, and what every reader returns for it.
See ``__main__.py``.
"""
