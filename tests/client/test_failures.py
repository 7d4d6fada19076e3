"""Why addresses could not be asked."""

from __future__ import annotations

from raftlog.client.endpoints import with_reasons


def test_each_reason_is_said_once() -> None:
    refused, silent = "UNAVAILABLE: Connection refused (111)", "does not answer"
    assert with_reasons({"a:1": refused, "b:1": silent, "c:1": refused, "d:1": ""}) == (
        f"a:1 and c:1 ({refused}), b:1 ({silent}), d:1"
    )
    assert with_reasons({"a:1": refused}) == f"a:1 ({refused})"
