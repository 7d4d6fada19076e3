"""Assignment of an id to a broker without one (KIP-426)."""

from typing import Any

import pytest
from deciding import Cell, at, registration

from controller.settings import ControllerSettings
from controller.state.liveness import AwaitedIdError
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

DUPLICATE = ErrorCode.DUPLICATE_BROKER_REGISTRATION
INVALID = ErrorCode.INVALID_REGISTRATION
ADOPT_S = 600.0
SESSION_S = 9.0
OWN, HOSTNAME = rpc.BROKER_ID_OWN, rpc.BROKER_ID_HOSTNAME
MISSING, GENERATED = rpc.BROKER_ID_MISSING, rpc.BROKER_ID_GENERATED


def proof(directory_id: str, inode: int = 1) -> pb.ProcessProof:
    return pb.ProcessProof(
        boot_id="boot", directory_id=directory_id, lock_device=1, lock_inode=inode
    )


class Ids(Cell):
    """Brokers that are registered with an id, and some that request one."""

    asked = 0

    def map(self, host: str, broker_id: int | None) -> None:
        """Map a host to a broker by hand; None deletes the mapping."""
        alteration = rpc.HostnameAlteration(hostname=host, broker_id=broker_id)
        self.send(rpc.AlterHostnamesRequest(alterations=[alteration]))

    def wanted(
        self,
        host: str,
        port: int = 9092,
        *,
        asking_for_s: float = 0.0,
        force: bool = False,
        **fields: Any,
    ) -> rpc.RegisterBrokerRequest:
        self.asked += 1
        process = fields.pop("process", proof(f"new-{self.asked}"))
        request = registration(
            -1, f"asking-{self.asked}", listeners=at(host, port), process=process, **fields
        )
        request.id_wanted.asking_for_ms = round(asking_for_s * 1000)
        request.id_wanted.force_generation = force
        return request

    def ask(self, host: str, port: int = 9092, **fields: Any) -> tuple[int, int]:
        body = self.send(self.wanted(host, port, **fields))
        assert self.broker(body.broker_id).epoch == body.broker_epoch
        self.why = body.id_reason
        return body.broker_id, body.id_source

    def no_id(self, code: ErrorCode, *says: str, request: rpc.RegisterBrokerRequest) -> None:
        self.refused(request, code, "broker_id", *says)

    def on(self, broker_id: int, host: str, port: int = 9092, **fields: Any) -> None:
        self.join(broker_id, listeners=at(host, port), **fields)

    def waits(self, request: rpc.RegisterBrokerRequest, broker_id: int, *says: str) -> float:
        """Assert that the request waits for this broker for this number of seconds."""
        self.no_id(ErrorCode.BROKER_NOT_AVAILABLE, *says, request=request)
        error = self.decide(request).error
        assert isinstance(error, AwaitedIdError)
        assert error.broker_id == broker_id
        return error.remaining_ms / 1000

    def lose(self, *broker_ids: int) -> None:
        self.silence(*broker_ids)
        assert all(self.broker(broker_id).fenced for broker_id in broker_ids)


@pytest.fixture
def cell() -> Ids:
    """Brokers 1 to 3 on their own hosts, each with a replica."""
    made = Ids(brokers=0)
    for broker_id in (1, 2, 3):
        made.on(broker_id, f"h{broker_id}")
    made.create_on((1, 2, 3))
    made.now += 1.0
    made.all_beat()
    return made


# --- generated ----------------------------------------------------------------------------------


def test_generated_id_is_free_and_above_the_reserved_ones() -> None:
    cell = Ids(brokers=0)
    assert [cell.ask(host) for host in "abc"] == [(one, GENERATED) for one in (1001, 1002, 1003)]
    for reserved, broker_id in ((7, 8), (0, 2)):  # The controller is node 1.
        cell = Ids(brokers=0, settings=ControllerSettings(reserved_broker_max_id=reserved))
        assert cell.ask("a") == (broker_id, GENERATED)
    cell = Ids(brokers=0)
    cell.on(2**31 - 1, "a", port=1)
    cell.on(1001, "b", port=1)
    assert cell.ask("c") == (1002, GENERATED), "the gaps below the maximum are filled"
    cell = Ids(brokers=0, settings=ControllerSettings(reserved_broker_max_id=2**31 - 2))
    cell.on(2**31 - 1, "a", port=1)
    cell.no_id(ErrorCode.POLICY_VIOLATION, "reserved.broker.max.id", request=cell.wanted("b"))


