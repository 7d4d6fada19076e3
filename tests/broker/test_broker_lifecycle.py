from __future__ import annotations

import random
from typing import Any

import pytest
from broker_log import LogMaker

from broker.registration.lifecycle import Exit, Heartbeat, Lifecycle, Register, State
from broker.settings import LifecycleSettings
from raftlog.clock import NEVER
from raftlog.errors import ApiError, ConfigError, ErrorCode

ME = 7
MINE = "mine"
EPOCH = 5


class Life:
    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.settings = LifecycleSettings(**settings)
        self.it = Lifecycle(
            self.settings, broker_id=ME, incarnation_id=MINE, rng=random.Random(1), now=self.now
        )

    def poll(self) -> Register | Heartbeat | None:
        return self.it.poll(self.now)

    def state(self) -> State:
        return self.it.state

    def unfenced(self) -> bool:
        return self.it.unfenced

    def exit(self) -> Exit | None:
        return self.it.exit

    def advance(self) -> Register | Heartbeat | None:
        assert self.it.next_deadline != NEVER
        self.now = max(self.now, self.it.next_deadline)
        return self.poll()

    def fail(self, code: ErrorCode, *, unknown: bool = False) -> None:
        self.it.failed(ApiError(code, "no", outcome_unknown=unknown), self.now)

    def ok(self, *, should_shut_down: bool = False) -> None:
        self.it.heartbeat_answered(self.now, should_shut_down=should_shut_down)

    def image(
        self,
        offset: int,
        *,
        epoch: int = EPOCH,
        incarnation: str = MINE,
        fenced: bool = True,
        gone: bool = False,
        heartbeats: bool = True,
    ) -> None:
        log = LogMaker()
        while log.end < epoch:
            log.leader()
        log.register(ME, incarnation, fenced=fenced)
        registration = None if gone else log.image(log.last).brokers[ME]
        self.it.metadata_applied(offset, registration, self.now, heartbeats=heartbeats)

    def registered(self) -> Life:
        assert isinstance(self.poll(), Register)
        self.it.registered(EPOCH, self.now, generation=4)
        self.it.generation_seen(4, self.now)
        assert isinstance(self.poll(), Heartbeat)
        return self

    def active(self) -> Life:
        self.registered().ok()
        self.image(EPOCH)
        assert isinstance(self.poll(), Heartbeat)
        self.ok()
        self.image(EPOCH + 1, fenced=False)
        assert isinstance(self.poll(), Heartbeat)
        self.ok()
        assert self.it.state is State.ACTIVE
        return self


def test_lifecycle_goes_from_initial_to_active() -> None:
    life = Life()
    assert life.state() is State.INITIAL
    assert "not registered" in life.it.why_fenced(life.now)
    assert life.poll() == Register(-1)
    assert life.poll() is None, "one in flight"
    life.it.registered(EPOCH, life.now)
    assert life.state() is State.INACTIVE
    assert life.poll() == Heartbeat(EPOCH, False, State.ACTIVE)
    life.ok()
    life.image(EPOCH + 1, fenced=False)
    assert life.state() is State.ACTIVE
    assert life.it.why_fenced(life.now) == ""


def test_broker_is_unfenced_only_when_its_image_shows_its_current_epoch_unfenced() -> None:
    life = Life().registered()
    life.ok()
    life.image(EPOCH - 1, epoch=2, incarnation="old", fenced=False)
    assert not life.unfenced(), "the old incarnation's registration"
    life.image(EPOCH, fenced=True)
    assert not life.unfenced()
    life.image(EPOCH + 3, fenced=False)
    assert life.unfenced()
    life.image(EPOCH + 4, fenced=True)
    assert life.state() is State.INACTIVE


def test_broker_is_unfenced_when_its_image_is_ahead_of_the_registration_response() -> None:
    life = Life()
    life.poll()
    life.image(EPOCH + 2, fenced=False)
    assert not life.unfenced()
    life.it.registered(EPOCH, life.now)
    assert life.unfenced()


def test_heartbeats_keep_their_interval_with_jitter() -> None:
    life = Life().active()
    gaps = []
    for _ in range(20):
        before = life.now
        assert isinstance(life.advance(), Heartbeat)
        gaps.append(life.now - before)
        life.ok()
    assert all(1.8 <= gap <= 2.0 for gap in gaps)
    assert len(set(gaps)) > 10


