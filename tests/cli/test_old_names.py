"""Whoever knows only KIP-343's names finds today's, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import Raftlog

from raftlog.aliases import OLD_NAMES, with_old_name
from raftlog.errors import ApiError, ErrorCode

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", OLD_NAMES)
def test_the_protocol_has_both_names(name: str) -> None:
    text = (DOCS / "protocol.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and OLD_NAMES[name] in line]
    assert any(name in line or name.replace(" ", "_") in line for line in rows)


def test_an_error_has_both_names() -> None:
    error = ApiError(
        ErrorCode.STALE_BROKER_EPOCH, "broker 1 is not registered", field="broker_epoch"
    )
    assert (
        str(error)
        == "STALE_BROKER_EPOCH (KIP-343: INVALID_INCARNATION_ID): broker 1 is not registered (field"
        " broker_epoch)"
    )
    assert str(ApiError(ErrorCode.INVALID_REQUEST, "no")) == "INVALID_REQUEST: no"
    assert with_old_name("broker epoch") == "broker epoch (KIP-343: incarnation id)"


def test_help_has_the_old_name_of_what_it_shows(raftlog: Raftlog) -> None:
    assert "incarnation id" in " ".join(raftlog("brokers", "list", "--help").out.split())
