"""``raftlog replay ...``: needs no pyspark by itself, so that it can say what is missing."""

from __future__ import annotations

import typer

from replay.app import create_app
from replay.launch import submit

app = create_app(submit)


def register(app_: typer.Typer) -> None:
    """Add the commands to ``raftlog``."""
    app_.add_typer(app, name="replay")