def test_state_change_triggers_a_heartbeat_and_one_in_flight_is_followed_by_another() -> None:
    life = Life().active()
    assert life.poll() is None
    life.it.heartbeat_soon(life.now)
    assert isinstance(life.poll(), Heartbeat)
    life.it.heartbeat_soon(life.now)
    assert life.poll() is None, "one in flight"
    life.ok()
    assert isinstance(life.poll(), Heartbeat)
    life.ok()
    assert life.poll() is None


def test_registration_is_retried_until_timeout_and_reports_the_last_error() -> None:
    life = Life(registration_timeout_ms=5000)
    begun, attempts = life.now, 0
    action = life.poll()
    while action is not None:
        attempts += 1
        life.fail(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        assert life.state() is State.INITIAL
        action = life.advance()
    assert attempts > 3
    assert life.now - begun == pytest.approx(5.0)
    assert not life.it.exit.clean
    assert "initial.broker.registration.timeout.ms" in life.it.exit.reason
    assert "DUPLICATE_BROKER_REGISTRATION" in life.it.exit.reason
    assert life.it.next_deadline == NEVER


def test_registration_times_out_even_while_a_request_is_in_flight() -> None:
    life = Life(registration_timeout_ms=5000)
    life.poll()
    assert life.advance() is None
    assert not life.it.exit.clean


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
    ],
)
def test_registration_that_can_never_succeed_fails_at_once(code: ErrorCode) -> None:
    life = Life()
    life.poll()
    life.fail(code)
    assert code.name in life.it.exit.reason
    assert not life.it.exit.clean


def test_registration_with_unknown_outcome_is_retried() -> None:
    life = Life()
    life.poll()
    life.fail(ErrorCode.INVALID_REQUEST, unknown=True)
    assert life.exit() is None
    assert life.advance() == Register(-1)


def test_failed_heartbeats_are_retried_sooner_than_the_interval_with_a_minimum_gap() -> None:
    life = Life().active()
    life.advance()
    gaps = []
    for _ in range(8):
        life.fail(ErrorCode.NETWORK_EXCEPTION, unknown=True)
        before = life.now
        assert isinstance(life.advance(), Heartbeat)
        gaps.append(life.now - before)
    assert 0.05 <= gaps[0] <= 0.1
    assert max(gaps) <= 2.0
    assert gaps[-1] >= 1.0


def test_broker_fences_itself_without_contact_and_recovers() -> None:
    life = Life().active()
    life.advance()
    sent_at = life.now
    life.fail(ErrorCode.REQUEST_TIMED_OUT, unknown=True)
    life.now = sent_at + 9.9
    assert not life.it.self_fenced(life.now)
    life.now = sent_at + 12.1
    assert life.it.self_fenced(life.now)
    assert life.state() is State.ACTIVE, "its image still says so"
    assert "no controller answered" in life.it.why_fenced(life.now)
    assert isinstance(life.poll(), Heartbeat)
    life.ok()
    assert not life.it.self_fenced(life.now)
    assert life.it.why_fenced(life.now) == ""


def test_contact_counts_from_the_time_the_heartbeat_was_sent() -> None:
    life = Life().active()
    life.advance()
    sent_at = life.now
    life.now += 10
    life.ok()
    assert life.it.self_fenced(sent_at + 12.1)


def test_the_self_fencing_timeout_must_exceed_the_session_timeout() -> None:
    with pytest.raises(ConfigError, match=r"broker\.fencing\.timeout\.ms"):
        LifecycleSettings(fencing_timeout_ms=9000)
    with pytest.raises(ConfigError, match=r"broker\.heartbeat\.interval\.ms"):
        LifecycleSettings(heartbeat_interval_ms=5000)
    defaults = LifecycleSettings()
    assert defaults.fencing_timeout_ms > defaults.session_timeout_ms


def test_broker_with_a_stale_epoch_fences_itself_without_registering_again() -> None:
    life = Life().active()
    life.advance()
    life.fail(ErrorCode.STALE_BROKER_EPOCH)
    assert life.it.self_fenced(life.now)
    assert life.exit() is None, "the image does not show yet why"
    assert isinstance(life.advance(), Heartbeat), (
        "never a registration on the word of a reply alone"
    )
    life.ok()
    assert not life.it.self_fenced(life.now)


