"""What `raftlog export` refuses before it asks anybody."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--publish-interval", 3), "go with --follow"),
        (("--publish-records", 3), "go with --follow"),
        (("--follow", "-d", "somewhere"), "does not grow"),
        (("--follow", "--publish-interval", 0), "--publish-interval"),
    ],
)
def test_options_that_do_not_go_together(raftlog, tmp_path, options, why):
    ran = raftlog("export", tmp_path / "export", *options)
    assert (ran.code, why in ran.err) == (2, True)
    assert not (tmp_path / "export").exists()


def test_a_uri_that_nothing_can_open(raftlog):
    ran = raftlog("export", "nonsense://bucket/export", "--bootstrap-controller", "127.0.0.1:1")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "nonsense://bucket/export cannot be opened: Protocol not known: nonsense" in ran.err
