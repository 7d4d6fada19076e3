from __future__ import annotations

from raftlog.ops.moves import ASK_S, BytesLeft


def test_bytes_to_copy_are_shown_with_an_estimate_once_some_are_copied() -> None:
    left = BytesLeft()
    assert left.is_due(0.0)
    left.saw(30_000_000, 0.0)
    assert (left.is_due(ASK_S - 0.1), left.is_due(ASK_S)) == (False, True)
    assert left.in_words() == "; 30.0 MB to copy"
    left.saw(20_000_000, 5.0)
    assert left.in_words() == "; 20.0 MB to copy, about 10 s (estimate)"
    left.saw(0, 15.0)
    assert left.in_words() == ""


def test_growing_bytes_are_no_progress() -> None:
    left = BytesLeft()
    for size_bytes, least in ((100, 100), (150, 100), (None, 100), (90, 90)):
        left.saw(size_bytes, 0.0)
        assert left.least == least


def test_unknown_bytes_are_not_shown() -> None:
    left = BytesLeft()
    left.saw(100, 0.0)
    left.saw(None, 5.0)
    assert left.in_words() == ""
