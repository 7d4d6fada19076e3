from typing import Any, cast

import pytest
from broker_log import LogMaker

from broker.metadata.read_gate import ReadGate, ReadLease
from broker.metadata.view import View
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.records.v1 import records_pb2 as rec

ME = 7


class Broker:
    """A view and its gate, driven by the test."""

    def __init__(self, *, applied: int = 10, told: int | None = 5, max_parked: int = 100) -> None:
        self.view, self.log = View(ME, max_bytes=1 << 30), LogMaker()
        self.view.reset(0)
        self.log.leader()
        self.log.unfence(ME, self.log.register(ME))
        self.asked = 0
        self.lease = ReadLease(lambda: 3, self._asked)
        self.gate: ReadGate[str] = ReadGate(
            self.view, self.lease, max_parked=max_parked, default_timeout_ms=1000
        )
        self.apply(applied)
        if told is not None:
            self.tell(told)

    def _asked(self) -> None:
        self.asked += 1

    def apply(self, offset: int) -> None:
        while self.log.last < offset:
            self.log.config(str(self.log.end))
            self.view.apply(self.log.since(self.view.applied + 1), high_watermark=self.log.end)

    def tell(self, lao: int) -> None:
        self.view.hear(1, lao, self.log.end)

    def ask(
        self, name: str, options: pb.ReadOptions, now: float = 0.0, why_fenced: str = ""
    ) -> int | None:
        image = self.gate.admit(name, options, now, why_fenced=why_fenced)
        return None if image is None else image.offset

    def refusal(self, *arguments: Any, **options: Any) -> ApiError:
        """Return the error with which a read is refused."""
        with pytest.raises(ApiError) as error:
            self.ask(*arguments, **options)
        return error.value

    def released(self, now: float = 0.0) -> list[tuple[str, int]]:
        return [(name, image.offset) for name, image in self.gate.release(now)]


def options(
    at_least: int | None = None, *, latest: bool = False, timeout_ms: int = 0, generation: int = 0
) -> pb.ReadOptions:
    token = (
        None
        if at_least is None
        else common_pb2.MetadataToken(generation=generation, epoch=1, offset=at_least)
    )
    return pb.ReadOptions(
        mode=pb.LATEST if latest else pb.REPEATABLE, at_least=token, timeout_ms=timeout_ms
    )


@pytest.mark.parametrize(
    ("opts", "answered_at"),
    [
        (options(), 5),
        (options(latest=True), 10),
        (options(3), 5),
        (options(5), 5),
        (options(8), 8),
        (options(10), 10),
        (options(8, latest=True), 10),
        (options(-1), 5),
        (options(11), None),
        (options(11, latest=True), None),
    ],
)
def test_read_gate_selects_images_by_level(opts: pb.ReadOptions, answered_at: int | None) -> None:
    assert Broker().ask("r", opts) == answered_at


def test_fenced_gate_refuses_new_reads_and_completes_pending_ones() -> None:
    broker = Broker()
    assert broker.ask("old", options(11)) is None
    error = broker.refusal("new", options(), why_fenced="no controller reached")
    assert error.code is ErrorCode.BROKER_FENCED
    assert not error.outcome_unknown
    broker.apply(11)
    assert broker.released() == [("old", 11)]


def test_token_of_another_generation_is_refused_and_names_the_field() -> None:
    broker = Broker()
    for hears_controller, code in (
        (False, ErrorCode.BROKER_NOT_AVAILABLE),
        (True, ErrorCode.INCONSISTENT_GENERATION),
    ):
        broker.view.hears_controller = hears_controller
        error = broker.refusal("r", options(3, generation=1))
        assert (error.code, error.field) == (code, "read.at_least.generation")


@pytest.mark.parametrize(("epoch", "refused"), [(0, False), (1, False), (2, True)])
def test_token_of_another_epoch_at_its_offset_is_refused(epoch: int, refused: bool) -> None:
    broker = Broker()
    broker.apply(11)
    asked = options(5)
    asked.at_least.epoch = epoch
    if not refused:
        broker.ask("r", asked)
        return
    error = broker.refusal("r", asked)
    assert (error.code, error.field) == (ErrorCode.INCONSISTENT_GENERATION, "read.at_least.epoch")


@pytest.mark.parametrize(
    ("opts", "field"),
    [(options(timeout_ms=-1), "read.timeout_ms"), (pb.ReadOptions(mode=cast(Any, 9)), "read.mode")],
)
def test_error_for_an_invalid_option_names_the_field(opts: pb.ReadOptions, field: str) -> None:
    error = Broker().refusal("r", opts)
    assert (error.code, error.field) == (ErrorCode.INVALID_REQUEST, field)


