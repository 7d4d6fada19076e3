"""Exit codes of a command that something else has ended, as a shell reports a signal: 128 and its
number. A command's own are in :mod:`raftlog.cli.exits`, which takes longer to import.
"""

from __future__ import annotations

INTERRUPTED = 130
"""SIGINT, and the command has cleaned up."""
TERMINATED = 143
"""SIGTERM ended the command before it was done, and it has cleaned up."""
UNREAD = 141
"""Nobody reads the output any more, as ``head`` that has seen enough. Most programs die of SIGPIPE
then.
"""