@pytest.mark.parametrize("remembered", ["registered", "mapped", "holds replicas"])
def test_each_trace_of_an_id_alone_prevents_its_generation(remembered: str) -> None:
    cell = Ids(brokers=0)
    cell.on(1001, "r")
    if remembered == "registered":
        cell.on(1002, "u")
        cell.map("u", None)
        assert "u" not in cell.pending.hostnames
    elif remembered == "mapped":
        cell.map("u", 1002)
    else:
        cell.on(1002, "u")
        cell.create_on((1002,), name="held")
        cell.send(rpc.UnregisterBrokerRequest(broker_id=1002))
        cell.map("u", None)
        assert "u" not in cell.pending.hostnames
    assert cell.ask("new", force=True) == (1003, GENERATED)
    assert "host new is not mapped" in cell.why


# --- by hostname --------------------------------------------------------------------------------


def test_host_with_a_lost_disk_gets_its_id_back_in_any_spelling(cell: Ids) -> None:
    cell.lose(2)
    assert cell.ask("H2.") == (2, HOSTNAME)
    assert "host h2 is mapped to broker 2" in cell.why
    cell.send(rpc.UnregisterBrokerRequest(broker_id=3))
    assert cell.ask("h3") == (3, HOSTNAME), "also an unregistered one"


def test_old_incarnation_leaves_every_isr_in_the_same_batch(cell: Ids) -> None:
    topic = cell.create_on((2, 1), name="x")
    cell.lose(2)
    cell.join(2, incarnation="with its disk", listeners=at("h2"))
    cell.propose_isr(topic, (1, 2))
    assert cell.partition(topic).isr == (1, 2)
    cell.beat(2, want_shut_down=True)
    while not cell.broker(2).fenced:
        cell.beat(2)
    decision = cell.propose(cell.decide(cell.wanted("h2")))
    assert decision.body.broker_id == 2
    assert 2 not in cell.partition(topic).isr
    cell.check_invariants()


def test_session_that_may_be_the_requesters_own_is_waited_for(cell: Ids) -> None:
    """[A supervisor restarts on an empty disk at once: the old session proves no life.]"""
    cell.beat(2)
    for waited in (0.0, 3.0, 6.0):
        cell.now += 3.0 if waited else 0.0
        cell.beats(1, 3)
        request = cell.wanted("h2", asking_for_s=waited)
        cell.no_id(DUPLICATE, "broker 2", "has not ended", request=request)
    cell.now += 3.1
    cell.due()
    assert cell.ask("h2", asking_for_s=9.1) == (2, HOSTNAME)


def test_broker_heard_from_in_the_meantime_is_alive_and_the_next_candidate_counts(
    cell: Ids,
) -> None:
    cell.wait(8.0)
    cell.no_id(DUPLICATE, request=cell.wanted("h2", asking_for_s=8.0))
    cell.wait(4.0)
    assert cell.ask("h2", asking_for_s=12.0) == (1001, GENERATED)
    assert "broker 2, which is alive" in cell.why


def test_late_message_is_not_a_sign_of_life(cell: Ids) -> None:
    """[A paused controller processed the old process's heartbeat after the new request.]"""
    cell.now += 4.0
    cell.beat(2)
    cell.no_id(DUPLICATE, request=cell.wanted("h2", asking_for_s=4.0))


def test_new_controller_has_heard_from_no_broker_yet_be_it_fenced_or_not(cell: Ids) -> None:
    """[Broker 2 is fenced for its lag, and heartbeats; the leadership moves, and a host that is
    mapped to its id sends a request at once.] A session that a failover restarted proves nothing.
    """
    later = Ids(brokers=0, image=cell.pending.snapshot(), epoch=2, now=cell.now)
    later.now += 5.0
    later.no_id(DUPLICATE, request=later.wanted("h2", asking_for_s=60.0))
    cell.lose(2)
    cell.map("spare", 2)
    later = Ids(brokers=0, image=cell.pending.snapshot(), epoch=2, now=cell.now)
    later.now += 1.0
    later.no_id(DUPLICATE, request=later.wanted("spare"))
    later.now += later.settings.broker_session_timeout_ms / 1000
    assert later.ask("spare", asking_for_s=10.0) == (2, HOSTNAME)