def test_broker_replaced_by_another_process_exits_and_names_it() -> None:
    """[Two live processes with one id would throw each other out for ever.]"""
    life = Life().active()
    life.image(EPOCH + 9, epoch=EPOCH + 8, incarnation="other")
    assert not life.it.exit.clean
    assert "incarnation other" in life.it.exit.reason
    assert f"b{ME}:9092" in life.it.exit.reason
    assert life.it.self_fenced(life.now)
    assert life.poll() is None


def test_unregistered_broker_exits() -> None:
    life = Life().active()
    life.image(EPOCH + 9, gone=True)
    assert "unregistered" in life.it.exit.reason
    assert not life.it.exit.clean


def test_image_with_a_later_offset_alone_completes_the_registration() -> None:
    life = Life()
    assert isinstance(life.poll(), Register)
    life.it.registered(EPOCH, life.now, metadata_offset=EPOCH + 5)
    life.image(EPOCH, fenced=False)
    assert not life.it.passed(EPOCH + 6), "it is to be looked at"
    assert life.state() is State.INACTIVE
    life.image(EPOCH + 6, fenced=False)
    assert life.state() is State.ACTIVE
    assert life.it.passed(EPOCH + 9)
    assert life.state() is State.ACTIVE
    life.it.registered(EPOCH, life.now, metadata_offset=EPOCH + 8)
    assert life.state() is State.ACTIVE, "the offset was taken"


def test_registration_of_this_process_under_another_epoch_is_renewed() -> None:
    life = Life().active()
    life.image(EPOCH + 9, epoch=EPOCH + 8, incarnation=MINE)
    assert life.exit() is None
    assert life.state() is State.INITIAL
    assert life.poll() == Register(EPOCH)


def test_broker_registers_again_in_another_generation() -> None:
    life = Life()
    life.it.generation_seen(4, life.now)
    life.active().advance()
    life.it.generation_seen(1, life.now)
    assert life.state() is State.INITIAL
    assert life.it.self_fenced(life.now)
    life.ok()  # of the heartbeat that was in flight: means nothing any more
    assert life.it.self_fenced(life.now)
    assert life.poll() == Register(EPOCH)


def test_image_of_another_generation_shows_no_registration() -> None:
    life = Life()
    life.it.generation_seen(4, life.now)
    life.poll()
    life.it.registered(EPOCH, life.now, generation=7, previous_generations=(4,))
    life.image(EPOCH + 1, incarnation="old", fenced=False)
    assert not life.unfenced(), "the former log has another registration at this offset"
    assert life.it.exit is None
    life.it.generation_seen(7, life.now)
    life.image(EPOCH + 1, fenced=False)
    assert life.unfenced()


def test_registration_of_another_generation_counts_from_its_decision() -> None:
    life = Life()
    life.it.generation_seen(4, life.now)
    life.active().advance()
    life.it.generation_seen(1, life.now)
    life.ok()
    assert life.poll() == Register(EPOCH)
    life.it.registered(EPOCH, life.now, metadata_offset=EPOCH + 50, generation=1)
    assert life.it.shown_from == EPOCH + 50
    assert isinstance(life.poll(), Heartbeat)
    life.ok()
    # The new log is read from its beginning: there stands this registration, fenced, unfenced, even
    # gone.
    told: list[tuple[int, dict[str, Any]]] = [
        (EPOCH, {}),
        (EPOCH + 1, {"fenced": False}),
        (EPOCH + 49, {"gone": True}),
    ]
    for offset, fields in told:
        life.image(offset, **fields)
        assert life.exit() is None
        assert life.state() is State.INACTIVE
        assert life.it.why_fenced(life.now)
    life.image(EPOCH + 50, fenced=False)
    assert life.state() is State.ACTIVE
    assert life.it.why_fenced(life.now) == ""
    assert isinstance(life.poll(), Heartbeat), "that it has come so far is told at once"