def test_read_waits_while_lao_is_unknown() -> None:
    broker = Broker(told=None)
    assert broker.ask("plain", options()) is None
    assert broker.ask("token", options(4)) is None
    assert broker.ask("latest", options(latest=True)) == 10
    assert broker.released() == []
    broker.tell(6)
    assert broker.released() == [("plain", 6), ("token", 6)]
    assert len(broker.gate) == 0


def test_read_reports_an_unknown_lao_at_its_deadline() -> None:
    broker = Broker(told=None)
    broker.ask("r", options(timeout_ms=300), now=50.0)
    assert broker.gate.next_deadline == pytest.approx(50.3)
    assert broker.gate.expire(50.2) == []
    ((name, error),) = broker.gate.expire(50.3)
    assert (name, error.code) == ("r", ErrorCode.LAO_UNKNOWN)
    assert broker.gate.next_deadline == float("inf")


def test_read_names_the_missing_offset_at_its_deadline() -> None:
    broker = Broker()
    broker.ask("r", options(99), now=50.0)
    ((_, error),) = broker.gate.expire(51.0)
    assert (error.code, error.field) == (ErrorCode.REQUEST_TIMED_OUT, "read.at_least.offset")
    assert "99" in str(error)
    broker.apply(99)
    assert broker.released() == [], "it was answered"


def test_waiting_reads_are_released_up_to_the_applied_offset() -> None:
    broker = Broker()
    for at in (14, 12, 13, 12):
        assert broker.ask(f"at {at}", options(at)) is None
    broker.ask("latest 12", options(12, latest=True))
    broker.apply(12)
    assert broker.released() == [("at 12", 12), ("at 12", 12), ("latest 12", 12)]
    broker.apply(20)
    assert broker.released() == [("at 13", 13), ("at 14", 14)]


def test_reads_end_in_deadline_order_and_the_default_deadline_applies() -> None:
    broker = Broker()
    broker.ask("slow", options(11, timeout_ms=5000), now=0.0)
    broker.ask("default", options(12), now=0.0)
    broker.ask("fast", options(13, timeout_ms=10), now=0.0)
    assert [name for name, _ in broker.gate.expire(1.0)] == ["fast", "default"]
    assert len(broker.gate) == 1


def test_number_of_waiting_reads_is_bounded() -> None:
    broker = Broker(max_parked=3)
    for n in range(3):
        broker.ask(str(n), options(11))
    error = broker.refusal("one more", options(11))
    assert error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert broker.ask("can be answered", options()) == 5
    # Those that gave up leave no trace: a token of a far future must not fill the memory.
    broker.gate.expire(2.0)
    for n in range(3):
        assert broker.ask(str(n), options(1 << 60), now=2.0) is None
    assert len(broker.gate) == 3


def test_refuse_all_ends_every_waiting_read() -> None:
    broker = Broker()
    broker.ask("a", options(11))
    broker.ask("b", options(12, latest=True))
    error = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "over")
    assert broker.gate.refuse_all(error) == [("a", error), ("b", error)]
    assert len(broker.gate) == 0


# --- strict -------------------------------------------------------------------------------------


def strict(at_least: int | None = None, *, timeout_ms: int = 0) -> pb.ReadOptions:
    wanted = options(at_least, timeout_ms=timeout_ms)
    wanted.mode = pb.STRICT
    return wanted


class StrictBroker(Broker):
    """A broker with a lease until ``lease_s``."""

    def __init__(self, *, applied: int = 10, told: int = 10, lease_s: float = 0.0) -> None:
        super().__init__(applied=3, told=None)
        self.log.append(rec.NoOpRecord(), rec.NoOpRecord())
        self.view.apply(self.log.since(self.view.applied + 1), high_watermark=self.log.end)
        self.apply(applied)
        self.tell(told)
        if lease_s:
            self.grant(lease_s)

    def grant(self, lease_s: float, sent_at: float = 0.0) -> None:
        self.lease.answered(sent_at, int(lease_s * 1000), "")


def test_strict_read_is_answered_at_lao_while_the_lease_is_valid() -> None:
    broker = StrictBroker(lease_s=5.0)
    assert broker.ask("r", strict()) == 10
    assert broker.ask("r", strict(7), now=4.9) == 10
    assert broker.asked == 0
    assert broker.ask("r", strict(), now=5.0) is None
    assert broker.asked == 1, "a heartbeat is due at once"