def test_new_controller_does_not_wait_for_brokers_that_left(cell: Ids) -> None:
    cell.beat(2, want_shut_down=True)
    cell.wait(1.0)
    while not cell.beat(2, want_shut_down=True).should_shut_down:
        cell.wait(1.0)
    later = Ids(brokers=0, image=cell.pending.snapshot(), epoch=2, now=cell.now)
    assert later.ask("h2") == (2, HOSTNAME)


def test_only_one_of_two_racing_brokers_gets_the_id(cell: Ids) -> None:
    cell.lose(2)
    first, second = cell.wanted("h2"), cell.wanted("h2")
    assert cell.send(first).broker_id == 2
    assert not cell.beat(2).is_fenced
    cell.no_id(DUPLICATE, "asking-1", request=second)
    cell.wait(12.0)
    second.id_wanted.asking_for_ms = 12_000
    body = cell.send(second)
    assert (body.broker_id, body.id_source) == (1001, GENERATED)
    assert "asking-1" in body.id_reason


def test_host_that_a_broker_left_does_not_identify_it(cell: Ids) -> None:
    cell.lose(2)
    cell.on(2, "elsewhere", incarnation="moved")
    cell.lose(2)
    cell.waits(cell.wanted("h2"), 2, "last at elsewhere:9092")
    assert cell.ask("h2", force=True) == (1001, GENERATED)
    assert "which has now registered from elsewhere:9092" in cell.why


def test_manual_mapping_assigns_the_id_to_another_host(cell: Ids) -> None:
    cell.lose(2)
    cell.map("spare", 2)
    assert cell.ask("spare", 19092) == (2, HOSTNAME)
    assert "set by hand" in cell.why


def test_manual_mapping_does_not_take_the_id_of_a_live_broker(cell: Ids) -> None:
    cell.map("spare", 2)
    cell.no_id(DUPLICATE, request=cell.wanted("spare"))
    cell.wait(12.0)
    assert cell.ask("spare", asking_for_s=12.0)[1] == GENERATED


# --- several brokers on one host ----------------------------------------------------------------


def test_second_broker_on_a_host_is_refused(cell: Ids) -> None:
    assert cell.ask("h2", 9093) == (1001, GENERATED)
    assert "set node.id on each" in cell.why


def test_id_of_a_stopped_broker_is_not_given_to_its_neighbour(cell: Ids) -> None:
    """[Broker 2 restarts, and during the restart a second broker is started on its host.]"""
    cell.lose(2)
    says = ("2 at h2:9092", "node.id")
    cell.no_id(INVALID, *says, request=cell.wanted("h2", 9093))
    cell.wait(2 * ADOPT_S)
    cell.no_id(INVALID, *says, request=cell.wanted("h2", 9093))


def test_neighbour_of_a_stopped_broker_gets_no_new_id(cell: Ids) -> None:
    """Though no id that holds replicas is absent."""
    cell.on(4, "h4")
    cell.lose(4)
    cell.no_id(INVALID, "4 at h4:9092", "node.id", request=cell.wanted("h4", 9093, asking_for_s=60))


def test_host_last_mapped_to_a_neighbour_is_not_guessed(cell: Ids) -> None:
    cell.on(4, "h2", 9093)
    cell.lose(2)
    request = cell.wanted("h2", 9092)
    cell.no_id(INVALID, "broker 2 was registered at h2:9092", "4 at h2:9093", request=request)
    cell.send(rpc.UnregisterBrokerRequest(broker_id=4))
    cell.no_id(INVALID, "broker 4, which is not registered", request=cell.wanted("h2", 9094))


def test_missing_neighbour_is_not_adopted_on_its_own_host(cell: Ids) -> None:
    cell.on(4, "h2", 9093)
    cell.lose(2)
    cell.wait(ADOPT_S + 31)
    cell.no_id(INVALID, "broker 2 on this host is missing", request=cell.wanted("h2", 9094))


# --- missing ------------------------------------------------------------------------------------