@pytest.mark.parametrize(
    ("registered_in", "seen_first", "again"), [(4, 1, True), (4, 4, False), (1, 1, False)]
)
def test_registration_made_before_the_log_was_seen_is_void_in_another_generation(
    registered_in: int, seen_first: int, again: bool
) -> None:
    """[registered, and the log is taken back before the first fetch: the epoch is beyond the end of
    every controller's log]
    """
    life = Life()
    assert isinstance(life.poll(), Register)
    life.it.registered(EPOCH, life.now, generation=registered_in)
    assert isinstance(life.poll(), Heartbeat)
    life.it.generation_seen(seen_first, life.now)
    life.fail(ErrorCode.NOT_CONTROLLER)
    assert isinstance(life.advance(), Register if again else Heartbeat)


@pytest.mark.parametrize(
    ("registered_in", "previous", "again"), [(4, (), True), (7, (4,), False), (2, (4, 7), False)]
)
def test_registration_is_void_when_its_log_does_not_descend_from_the_one_followed(
    registered_in: int, previous: tuple[int, ...], again: bool
) -> None:
    life = Life()
    assert isinstance(life.poll(), Register)
    life.it.generation_seen(7, life.now)
    life.it.registered(EPOCH, life.now, generation=registered_in, previous_generations=previous)
    assert isinstance(life.advance(), Register if again else Heartbeat)
    # The one that is ahead of what was fetched is in force when the log has come to it.
    life.it.generation_seen(2, life.now)
    assert (life.it.epoch < 0) is (registered_in != 2)


def test_registration_is_renewed_when_the_log_lost_what_was_applied() -> None:
    life = Life().active()
    life.it.log_diverged(life.now)
    assert life.state() is State.INITIAL
    life.ok()
    assert life.poll() == Register(EPOCH)


def test_controlled_shutdown_ends_when_the_controller_allows_it() -> None:
    life = Life().active()
    life.it.stop(life.now)
    assert life.state() is State.STOPPING
    assert life.it.why_fenced(life.now) == "", "it serves until it is let go"
    assert life.poll() == Heartbeat(EPOCH, True, State.STOPPING)
    life.ok()
    assert life.exit() is None
    before = life.now
    assert isinstance(life.advance(), Heartbeat)
    assert life.now - before <= 0.1
    life.ok(should_shut_down=True)
    assert life.it.exit.clean


def test_should_shut_down_is_ignored_unless_the_broker_asked_to_stop() -> None:
    life = Life().active()
    life.advance()
    life.ok(should_shut_down=True)
    assert life.exit() is None


def test_controlled_shutdown_times_out() -> None:
    life = Life(shutdown_timeout_ms=3000).active()
    begun = life.now
    life.it.stop(life.now)
    while True:
        action = life.poll()
        if action is None:
            break
        life.fail(ErrorCode.NETWORK_EXCEPTION)
        life.now = life.it.next_deadline
        life.it.stop(life.now)  # asking again prolongs nothing
    assert not life.it.exit.clean
    assert life.now - begun == pytest.approx(3.0)


@pytest.mark.parametrize("heartbeats", [True, False])
def test_stopping_broker_exits_cleanly_when_no_controller_can_be_reached(heartbeats: bool) -> None:
    life = Life().active() if heartbeats else without_heartbeats()
    begun = life.now
    life.it.stop(life.now)
    while life.poll() is not None:
        life.now += life.it.answer_within_s
        life.fail(ErrorCode.REQUEST_TIMED_OUT)
        life.now = life.it.next_deadline
    assert life.it.exit.clean
    assert "no controller can be reached: REQUEST_TIMED_OUT: no" in life.it.exit.reason
    assert life.now - begun <= 2.0


def test_stopping_broker_waits_while_controllers_elect_a_leader() -> None:
    life = Life(shutdown_timeout_ms=30_000).active()
    begun = life.now
    life.it.stop(life.now)
    while life.now - begun < 20:
        assert isinstance(life.poll(), Heartbeat)
        life.now += life.it.answer_within_s
        life.fail(ErrorCode.NOT_CONTROLLER)
        life.now = life.it.next_deadline
        assert life.exit() is None
    assert isinstance(life.poll(), Heartbeat)
    life.ok(should_shut_down=True)
    assert life.it.exit == Exit("controlled shutdown", clean=True)


def test_heartbeat_in_flight_does_not_delay_a_stop() -> None:
    life = Life().active()
    assert isinstance(life.advance(), Heartbeat)
    life.it.stop(life.now)
    life.it.abandoned()
    assert life.poll() == Heartbeat(EPOCH, True, State.STOPPING)


