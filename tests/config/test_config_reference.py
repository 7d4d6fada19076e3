"""The table of keys is complete, and its names hold together."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from reference_pages.tables import configuration_keys

from raftlog.node.config.reference import reference
from raftlog.node.config.settings import FIELD_OF_KEY, KEYS, Settings


def test_every_key_is_documented_with_roles_and_units() -> None:
    rows = reference()
    assert len(rows) == len(fields(Settings)) == len(FIELD_OF_KEY)
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


@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_role_reads_only_keys_that_say_so(role: str) -> None:
    others = {name for name, info in KEYS.items() if role not in info.roles}
    sources = [path.read_text() for path in (Path(__file__).parents[2] / role).rglob("*.py")]
    read = {
        name for source in sources for name in re.findall(r"settings\.(\w+)", source, re.IGNORECASE)
    }
    assert read & KEYS.keys()
    assert read & others == set()


def test_generated_list_has_exactly_these_keys_with_their_descriptions() -> None:
    listed = configuration_keys()
    rows = reference()
    assert re.findall(r"^\* \*\*`([a-z.]+)`\*\*", listed, re.MULTILINE) == [row.key for row in rows]
    flat = " ".join(listed.split())
    for row in rows:
        assert " ".join(row.doc.split()) in flat, row.key