def test_only_missing_id_is_adopted_after_the_absence_time(cell: Ids) -> None:
    cell.lose(2)
    cell.wait(ADOPT_S - 60)
    assert (
        59 <= cell.waits(cell.wanted("new"), 2, "last at h2:9092", "broker.id.adopt.after.ms") <= 91
    )
    cell.wait(91)
    assert cell.ask("new") == (2, MISSING)
    assert "last at h2:9092" in cell.why
    assert cell.pending.hostnames["new"].broker_id == 2


@pytest.mark.parametrize("held", [False, True])
def test_id_without_replicas_does_not_count_as_missing(cell: Ids, held: bool) -> None:
    """Even if it held some."""
    cell.on(4, "h4")
    if held:
        cell.create_on((4,), name="brief")
        cell.send(rpc.DeleteTopicsRequest(names=["brief"]))
    cell.lose(4)
    cell.wait(ADOPT_S + 31)
    assert cell.ask("new") == (1001, GENERATED)


def test_adoption_requires_an_operator_when_several_brokers_are_missing(cell: Ids) -> None:
    cell.lose(2, 3)
    says = (
        "2 broker ids are missing",
        "2 (last at h2:9092",
        "3 (last at h3:9092",
        "raftlog cluster hostnames set new",
        "broker.id.generation.force",
    )
    at_once = cell.wanted("new")
    cell.no_id(INVALID, *says, ", for 0 s)", request=at_once)
    cell.wait(ADOPT_S + 31)
    cell.no_id(INVALID, *says, request=cell.wanted("new"))
    cell.on(3, "h3", incarnation="it still has its disk")
    assert cell.ask("new") == (2, MISSING)


def test_missing_broker_id_goes_to_one_of_two_racing_brokers(cell: Ids) -> None:
    cell.lose(2)
    cell.wait(ADOPT_S + 31)
    assert cell.ask("new") == (2, MISSING)
    assert cell.ask("other") == (1001, GENERATED)
    assert "no id that holds replicas is absent" in cell.why


@pytest.mark.parametrize("sign", ["heartbeat", "registration"])
def test_sign_of_life_between_two_checks_counts(cell: Ids, sign: str) -> None:
    """[Back right after a check, gone again before the next one.]"""
    cell.lose(2)
    cell.wait(ADOPT_S - 100)
    absences = cell.decider.state.absent_ids
    while absences.next_check - cell.now < 9.9:
        cell.wait(0.5)
    if sign == "heartbeat":
        cell.beat(2)
    else:
        cell.register(2, "again", listeners=at("h2"))
    for _ in range(4):
        cell.now += 2.4
        cell.beats(1, 3)
        cell.due()
    assert cell.broker(2).fenced
    assert cell.now < absences.next_check, "nobody has looked meanwhile"
    cell.wait(ADOPT_S - 100)
    assert cell.waits(cell.wanted("new"), 2) > 90


def test_fenced_broker_that_heartbeats_is_not_missing(cell: Ids) -> None:
    for _ in range(300):
        cell.now += 3.0
        for broker_id in (1, 2, 3):
            cell.beat(broker_id, want_fence=broker_id == 2)
        cell.due()
    assert cell.broker(2).fenced
    cell.decider.state.absent_ids.update(
        cell.pending.snapshot(), cell.decider.state.sessions.is_alive, cell.now
    )
    assert not cell.send(rpc.ListHostnamesRequest()).absent_ids
    assert cell.decide(cell.wanted("new")).body.id_source == GENERATED


def test_absence_restarts_after_a_failover(cell: Ids) -> None:
    cell.lose(2)
    cell.wait(ADOPT_S + 31)
    later = Ids(brokers=0, image=cell.pending.snapshot(), epoch=2, now=cell.now)
    later.due()
    # A whole session goes before: it may be alive, and not have reached this controller yet.
    assert later.waits(later.wanted("new"), 2) == SESSION_S + ADOPT_S
    later.wait(ADOPT_S - 31)
    assert later.waits(later.wanted("new"), 2) >= SESSION_S + 31
    later.wait(31)
    assert 0 < later.waits(later.wanted("new"), 2) <= SESSION_S + 31
    later.wait(31 + SESSION_S)
    assert later.ask("new") == (2, MISSING)


