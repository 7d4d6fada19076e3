"""The table of keys is complete, and its names hold together."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from raftlog.config.reference import reference
from raftlog.config.settings import FIELD_OF_KEY, Settings
from raftlog.quorum.config import QuorumConfig


def test_every_key_is_documented_with_roles_and_units() -> None:
    rows = reference()
    assert len(rows) == len(Settings.model_fields) == len(FIELD_OF_KEY)
    for row in rows:
        assert row.doc.rstrip().endswith((".", ")")), row.key
        assert row.roles
        if row.key.endswith(".ms"):
            assert row.unit == "ms", row.key
        if row.key.endswith(".bytes"):
            assert row.unit == "bytes", row.key
        assert row.environment == "RAFTLOG_" + row.key.upper().replace(".", "_")


def test_no_key_is_a_table_of_another() -> None:
    """Else TOML could not hold both in nested form."""
    keys = list(FIELD_OF_KEY)
    assert not [(a, b) for a in keys for b in keys if b.startswith(a + ".")]


def test_defaults_are_those_of_the_quorum() -> None:
    defaults = {field.name: field.default for field in fields(QuorumConfig)}
    for name in ("election_timeout_ms", "election_jitter_max_ms", "election_backoff_max_ms", "fetch_timeout_ms",
                 "fetch_max_wait_ms", "fetch_max_bytes", "request_timeout_ms"):  # fmt: skip
        assert Settings.model_fields[f"controller_quorum_{name}"].default == defaults[name], name


def test_the_document_lists_exactly_these_keys_with_their_descriptions() -> None:
    document = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    listed = document.split("## All keys", 1)[1]
    rows = reference()
    assert re.findall(r"^\* \*\*`([a-z.]+)`\*\*", listed, re.MULTILINE) == [row.key for row in rows]
    flat = " ".join(listed.split())
    for row in rows:
        assert " ".join(row.doc.split()) in flat, row.key
