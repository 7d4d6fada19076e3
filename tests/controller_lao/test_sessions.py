from controller.state.liveness import SessionTracker


def tracker(*broker_ids: int) -> SessionTracker:
    sessions = SessionTracker(10.0)
    sessions.start([(broker_id, broker_id * 100) for broker_id in broker_ids], 0.0)
    return sessions


def test_session_lasts_its_timeout_from_the_last_contact() -> None:
    sessions = tracker(1)
    sessions.touch(1, 100, 4.0)
    assert sessions.is_alive(1, 13.9)
    assert not sessions.is_alive(1, 14.0)
    assert sessions.expired(13.9) is None
    assert sessions.expired(14.0) == 1
    assert sessions.last_contact(1) == 4.0
    assert not sessions.is_alive(2, 0.0)
    assert sessions.last_contact(2) is None


def test_longest_dead_comes_first_and_the_lower_id_of_equals() -> None:
    sessions = tracker(3, 1, 2)
    sessions.touch(1, 100, 1.0)
    assert sessions.next_expiry() == (10.0, 2)
    fenced = []
    while (broker_id := sessions.expired(20.0)) is not None:
        fenced.append(broker_id)
        sessions.end(broker_id)
    assert fenced == [2, 3, 1]
    assert sessions.next_expiry() is None


def test_older_broker_epoch_and_a_late_contact_change_nothing() -> None:
    sessions = tracker(1)
    sessions.touch(1, 100, 5.0)
    sessions.touch(1, 99, 9.0)
    sessions.touch(1, 100, 3.0)
    assert sessions.next_expiry() == (15.0, 1)
    sessions.touch(1, 101, 6.0)
    sessions.touch(1, 100, 8.0)
    assert sessions.next_expiry() == (16.0, 1)


def test_gap_in_the_loop_extends_every_session_there_is() -> None:
    sessions = tracker(1, 2)
    sessions.extend_all(0.1, 0.1)
    assert sessions.next_expiry() == (10.0, 1)
    sessions.extend_all(5.0, 5.0)
    assert sessions.next_expiry() == (15.0, 1)
    sessions.touch(2, 200, 6.0)
    sessions.touch(3, 300, 6.0)
    assert sessions.is_alive(3, 15.9)
    assert not sessions.is_alive(3, 16.0)
    assert not sessions.is_alive(2, 16.0)


def test_session_renewed_before_a_gap_is_noticed_is_not_extended_twice() -> None:
    sessions = tracker(1, 2)
    sessions.touch(1, 100, 60.0)
    sessions.touch(3, 300, 59.5)
    sessions.extend_all(59.0, 60.0)
    assert sessions.next_expiry() == (69.0, 2)
    sessions.end(2)
    assert sessions.next_expiry() == (70.0, 1)
    assert sessions.expired(69.9) is None
    assert not sessions.is_alive(3, 70.0)
    sessions.touch(1, 100, 61.0)
    assert sessions.next_expiry() == (70.0, 3)
    assert sessions.is_alive(1, 70.9)


def test_contact_never_shortens_a_session() -> None:
    sessions = tracker(1)
    sessions.extend_all(5.0, 5.0)
    sessions.touch(1, 100, 2.0)
    assert sessions.next_expiry() == (15.0, 1)
    assert sessions.last_contact(1) == 2.0


def test_start_forgets_what_was() -> None:
    sessions = tracker(1, 2)
    sessions.start([(2, 200)], 100.0)
    assert sessions.last_contact(1) is None
    assert sessions.next_expiry() == (110.0, 2)
    sessions.end(1)