def test_absence_begins_only_when_the_unregistration_is_committed(cell: Ids) -> None:
    """[The commit of an UnregisterBroker takes long, and the broker works until then.]"""
    cell.hold_commits = True
    cell.send(rpc.UnregisterBrokerRequest(broker_id=2))
    cell.wait(ADOPT_S + 100)
    cell.hold_commits = False
    cell.commit()
    assert cell.waits(cell.wanted("new"), 2) > ADOPT_S - 31
    cell.wait(ADOPT_S + 31)
    assert cell.ask("new") == (2, MISSING)


def test_time_while_the_controller_slept_does_not_count(cell: Ids) -> None:
    cell.lose(2)
    cell.wait(30)
    cell.now += ADOPT_S
    cell.decider.extend_for_pause(ADOPT_S, cell.now)
    assert cell.waits(cell.wanted("new"), 2) > ADOPT_S - 60


def test_dead_broker_is_waited_for_until_its_session_ends(cell: Ids) -> None:
    """[2's owner dies; a newcomer within the session gets a new id without replicas.]"""
    began = cell.now
    while cell.now < began + 8.5:
        cell.now += 0.5
        cell.beats(1, 3)
        if cell.now >= began + 5.5:
            request = cell.wanted("new", asking_for_s=cell.now - began - 5.5)
            left_s = cell.waits(request, 2, "was not heard from")
            assert left_s == pytest.approx(9.0 - (cell.now - began))
    cell.now += 0.6
    cell.beats(1, 3)
    request = cell.wanted("new", asking_for_s=3.6)
    assert cell.waits(request, 2) == 0.0, "its session has ended, it is about to be fenced"
    cell.due()
    assert cell.broker(2).fenced
    assert cell.waits(request, 2, "is absent and holds 1 replica:") == ADOPT_S
    cell.register(2, "again", listeners=at("h2"))
    cell.beat(2)
    assert cell.ask("new", asking_for_s=4.0) == (1001, GENERATED)


def test_newcomer_gets_a_new_id_once_all_brokers_were_heard_after_its_request(cell: Ids) -> None:
    cell.now += 3.0
    cell.waits(cell.wanted("new", asking_for_s=2.9), 1, "was not heard from")
    cell.all_beat()
    cell.now += 2.0
    cell.waits(cell.wanted("new", asking_for_s=1.9), 1)
    assert cell.ask("new", asking_for_s=2.0) == (1001, GENERATED)


def test_missing_id_is_not_adopted_while_another_id_may_be_missing_too(cell: Ids) -> None:
    cell.lose(2)
    cell.wait(ADOPT_S + 31)
    cell.now += 5.0
    cell.beat(1)
    cell.waits(cell.wanted("new", asking_for_s=4.0), 3, "was not heard from")
    cell.beat(3)
    assert cell.ask("new", asking_for_s=4.0) == (2, MISSING)


@pytest.mark.parametrize("lost", [(2,), (2, 3)])
def test_new_id_is_forced_by_the_broker_or_by_a_mapping(cell: Ids, lost: tuple[int, ...]) -> None:
    cell.lose(*lost)
    cell.map("mapped", 1007)
    assert cell.ask("mapped") == (1007, HOSTNAME)
    assert cell.ask("forced", force=True) == (1008, GENERATED)
    assert "a new id is forced (broker.id.generation.force); absent: 2" in cell.why
    assert cell.ask("h2", force=True) == (2, HOSTNAME), "its host's all the same"


def test_fenced_broker_that_fetches_is_not_missing(cell: Ids) -> None:
    """[It cannot heartbeat, but lives: its id is not reassigned.]"""
    cell.lose(2)
    for _ in range(round(ADOPT_S / 3) + 20):
        cell.wait(3.0)
        cell.decider.report(
            2, cell.broker(2).epoch, cell.epoch, cell.pending.offset, cell.lao.lao, cell.now
        )
    assert cell.waits(cell.wanted("new"), 2) > ADOPT_S - 15


