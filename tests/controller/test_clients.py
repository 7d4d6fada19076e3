"""Decisions about exactly-once clients."""

from typing import Any

from deciding import Cell, Decided, envelope

from controller.decisions.clients.clients import CHECK_INTERVAL_S, IDLE, TOO_MANY, too_many
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import WINDOW, Client
from raftlog.metadata.records import RecordType, record
from raftlog.wire.common.v1.common_pb2 import ClientIdentity
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def config(value: str, key: str = "retention.ms") -> rpc.IncrementalAlterConfigsRequest:
    entry = rpc.AlterableConfig(name=key, config_operation=rpc.SET, value=value)
    resource = rpc.AlterConfigsResource(resource_type=4, resource_name="", configs=[entry])
    return rpc.IncrementalAlterConfigsRequest(resources=[resource])


WRITE = config("7", "log.retention.ms")


class Writer:
    """A client at a cell, with the shell's part for numbered writes."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.id = cell.send(rpc.OpenClientRequest(name="w")).client_id

    def decide(
        self, sequence: int, done: int = 0, body: Any = WRITE, client_id: int | None = None
    ) -> Decided:
        request = envelope(body)
        request.client.client_id = self.id if client_id is None else client_id
        request.client.sequence, request.client.all_below_done = sequence, done
        return self.cell.decide_request(request)

    def write(self, sequence: int, done: int = 0, body: Any = WRITE, timestamp_ms: int = 0) -> int:
        decision = self.decide(sequence, done, body)
        assert decision.error is None, decision.error
        assert decision.duplicate is None
        client = ClientIdentity(client_id=self.id, sequence=sequence, all_below_done=done)
        self.cell.log.add(decision.records, client, timestamp_ms)
        return self.cell.pending.offset

    def error(self, *args: Any, **kwargs: Any) -> tuple[ErrorCode, str]:
        before = self.cell.pending.snapshot()
        decision = self.decide(*args, **kwargs)
        assert decision.error is not None
        assert not decision.records
        assert self.cell.pending.snapshot().state_hash == before.state_hash
        return decision.error.code, decision.error.field


def test_retry_returns_the_offset_of_its_write_and_writes_nothing() -> None:
    writer = Writer(Cell())
    assert writer.cell.pending.clients[writer.cell.pending.offset].name == "w"
    offsets = {sequence: writer.write(sequence) for sequence in (1, 3, 2)}
    for sequence, offset in offsets.items():
        decision = writer.decide(sequence)
        assert (decision.records, decision.body, decision.error) == ([], None, None)
        assert decision.duplicate is not None
        assert (decision.duplicate.offset, decision.duplicate.epoch) == (offset, 1)


def test_next_controller_recognizes_the_retry_of_an_inherited_uncommitted_write() -> None:
    first = Cell()
    writer = Writer(first)
    first.hold_commits = True
    offset = writer.write(1)
    second = Cell(0, image=first.pending.snapshot(), epoch=2, bootstrap=False)
    writer.cell = second
    found = writer.decide(1)
    assert found.duplicate is not None
    assert (found.duplicate.offset, found.duplicate.epoch) == (offset, 1)


def test_unknown_client_id_is_an_error() -> None:
    writer = Writer(Cell())
    unknown = (ErrorCode.UNKNOWN_PRODUCER_ID, "client.client_id")
    for client_id in (0, writer.id - 1, writer.id + 10_000):
        assert writer.error(1, client_id=client_id) == unknown
    writer.write(1)
    close = rpc.CloseClientRequest(client_id=writer.id)
    writer.cell.send(close)
    assert [writer.error(1), writer.error(2)] == [unknown] * 2
    writer.cell.refused(close, ErrorCode.UNKNOWN_PRODUCER_ID, "client_id")


def test_number_outside_of_the_window_changes_nothing() -> None:
    writer = Writer(Cell())
    assert writer.error(0) == (ErrorCode.INVALID_REQUEST, "client.sequence")
    assert writer.error(5, 6) == (ErrorCode.INVALID_REQUEST, "client.all_below_done")
    assert writer.error(1, -1) == (ErrorCode.INVALID_REQUEST, "client.all_below_done")
    assert writer.error(1 + WINDOW) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "client.sequence")
    writer.write(WINDOW)
    writer.write(5 + WINDOW, 6)
    assert writer.error(5) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "client.sequence")
    assert writer.error(6 + WINDOW) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "client.sequence")
    assert writer.decide(WINDOW).duplicate is not None
    writer.write(6, 1)  # an older message, overtaken: what was said to be done stays done
    assert writer.error(5) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "client.sequence")


def test_delayed_attempt_of_a_closed_number_is_not_executed() -> None:
    """Attempt 1 is delayed, attempt 2 refused; a later write closes the number; 1 arrives."""
    cell = Cell()
    writer = Writer(cell)
    delete = rpc.DeleteTopicsRequest(names=["t"])
    assert not writer.decide(
        1, body=delete
    ).records  # no such topic: nothing was written, nothing is kept
    cell.create(replication_factor=1)
    assert writer.decide(
        1, body=delete
    ).records  # attempt 1 now would be executed: the error was not definite
    writer.write(2, 2)
    assert writer.error(1, body=delete) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "client.sequence")


def closed(cell: Cell) -> list[tuple[int, str]]:
    return [
        (one.message.client_id, one.message.reason)
        for decision in cell.due()
        for one in decision.records
        if one.type == RecordType.CLOSE_CLIENT
    ]


def test_longest_idle_client_is_closed_above_the_limit() -> None:
    cell = Cell(settings=ControllerSettings(max_clients=2))
    first, second = Writer(cell), Writer(cell)
    first.write(1, timestamp_ms=10)
    assert closed(cell) == []
    third = Writer(cell)
    assert closed(cell) == [(second.id, TOO_MANY)]
    assert sorted(cell.pending.snapshot().clients) == [first.id, third.id]


def test_client_survives_when_another_principal_opens_many() -> None:
    clients = [
        Client(number, "c", number, 1, who)
        for number, who in enumerate(["User:a", "User:b", "User:b", "User:b", "User:c"])
    ]
    assert [one.id for one in too_many(clients, 1)] == [1]
    assert [one.id for one in too_many(clients, 2)] == [1, 2]
    # All have one now: the longest idle of each in turn, by name.
    assert sorted(one.id for one in too_many(clients, 5)) == [0, 1, 2, 3, 4]


def test_idle_clients_are_closed_in_log_time() -> None:
    cell = Cell(settings=ControllerSettings(producer_id_expiration_ms=1000))
    idle, busy = Writer(cell), Writer(cell)
    busy.write(1, timestamp_ms=900)
    cell.now += 3600 * 24
    assert closed(cell) == []  # the log has not moved on
    advance(cell, 1001)
    assert closed(cell) == []  # not looked for all the time
    cell.now += CHECK_INTERVAL_S
    assert cell.decider.due.next_deadline() <= cell.now
    assert closed(cell) == [(idle.id, IDLE)]
    assert busy.decide(1).duplicate is not None
    assert idle.error(1)[0] == ErrorCode.UNKNOWN_PRODUCER_ID


def test_clients_do_not_expire_by_a_clock_that_ran_ahead() -> None:
    """[The only controller's clock is ten years ahead for minutes: all clients are closed.]"""
    cell = Cell(settings=ControllerSettings(producer_id_expiration_ms=1000))
    writer = Writer(cell)
    writer.write(1, timestamp_ms=5_000)
    cell.now += CHECK_INTERVAL_S
    assert closed(cell) == []
    advance(cell, 10**13)
    cell.now += CHECK_INTERVAL_S
    assert closed(cell) == [(writer.id, IDLE)], "since then it has passed by the clock here, too"

    cell = Cell(settings=ControllerSettings(producer_id_expiration_ms=60_000))
    writer = Writer(cell)
    writer.write(1, timestamp_ms=5_000)
    for ms in (10**13, 10**13 + 1):
        cell.now += CHECK_INTERVAL_S
        advance(cell, ms)
        assert closed(cell) == []


def test_client_opened_at_a_log_time_that_was_set_back_expires_when_long_unheard() -> None:
    cell = Cell(settings=ControllerSettings(producer_id_expiration_ms=60_000, max_clients=2))
    ahead, other = Writer(cell), Writer(cell)
    ahead.write(1, timestamp_ms=10**13)
    other.write(1, timestamp_ms=5_000)
    third = Writer(cell)
    assert closed(cell) == [(ahead.id, TOO_MANY)], "of the three it may have been idle the longest"
    third.write(1, timestamp_ms=10**13)
    for at_s in (30, 59):
        cell.now += 30
        advance(cell, 5_000 + at_s * 1000)
        assert closed(cell) == []
    cell.now += 30
    assert closed(cell) == [(third.id, IDLE)]


def advance(cell: Cell, timestamp_ms: int) -> None:
    cell.log.add([record(pb.NoOpRecord())], None, timestamp_ms)


def test_close_request_of_another_generation_closes_no_client() -> None:
    """[A program that has lived through a recovery ends, and another client has its id.]"""
    cell = Cell(generation=1)
    writer = Writer(cell)
    close = rpc.CloseClientRequest(client_id=writer.id, generation=0)
    cell.refused(close, ErrorCode.UNKNOWN_PRODUCER_ID, "client_id")
    assert writer.id in cell.pending.clients
    for named in ({"generation": 1}, {}):
        writer = Writer(cell)
        cell.send(rpc.CloseClientRequest(client_id=writer.id, **named))
        assert writer.id not in cell.pending.clients