def test_strict_read_waits_until_lao_covers_all_applied_when_it_began() -> None:
    """[A shows 10; B, which applied 10 and knows 8, must not show 8 to a later read.]"""
    broker = StrictBroker(applied=10, told=8, lease_s=5.0)
    assert broker.ask("plain", options()) == 8
    assert broker.ask("r", strict()) is None
    broker.apply(12)
    broker.tell(9)
    assert broker.released() == []
    broker.tell(10)
    assert broker.released() == [("r", 10)], "what was applied later it need not wait for"


def test_strict_read_never_shows_more_than_lao_whatever_its_token_says() -> None:
    broker = StrictBroker(applied=12, told=10, lease_s=5.0)
    assert broker.ask("plain", options(11)) == 11
    assert broker.ask("r", strict(11)) is None
    broker.tell(12)
    assert broker.released() == [("r", 12)]


def test_strict_read_without_a_lease_waits_for_a_lease_and_for_lao() -> None:
    broker = StrictBroker(applied=10, told=10)
    assert broker.ask("r", strict()) is None
    broker.apply(11)
    assert broker.released(0.1) == []
    broker.grant(5.0)
    assert broker.released(0.2) == [], (
        "at 10 it would miss what others had acknowledged while there was no lease"
    )
    broker.tell(11)
    assert broker.released(0.3) == [("r", 11)]


def test_strict_read_that_has_had_a_lease_may_be_answered_after_it_expires() -> None:
    broker = StrictBroker(applied=10, told=9, lease_s=0.5)
    assert broker.ask("r", strict()) is None
    broker.tell(10)
    assert broker.released(0.9) == [("r", 10)]


def test_strict_read_names_its_obstacle_at_its_deadline() -> None:
    broker = StrictBroker(applied=10, told=9)
    broker.ask("no lease", strict(timeout_ms=100))
    broker.grant(5.0, sent_at=0.1)
    broker.ask("held back", strict(timeout_ms=100), now=0.2)
    broker.ask("not applied", strict(11, timeout_ms=100), now=0.2)
    found = [(name, error.code, error.outcome_unknown) for name, error in broker.gate.expire(0.5)]
    assert found == [
        ("no lease", ErrorCode.NO_READ_LEASE, False),
        ("held back", ErrorCode.REQUEST_TIMED_OUT, False),
        ("not applied", ErrorCode.REQUEST_TIMED_OUT, False),
    ]
    assert len(broker.gate) == 0
    assert broker.released(0.5) == []


def test_read_timeout_is_capped() -> None:
    broker = Broker()
    gate: ReadGate[str] = ReadGate(
        broker.view, broker.lease, max_parked=9, default_timeout_ms=1000, max_timeout_ms=5000
    )
    assert (
        gate.admit("for 24 days", options(1 << 62, timeout_ms=2**31 - 1), 0.0, why_fenced="")
        is None
    )
    assert gate.next_deadline == 5.0
    ((name, error),) = gate.expire(5.0)
    assert (name, error.code) == ("for 24 days", ErrorCode.REQUEST_TIMED_OUT)


def test_reads_of_one_client_are_bounded_and_end_with_it() -> None:
    broker = Broker(max_parked=10)
    gate = broker.gate

    def park(name: str, reader: str) -> None:
        assert gate.admit(name, options(1 << 62), 0.0, why_fenced="", reader=reader) is None

    for number in range(5):
        park(f"greedy {number % 2}", "greedy")
    with pytest.raises(ApiError) as refused:
        park("greedy", "greedy")
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.value.throttle_time_ms > 0
    park("other", "other")
    gate.abandon("greedy", lambda name: name == "greedy 0")
    assert len(gate) == 3
    gate.abandon("greedy", lambda name: True)
    gate.abandon("nobody", lambda name: True)
    assert [name for name, _ in gate.expire(1.0)] == ["other"]
    for _ in range(5):
        park("greedy", "greedy")
    gate.refuse_all(ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "over"))
    park("greedy", "greedy")


def test_many_reads_are_released_a_few_at_a_time() -> None:
    broker = Broker()
    for number in range(5):
        assert broker.ask(str(number), options(11)) is None
    broker.apply(11)
    assert [name for name, _ in broker.gate.release(0.0, limit=2)] == ["0", "1"]
    assert [name for name, _ in broker.gate.release(0.0)] == ["2", "3", "4"]
