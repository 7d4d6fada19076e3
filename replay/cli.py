"""``raftlog replay ...``: needs no pyspark by itself, so that it can say what is missing."""

from __future__ import annotations

from replay.app import create_app
from replay.launch import submit

app = create_app(submit)

if __name__ == "__main__":
    app()