def test_broker_stopped_before_its_registration_exits_at_once() -> None:
    life = Life()
    life.poll()
    life.it.stop(life.now)
    assert life.it.exit.clean


def test_registration_ended_by_others_while_stopping_is_a_clean_exit() -> None:
    life = Life().active()
    life.it.stop(life.now)
    life.image(EPOCH + 9, gone=True)
    assert life.it.exit.clean


def without_heartbeats() -> Life:
    """Registered and unfenced while broker.heartbeat.version is 0."""
    life = Life()
    life.poll()
    life.it.registered(EPOCH, life.now, heartbeats=False)
    life.image(EPOCH + 1, fenced=False, heartbeats=False)
    return life


def test_broker_neither_heartbeats_nor_fences_itself_below_the_feature_level() -> None:
    life = without_heartbeats()
    assert life.state() is State.ACTIVE
    assert life.it.next_deadline == NEVER
    life.now += 3600
    life.it.heartbeat_soon(life.now)
    assert life.poll() is None
    assert not life.it.self_fenced(life.now)
    assert life.it.why_fenced(life.now) == ""
    assert life.it.serve_until == NEVER


def test_image_older_than_the_registration_does_not_decide_whether_heartbeats_are_enabled() -> None:
    life = Life()
    life.poll()
    life.it.registered(EPOCH, life.now, heartbeats=False)
    life.image(EPOCH - 1, gone=True, heartbeats=True)
    assert life.poll() is None
    life.image(EPOCH, fenced=False, heartbeats=True)
    assert isinstance(life.poll(), Heartbeat)


def test_first_heartbeat_is_sent_at_once_when_the_feature_level_is_raised() -> None:
    life = without_heartbeats()
    life.now += 3600
    life.image(EPOCH + 2, fenced=False)
    assert not life.it.self_fenced(life.now)
    assert isinstance(life.poll(), Heartbeat)
    assert life.it.self_fenced(life.now + 12.1)


def test_newer_image_decides_when_the_level_is_raised_during_registration() -> None:
    life = Life()
    life.poll()
    life.image(EPOCH + 1, fenced=True)
    life.it.registered(EPOCH, life.now, heartbeats=False)
    assert life.it.heartbeats
    assert isinstance(life.poll(), Heartbeat)
    assert life.it.self_fenced(life.now + 12.1)
    # And the other way round: lowered meanwhile.
    life = Life()
    life.poll()
    life.image(EPOCH + 1, fenced=True, heartbeats=False)
    life.it.registered(EPOCH, life.now, heartbeats=True)
    assert life.poll() is None
    assert not life.it.self_fenced(life.now + 3600)


def test_broker_stops_heartbeats_and_keeps_serving_when_the_feature_level_is_lowered() -> None:
    life = Life().active()
    life.image(EPOCH + 2, fenced=False, heartbeats=False)
    life.now += 3600
    assert life.poll() is None
    assert not life.it.self_fenced(life.now)


def test_broker_leaves_in_order_when_heartbeats_are_disabled() -> None:
    life = without_heartbeats()
    life.now += 3600
    life.it.stop(life.now)
    assert life.poll() == Heartbeat(EPOCH, True, State.STOPPING)
    life.ok(should_shut_down=True)
    assert life.it.exit.clean


def test_replaced_broker_exits_when_heartbeats_are_disabled() -> None:
    life = without_heartbeats()
    life.image(EPOCH + 9, epoch=EPOCH + 8, incarnation="other", heartbeats=False)
    assert "incarnation other" in life.it.exit.reason


def test_timeouts_are_checked_against_those_of_the_controllers() -> None:
    settings = LifecycleSettings(
        heartbeat_interval_ms=2000, session_timeout_ms=9000, fencing_timeout_ms=12000
    )
    assert settings.misfit(0) == ""
    assert settings.misfit(9000) == ""
    assert settings.misfit(11_999) == ""
    assert (
        "broker.fencing.timeout.ms (12000) is not above the controllers' broker.session.timeout.ms"
        " (12000)" in (settings.misfit(12_000))
    )
    assert "broker.heartbeat.interval.ms (2000) is not below half" in settings.misfit(3999)
