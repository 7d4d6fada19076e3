"""LAO is told at once when there is time for it, and with the next records when there is not."""

from controller.service.service import HOLD_MAX_S, REMEMBERED, Telling


def rhythm(interval_s: float, count: int = 40) -> tuple[Telling, float, int]:
    """Commits at this rhythm, the last one just now and covered by nothing."""
    telling = Telling()
    now, end = 100.0, 0
    for _ in range(count):
        now, end = now + interval_s, end + 1
        telling.hold_s(end - 2, now)
        telling.committed(end, now)
    return telling, now, end


def test_with_time_until_the_next_commit_it_is_told_at_once() -> None:
    telling, now, end = rhythm(0.010)
    assert telling.hold_s(end - 1, now + 0.003) == 0


def test_when_the_next_commit_comes_first_it_waits_for_that() -> None:
    telling, now, end = rhythm(0.010)
    hold_s = telling.hold_s(end - 1, now + 0.008)
    assert 0.0079 < hold_s < 0.0081


def test_lao_announcement_is_held_for_a_bounded_time() -> None:
    telling, now, end = rhythm(0.010)
    assert telling.hold_s(end - 1, now + 3.0) == HOLD_MAX_S


def test_lone_write_is_told_at_once_however_long_it_took() -> None:
    telling = Telling()
    telling.committed(7, 5.0)
    assert telling.hold_s(6, 5.4) == 0


def test_lao_announcement_forgets_its_rhythm_after_a_pause() -> None:
    telling, now, end = rhythm(0.010)
    for _ in range(8):
        now, end = now + 5.0, end + 1
        telling.committed(end, now)
    assert telling.hold_s(end - 1, now + 0.1) == 0


def test_lao_that_covers_no_new_commit_is_told_at_once() -> None:
    telling, now, end = rhythm(0.010)
    assert telling.hold_s(end - 1, now + 0.009) > 0
    assert telling.hold_s(end - 1, now + 0.009) == 0


def test_remembered_commits_are_bounded() -> None:
    telling, now, end = rhythm(0.001, 10 * REMEMBERED)
    for n in range(10 * REMEMBERED):
        telling.committed(end + n, now)
    assert len(telling._commits) == REMEMBERED
