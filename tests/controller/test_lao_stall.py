"""What the log says of a LAO that stands still: once when it has stood, now and then, and when it
goes on.
"""

from __future__ import annotations

from controller.visibility.progress import SAY_EVERY_S, HeldBack, LaoStall


def looks(
    lao_stall: LaoStall,
    begin: float,
    end: float,
    lao: int,
    newest: int,
    by: list[int],
    reason: str = "",
) -> list[HeldBack]:
    said = []
    for tenth in range(round(begin * 10), round(end * 10)):
        news = lao_stall.look(tenth / 10, lao, newest, by, reason)
        if news is not None:
            said.append(news)
    return said


def test_who_holds_it_back_is_said_after_a_second_and_then_rarely() -> None:
    lao_stall = LaoStall()
    assert looks(lao_stall, 0.0, 5.0, 10, 10, []) == []
    assert looks(lao_stall, 5.0, 5.9, 10, 12, [3]) == []
    said = looks(lao_stall, 5.9, 5.0 + SAY_EVERY_S, 10, 15, [3])
    assert [(one.by, one.for_s) for one in said] == [((3,), 1.0)]
    assert len(looks(lao_stall, 5.0 + SAY_EVERY_S, 6.1 + 2 * SAY_EVERY_S, 10, 99, [3, 4])) == 2
    assert lao_stall.held_ms(6.0 + 2 * SAY_EVERY_S) == 1000 + 2 * 1000 * SAY_EVERY_S


def test_that_it_goes_on_is_said_once_and_only_if_it_was_said_to_stand() -> None:
    lao_stall = LaoStall()
    looks(lao_stall, 0.0, 3.0, 10, 12, [3])
    said = looks(lao_stall, 3.0, 4.0, 12, 12, [])
    assert [(one.by, one.reason) for one in said] == [((), "")]
    assert said[0].for_s == 3.0
    assert lao_stall.held_ms(4.0) == 0
    assert looks(lao_stall, 4.0, 4.5, 12, 13, [3]) == []
    assert looks(lao_stall, 4.5, 5.0, 13, 13, []) == []


def test_one_that_moves_all_the_time_is_not_held_back() -> None:
    lao_stall = LaoStall()
    said = [lao_stall.look(tenth / 10, tenth, tenth + 5, [1], "") for tenth in range(100)]
    assert said == [None] * 100
    assert lao_stall.held_ms(10.0) < 200


def test_why_it_is_unknown_is_said() -> None:
    lao_stall = LaoStall()
    said = looks(
        lao_stall, 0.0, 2.0, -1, 10, [4], "brokers [4] have not reported in controller epoch 3"
    )
    assert [one.reason for one in said] == ["brokers [4] have not reported in controller epoch 3"]


def test_a_cluster_without_brokers_says_nothing_of_a_lao_that_stands_still() -> None:
    lao_stall = LaoStall()
    assert looks(lao_stall, 0.0, 5.0, 10, 20, []) == []
    assert lao_stall.held_ms(5.0) == 0