def test_waiting_broker_is_listed_while_it_requests_an_id(cell: Ids) -> None:
    cell.lose(2)
    first, second = cell.wanted("new"), cell.wanted("other")
    told = []
    for request in (first, second, first):
        error = cell.decide(request).error
        assert isinstance(error, AwaitedIdError)
        told.append(error.is_news)
        cell.now += 1.0
        cell.all_beat()
    assert told == [True, True, False]
    one, two = cell.send(rpc.ListHostnamesRequest()).waiting_brokers
    assert (one.endpoint, one.waiting_for_ms, one.awaited_id.broker_id) == ("new:9092", 3000, 2)
    assert (two.endpoint, two.waiting_for_ms) == ("other:9092", 2000)
    assert one.awaited_id.remaining_ms == pytest.approx(ADOPT_S * 1000, abs=5000)
    cell.ask("other", force=True)
    assert [each.endpoint for each in cell.send(rpc.ListHostnamesRequest()).waiting_brokers] == [
        "new:9092"
    ]
    cell.wait(12.0)
    assert not cell.send(rpc.ListHostnamesRequest()).waiting_brokers


def test_id_kept_for_another_host_is_not_adopted(cell: Ids) -> None:
    cell.lose(2)
    cell.map("spare", 2)
    cell.wait(ADOPT_S + 31)
    assert cell.decide(cell.wanted("new")).body.id_source == GENERATED
    assert cell.ask("spare") == (2, HOSTNAME)


def test_absent_ids_are_listed(cell: Ids) -> None:
    cell.lose(2)
    cell.wait(60)
    (one,) = cell.send(rpc.ListHostnamesRequest()).absent_ids
    assert (one.broker_id, one.missing, one.replica_count, one.endpoint) == (2, False, 1, "h2:9092")
    assert 30_000 <= one.absent_for_ms <= 69_000
    cell.wait(ADOPT_S)
    assert cell.send(rpc.ListHostnamesRequest()).absent_ids[0].missing


# --- its own ------------------------------------------------------------------------------------


def test_retry_of_the_same_process_is_the_same_registration(cell: Ids) -> None:
    request = cell.wanted("new")
    first = cell.send(request)
    decision = cell.decide(request)
    assert not decision.records
    assert decision.body.broker_id == first.broker_id
    assert decision.body.broker_epoch == first.broker_epoch
    assert decision.body.id_source == OWN


def test_retry_works_without_a_known_directory(cell: Ids) -> None:
    request = cell.wanted("new", process=pb.ProcessProof())
    first = cell.send(request)
    request.listeners[0].host = "renamed"
    assert cell.send(request).broker_id == first.broker_id
    assert cell.ask("another", process=pb.ProcessProof())[0] == first.broker_id + 1, (
        "nobody is known by having none"
    )


def test_process_that_died_before_storing_its_id_gets_it_back_by_its_directory(cell: Ids) -> None:
    """[Dead before meta.json was written: the same lock proves it, a new host is no matter.] A clone
    of the directory gets no id while the original lives.
    """
    first = cell.send(cell.wanted("new", process=proof("its own", 7)))
    clone = cell.wanted("clone", process=proof("its own", 8))
    cell.no_id(DUPLICATE, request=clone)
    again = cell.wanted("renamed", 19092, process=proof("its own", 7))
    assert cell.ask("renamed", 19092, process=again.process) == (first.broker_id, OWN)


def test_broker_registers_with_its_assigned_id_as_the_same_process(cell: Ids) -> None:
    request = cell.wanted("new")
    body = cell.send(request)
    request.ClearField("id_wanted")
    request.broker_id = body.broker_id
    decision = cell.decide(request)
    assert (decision.records, decision.body.broker_epoch) == ([], body.broker_epoch)
    assert decision.body.id_source == rpc.BROKER_ID_GIVEN


# --- requests that make no sense ----------------------------------------------------------------


def test_id_request_that_names_an_id_is_refused(cell: Ids) -> None:
    for broker_id in (0, 5, -2):
        request = cell.wanted("new")
        request.broker_id = broker_id
        cell.refused(request, ErrorCode.INVALID_REQUEST, "broker_id")
    cell.refused(registration(-1), ErrorCode.INVALID_REQUEST, "broker_id")
    cell.refused(
        cell.wanted("new", asking_for_s=-1.0), ErrorCode.INVALID_REQUEST, "id_wanted.asking_for_ms"
    )
